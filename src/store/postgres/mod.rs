//! [`PostgresStore`]: the shared store, for any number of proxies per namespace.
//!
//! A call for requests is one statement, committed by itself. A join, an override, a prune and the
//! replacement of the route table are a transaction each. Statements are prepared once per
//! connection, and their arguments are bound: nothing that comes from a request is ever SQL.
//!
//! Each kind of call has a connection of its own, so that none waits for another kind. It is opened
//! when it is first used. A call that finds it in use waits for it.
//!
//! An answer counts only when it has been read to its end: the server reports a statement complete
//! *before* it commits it, and ready for the next one after. So rows are always fetched to the last
//! (`fetch_all`, `execute`), never by `fetch_one` and its like, which return at the first.
//!
//! sqlx's `begin` and `commit` are not used: `begin` is not safe to cancel, and `commit` accepts a
//! ROLLBACK as an answer.

mod connect;
mod engine;
mod errors;
mod marks;
mod notifications;
mod options;
mod slot;
mod statements;
mod warnings;

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

use self::connect::{Connector, Phase, Session};
use self::errors::{bounded, error_of};
use self::slot::DedicatedConnection;
use super::rows::{self, Applied, Failure};
use crate::config::PostgresAddress;
use crate::store::{MarkStore, StoreError};

/// How long a migration may take, waiting for another one included.
const MIGRATION: Duration = Duration::from_mins(1);

/// How many batches may be on their way at once. The second one serves what is due while the first
/// is small, or takes long.
const LANES: usize = 2;

/// How many received notifications may wait to be handled; then listening pauses.
const UNREAD_NOTIFICATIONS: usize = 1024;

/// Marks in a Postgres.
#[derive(Debug)]
pub struct PostgresStore {
    namespace: Arc<str>,
    channel: String,
    migrate: bool,
    connector: Arc<Connector>,
    /// For batches of requests.
    lanes: [DedicatedConnection; LANES],
    aside: DedicatedConnection,
    reader: DedicatedConnection,
    /// For cedes, repairs, and tokens that are given back.
    ceding: DedicatedConnection,
    notifying: DedicatedConnection,
    /// For the records of operations, in turns.
    operating: [DedicatedConnection; LANES],
    operated: AtomicUsize,
    heartbeat: DedicatedConnection,
    operators: DedicatedConnection,
    /// Which of the membership task's connections answered the last read of the instances.
    instances_over: AtomicU64,
    /// Taken at the first join. Empty: no place was free.
    place: OnceLock<String>,
}

impl PostgresStore {
    /// Does not connect yet: see [`MarkStore::prepare`]. `timeout` bounds each call; a row
    /// lock is waited for half as long.
    #[must_use]
    pub fn new(
        address: PostgresAddress,
        namespace: &str,
        timeout: Duration,
        migrate: bool,
    ) -> Self {
        let connector = Arc::new(Connector::new(address, timeout));
        let slot = |session| DedicatedConnection::new(Arc::clone(&connector), session);
        Self {
            namespace: namespace.into(),
            channel: notifications::channel(namespace),
            migrate,
            lanes: std::array::from_fn(|_| slot(Session::Lane)),
            aside: slot(Session::Aside),
            reader: slot(Session::Other),
            ceding: slot(Session::Other),
            notifying: slot(Session::Other),
            operating: std::array::from_fn(|_| slot(Session::Other)),
            operated: AtomicUsize::new(0),
            heartbeat: slot(Session::Other),
            operators: slot(Session::Other),
            instances_over: AtomicU64::new(0),
            place: OnceLock::new(),
            connector: Arc::clone(&connector),
        }
    }

    /// [`Self::new`] and [`MarkStore::prepare`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unfit`] if an operator must repair something; [`StoreError::Connection`] or
    /// [`StoreError::Timeout`] if another try may help.
    pub async fn open(
        address: PostgresAddress,
        namespace: &str,
        timeout: Duration,
        migrate: bool,
    ) -> Result<Self, StoreError> {
        let store = Self::new(address, namespace, timeout, migrate);
        store.prepare().await?;
        Ok(store)
    }

    /// A statement whose `$1` is the namespace.
    fn query(&self, sql: &'static str) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql).bind(&*self.namespace)
    }
}

/// Brings the schema up to date, under an advisory lock.
///
/// # Errors
///
/// As [`PostgresStore::open`].
async fn migrate(address: PostgresAddress) -> Result<(), StoreError> {
    let connector = Connector::new(address, MIGRATION);
    let work = async {
        let mut line = connector.connect(Session::Other, Phase::Start).await?;
        // A role that may not change the schema is enough while nothing is to be changed.
        if is_current(line.bare()).await.map_err(error_of)? {
            return Ok(());
        }
        // A warning here costs nothing: the first durable mark comes after this in the server's
        // log, so a standby that has the mark has the schema.
        // `run` does the same, but its future cannot be sent between threads.
        migrator()
            .run_direct(None, line.bare(), false)
            .await
            .map_err(|error| match error {
                MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                    error_of(error)
                }
                other => rows::not_migrated(&other),
            })
        // The connection is dropped here, which gives up the migrator's lock in any case.
    };
    bounded(MIGRATION, work).await
}

fn migrator() -> Migrator {
    rows::migrator(include_str!("schema.sql"))
}

/// Returns true if the schema is there, and the one that this program knows.
async fn is_current(connection: &mut PgConnection) -> Result<bool, Failure> {
    let known: Vec<bool> =
        sqlx::query_scalar("SELECT to_regclass('fencepost_migrations') IS NOT NULL")
            .fetch_all(&mut *connection)
            .await?;
    if known != [true] {
        return Ok(false);
    }
    let applied: Vec<Applied> =
        sqlx::query_as("SELECT version, checksum, success FROM fencepost_migrations")
            .fetch_all(connection)
            .await?;
    Ok(rows::is_current(&migrator(), &applied)?)
}
