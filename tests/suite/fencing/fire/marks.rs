//! Reads the marks past every proxy: over a connection of its own to Postgres, or, as the `sqlite3`
//! shell would, straight from the file. All marks of a history in one statement, so that a look can
//! begin with a request's first byte, before its head says which resource it is for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection, SqliteConnection};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::log::{Event, Log};

const MARKS: &str = "SELECT resource, token FROM marks WHERE namespace = $1";
/// Of a store that is one proxy's own.
const DEFAULT: &str = "default";
/// After this a look counts as failed: the server is frozen or gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between a failed look and the next.
const AGAIN: Duration = Duration::from_millis(50);

/// Where the marks are.
#[derive(Clone, Debug)]
pub enum Source {
    /// A database, and this history's namespace in it.
    Postgres(String, String),
    Sqlite(PathBuf),
}

/// Asks for looks. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    wanted: Arc<Notify>,
    reopen: Arc<AtomicBool>,
    /// How many looks have succeeded that began after they were asked for.
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
        for look in 0.. {
            self.wanted.notified().await;
            if self.reopen.swap(false, Ordering::Relaxed) {
                connection = None;
            }
            log.add(Event::Look { look });
            let read = tokio::time::timeout(PATIENCE, read(&source, &mut connection)).await;
            match read.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))) {
                Ok(marks) => {
                    log.add(Event::Marks { look, marks });
                    self.done.send_modify(|done| *done += 1);
                }
                Err(why) => {
                    connection = None;
                    log.add(Event::NoMarks { look, why });
                    tokio::time::sleep(AGAIN).await;
                    self.look();
                }
            }
        }
    }
}

async fn read(
    source: &Source,
    connection: &mut Option<Connection>,
) -> Result<BTreeMap<String, u64>, String> {
    // Taken out: a look that is given up halfway leaves no connection in an unknown state.
    let mut open = match connection.take() {
        Some(open) => open,
        None => connect(source).await.map_err(|error| error.to_string())?,
    };
    let namespace = match source {
        Source::Postgres(_, namespace) => namespace,
        Source::Sqlite(_) => DEFAULT,
    };
    let rows: Result<Vec<(String, i64)>, sqlx::Error> = match &mut open {
        Connection::Postgres(open) => sqlx::query_as(MARKS).bind(namespace).fetch_all(open).await,
        Connection::Sqlite(open) => sqlx::query_as(MARKS).bind(namespace).fetch_all(open).await,
    };
    let rows = rows.map_err(|error| error.to_string())?;
    *connection = Some(open);
    let unsigned = |token: i64| u64::try_from(token).expect("marks are not negative");
    Ok(rows
        .into_iter()
        .map(|(resource, token)| (resource, unsigned(token)))
        .collect())
}

async fn connect(source: &Source) -> Result<Connection, sqlx::Error> {
    match source {
        Source::Postgres(url, _) => {
            let options: sqlx::postgres::PgConnectOptions = url.parse()?;
            // Not "fencepost": those connections are for the faults to end.
            let options = options.application_name("upstream");
            options.connect().await.map(Connection::Postgres)
        }
        Source::Sqlite(path) => {
            let options = SqliteConnectOptions::new().filename(path).read_only(true);
            options.connect().await.map(Connection::Sqlite)
        }
    }
}
