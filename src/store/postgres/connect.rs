//! [`Connector`]: opens connections that are fit to hold marks, and no others.
//!
//! # What is proven
//!
//! Every connection is proven before it is used, the hundredth like the first:
//!
//! - The session's settings have reached the server itself. A pooler that changes servers between
//!   transactions would keep them back.
//! - Commits are flushed and wait for synchronous standbys. `synchronous_commit` is set by
//!   statement, which overrides a later reload of the server's configuration. `remote_apply`, which
//!   is stronger than `on`, is left.
//! - The server accepts writes, and its encoding is UTF-8.
//! - The server's warnings arrive. Only a warning tells of a cancelled wait for a standby:
//!   [`super::warnings`] explains it.
//!
//! # Hosts
//!
//! `store.url` may name several hosts, as for libpq: a primary and its standbys. Each connect tries
//! them in turn, from the one that answered last, and takes the first that is fit. Each has an
//! equal share of the timeout. A standby is not fit, since it accepts no writes. At the start, a
//! connect whose hosts are all unfit ends the program. Later the same may be a failover, which
//! passes ([`Phase`]).
//!
//! # The planner
//!
//! [`PLANNER`] makes the planner use the indexes. Every statement names its rows by their
//! keys. For a few hundred keys the planner would otherwise read the whole table, which takes
//! longer with more marks.
//!
//! The statement of a batch joins nothing to the table. So its plan suits any size of the table,
//! and is made once per connection. Other statements are planned each time: a join that was planned
//! while there were ten marks reads all of them.
//!
//! # No cancels
//!
//! `statement_timeout` is not changed and no cancel is ever sent. A cancel that arrives while a
//! commit waits for its standby makes the server report success without the standby.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tracing::Dispatch;

use super::errors::{bounded, error_of};
use super::options;
use super::warnings::{self, Line};
use crate::config::PostgresAddress;
use crate::locked::locked;
use crate::store::StoreError;

const POOLER: &str = "the session's settings did not reach the server. Do not connect through PgBouncer or \
    another pooler: it holds settings back, and in transaction mode it changes servers as well. Point \
    store.url at Postgres itself";

const DEAF: &str = "the server's warnings do not arrive here, so a commit whose wait for its standby was \
    cancelled would look durable: point store.url at Postgres itself";

const ENCODING: &str = "one client's text would make the statements of others fail, since they share batches: \
    create one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0";

/// The advice if TLS cannot be established.
const UNVERIFIED: &str = "across a network the server has to prove its identity (sslmode=verify-full): name its CA \
    with sslrootcert=FILE in store.url or with store.tls.ca_file, and use a host name that is on its certificate";

/// A commit that waits.
const COMMIT: &str = "SELECT set_config('synchronous_commit', \
    CASE current_setting('synchronous_commit') \
    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)";

/// Session settings for the planner. A row costs as much as a page. So rows by their keys are
/// cheaper than all rows, from a few rows on. Such costs must start neither the compiler nor
/// parallel workers. A table without pages is searched by its index, too: the plan may be kept
/// until it has many.
const PLANNER: [(&str, &str); 5] = [
    ("random_page_cost", "1"),
    ("enable_seqscan", "off"),
    ("cpu_tuple_cost", "1"),
    ("jit", "off"),
    ("max_parallel_workers_per_gather", "0"),
];

/// How long a batch waits for rows that are probably locked.
const LOCK_TIMEOUT_ASIDE: Duration = Duration::from_millis(100);

/// When a connection is asked for. At the start, a server that an operator must repair is
/// [`StoreError::Unfit`]; later the same may be a failover, which passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Start,
    Running,
}

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// For batches.
    Lane,
    /// For batches whose rows are probably locked.
    Aside,
    /// For all other statements.
    Other,
}

#[derive(Debug)]
pub(super) struct Connector {
    pub(super) address: PostgresAddress,
    /// Bounds a connect over all hosts.
    pub(super) timeout: Duration,
    /// The host of the URL that answered last; tried first the next time.
    last: AtomicUsize,
    /// How many connections were made.
    made: AtomicU64,
    /// When the server of the latest connection was started, and how often that has changed.
    server: Mutex<(i64, u64)>,
    _anchor: Dispatch,
}

/// The columns of the proving query: `synchronous_commit`, no `fsync`, no `full_page_writes`, read-only,
/// whether the startup options have taken effect, the database's encoding, and when the server was
/// started (µs), which no two servers share.
type SessionProof = (String, bool, bool, bool, bool, String, i64);

impl Connector {
    pub(super) fn new(address: PostgresAddress, timeout: Duration) -> Self {
        Self {
            address,
            timeout,
            last: AtomicUsize::new(0),
            made: AtomicU64::new(0),
            server: Mutex::default(),
            _anchor: warnings::anchor(),
        }
    }

    pub(super) fn servers(&self) -> u64 {
        locked(&self.server).1
    }

