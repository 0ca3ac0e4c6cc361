//! Reads the marks past every proxy: over a connection of its own to Postgres, or, as the `sqlite3`
//! shell would, straight from the file. All marks of a history in one statement, so that a look can
//! begin with a request's first byte, before its head says which resource it is for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection, SqliteConnection};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::log::{Event, Log};

const MARKS: &str = "SELECT resource, token FROM marks WHERE namespace = $1";
/// After this a look counts as failed: the server is frozen or gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between a failed look and the next.
const AGAIN: Duration = Duration::from_millis(50);

/// The place of the marks.
#[derive(Clone, Debug)]
pub struct Source {
    pub url: String,
    pub namespace: String,
}

/// Asks for looks. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    wanted: Arc<Notify>,
    reopen: Arc<AtomicBool>,
    /// The number of looks that began after they were asked for, and have succeeded.
    done: watch::Sender<usize>,
}

enum Connection {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Reader {
    /// Its task ends with `tasks`.
    pub fn start(source: Source, log: Log, tasks: &mut JoinSet<()>) -> Self {
        let reader = Self {
            wanted: Arc::default(),
            reopen: Arc::default(),
            done: watch::Sender::new(0),
        };
        tasks.spawn(reader.clone().run(source, log));
        reader
    }

    /// A look begins as soon as the one at hand is over. One look answers all who asked before it.
    pub fn look(&self) {
        self.wanted.notify_one();
    }

    /// A look that begins from now on has succeeded; `false`: not within `patience`.
    pub async fn has_looked(&self, patience: Duration) -> bool {
        let mut done = self.done.subscribe();
        // One may be at hand that began before.
        let enough = *done.borrow_and_update() + 2;
        let looked = async {
            while *done.borrow_and_update() < enough {
                self.look();
                if done.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(patience, looked).await.is_ok()
    }

    /// Lets go of the file, so that the next one to open it finds it as the dead have left it.
    pub fn let_go(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    async fn run(self, source: Source, log: Log) {
        let mut connection = None;
        loop {
            self.wanted.notified().await;
            if self.reopen.swap(false, Ordering::Relaxed) {
                connection = None;
            }
            log.add(Event::Look);
            let read = tokio::time::timeout(PATIENCE, read(&source, &mut connection)).await;
            match read {
                Ok(Ok(marks)) => {
                    log.add(Event::Marks(marks));
                    self.done.send_modify(|done| *done += 1);
                }
                failed => {
                    log.note(format!("the marks cannot be read: {failed:?}"));
                    tokio::time::sleep(AGAIN).await;
                    self.look();
                }
            }
        }
    }
}

/// A look that fails or is given up halfway leaves no connection.
async fn read(
    source: &Source,
    kept: &mut Option<Connection>,
) -> sqlx::Result<BTreeMap<String, u64>> {
    let mut open = match kept.take() {
        Some(open) => open,
        None if source.url.starts_with("sqlite:") => {
            let options: SqliteConnectOptions = source.url.parse()?;
            Connection::Sqlite(options.read_only(true).connect().await?)
        }
        None => {
            let options: PgConnectOptions = source.url.parse()?;
            // Not "fencepost": those connections are for the faults to end.
            let options = options.application_name("upstream");
            Connection::Postgres(options.connect().await?)
        }
    };
    let namespace = &source.namespace;
    let rows: Vec<(String, i64)> = match &mut open {
        Connection::Postgres(open) => {
            let asked = sqlx::query_as(MARKS).bind(namespace);
            asked.fetch_all(open).await?
        }
        Connection::Sqlite(open) => {
            let asked = sqlx::query_as(MARKS).bind(namespace);
            asked.fetch_all(open).await?
        }
    };
    *kept = Some(open);
    let unsigned = |token: i64| u64::try_from(token).expect("marks are not negative");
    let rows = rows.into_iter();
    Ok(rows
        .map(|(resource, token)| (resource, unsigned(token)))
        .collect())
}