    /// The options for each host. Files are read each time, since a mounted secret may have
    /// changed.
    pub(super) async fn hosts(
        &self,
        session: Session,
    ) -> Result<Vec<PgConnectOptions>, StoreError> {
        let address = self.address.clone();
        let hosts = tokio::task::spawn_blocking(move || options::read(&address))
            .await
            .map_err(|error| StoreError::Connection(error.to_string()))??;
        let millis = |span: Duration| span.as_millis().clamp(1, i32::MAX as u128).to_string();
        // The server's answer has to arrive before the caller gives up.
        let lock_timeout = match session {
            Session::Aside => LOCK_TIMEOUT_ASIDE.min(self.timeout / 2),
            Session::Lane | Session::Other => self.timeout / 2,
        };
        let application_name = self.address.application_name.as_deref();
        let plans = match session {
            Session::Lane | Session::Aside => "force_generic_plan",
            Session::Other => "force_custom_plan",
        };
        let options = hosts.into_iter().map(|options| {
            options
                .application_name(application_name.unwrap_or("fencepost"))
                .options([
                    ("lock_timeout", millis(lock_timeout)),
                    ("default_transaction_isolation", "read committed".to_owned()),
                    // Overrides the role and the database: a doubt may show in a warning only.
                    ("client_min_messages", "warning".to_owned()),
                    // A client that is frozen during an override must not keep the row locked.
                    ("idle_in_transaction_session_timeout", millis(self.timeout)),
                ])
                .options(PLANNER)
                .options([("plan_cache_mode", plans)])
                .disable_statement_logging()
        });
        Ok(options.collect())
    }

    /// Connects to the first host that is fit, beginning with the last one used.
    pub(super) async fn connect(&self, session: Session, phase: Phase) -> Result<Line, StoreError> {
        let hosts = self.hosts(session).await?;
        let count = hosts.len();
        let share = self.timeout / u32::try_from(count).unwrap_or(u32::MAX);
        let first = self.last.load(Ordering::Relaxed);
        let mut errors = Vec::new();
        let each = hosts.iter().cycle().skip(first).take(count);
        for (offset, options) in each.enumerate() {
            match bounded(share, prove(options, phase)).await {
                Ok((mut line, started)) => {
                    self.last.store((first + offset) % count, Ordering::Relaxed);
                    let mut server = locked(&self.server);
                    *server = (started, server.1 + u64::from(server.0 != started));
                    line.number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
                    return Ok(line);
                }
                Err(error) => errors.push((name(options), error)),
            }
        }
        Err(combine(errors))
    }
}

/// `host:port`, for messages.
pub(super) fn name(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(directory) => format!("{}:{}", directory.display(), options.get_port()),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}", options.get_host(), options.get_port())
        }
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

fn combine(errors: Vec<(String, StoreError)>) -> StoreError {
    let mut unfit = true;
    let each = errors.into_iter().map(|(name, error)| {
        unfit &= matches!(error, StoreError::Unfit(_));
        match error {
            StoreError::Connection(why) | StoreError::Unfit(why) => format!("{name}: {why}"),
            other => format!("{name}: {other}"),
        }
    });
    let text = each.collect::<Vec<_>>().join("; ");
    if unfit {
        StoreError::Unfit(text)
    } else {
        StoreError::Connection(text)
    }
}

async fn prove(options: &PgConnectOptions, phase: Phase) -> Result<(Line, i64), StoreError> {
    let mut connection = options.connect().await.map_err(|error| {
        let said = error.to_string();
        if said.contains("unsupported startup parameter") {
            StoreError::Unfit(format!("{said}: {POOLER}"))
        } else if said.contains("invalid peer certificate") || matches!(error, sqlx::Error::Tls(_))
        {
            // Later it may be a certificate that is being replaced.
            let why = format!("{said}: {UNVERIFIED}");
            match phase {
                Phase::Start => StoreError::Unfit(why),
                Phase::Running => StoreError::Connection(why),
            }
        } else {
            error_of(error)
        }
    })?;
    sqlx::query(COMMIT)
        .execute(&mut connection)
        .await
        .map_err(error_of)?;
    let mut rows: Vec<SessionProof> = sqlx::query_as(
        "SELECT current_setting('synchronous_commit'), \
         coalesce(current_setting('fsync', true) = 'off', false), \
         coalesce(current_setting('full_page_writes', true) = 'off', false), \
         pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', \
         (SELECT count(*) FROM pg_settings WHERE source = 'client' AND name IN \
         ('lock_timeout', 'default_transaction_isolation', 'client_min_messages', \
         'idle_in_transaction_session_timeout')) = 4, \
         current_setting('server_encoding'), \
         (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint",
    )
    .fetch_all(&mut connection)
    .await
    .map_err(error_of)?;
    let Some((commit, no_fsync, no_pages, read_only, took_effect, encoding, started)) = rows.pop()
    else {
        return Err(StoreError::Connection("the proving query is empty".into()));
    };
    if !took_effect || !["on", "remote_apply"].contains(&commit.as_str()) {
        return Err(StoreError::Unfit(POOLER.to_owned()));
    }
    if encoding != "UTF8" {
        return Err(StoreError::Unfit(format!(
            "the database's encoding is {encoding} instead of UTF8: {ENCODING}"
        )));
    }
    if read_only {
        let why = "the server is a standby or read-only: name the primary in store.url";
        return Err(match phase {
            Phase::Start => StoreError::Unfit(why.to_owned()),
            Phase::Running => StoreError::Connection(why.to_owned()),
        });
    }
    if no_fsync {
        return Err(StoreError::Unfit(
            "the server runs with fsync=off and would lose marks in a crash: turn it on".to_owned(),
        ));
    }
    if no_pages && phase == Phase::Start {
        tracing::warn!(
            "the server runs with full_page_writes=off: safe only where the file system never \
             tears a page"
        );
    }
    let mut line = Line::new(connection);
    if !line.hears().await? {
        return Err(StoreError::Unfit(DEAF.to_owned()));
    }
    Ok((line, started))
}
