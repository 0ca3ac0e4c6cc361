//! Reads the marks past every proxy: over a connection of its own to Postgres, or, as the `sqlite3`
//! shell would, straight from the file. All marks of a history in one statement, so that a look can
//! begin with a request's first byte, before its head says which resource it is for.

use std::collections::BTreeMap;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

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
    /// The number of looks that began after they were asked for, and have succeeded.
    done: watch::Sender<usize>,
}

impl Reader {
    /// Its task ends with `tasks`.
    pub fn start(source: Source, log: Log, tasks: &mut JoinSet<()>) -> Self {
        let reader = Self {
            wanted: Arc::default(),
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
        let looked = async {
            // One may be at hand that began before.
            for _ in 0..2 {
                self.look();
                let _ = done.changed().await;
            }
        };
        timeout(patience, looked).await.is_ok()
    }

    async fn run(self, source: Source, log: Log) {
        let mut kept = None;
        loop {
            self.wanted.notified().await;
            log.add(Event::Look);
            match timeout(PATIENCE, read(&source, &mut kept)).await {
                Ok(Ok(marks)) => {
                    log.add(Event::Marks(marks));
                    self.done.send_modify(|done| *done += 1);
                }
                failed => {
                    log.note(format!("the marks cannot be read: {failed:?}"));
                    sleep(AGAIN).await;
                    self.look();
                }
            }
        }
    }
}

/// A file is opened for each look, so that the next one to open it finds it as the dead have left
/// it. A look at a server that fails or is given up halfway leaves no connection.
async fn read(
    source: &Source,
    kept: &mut Option<PgConnection>,
) -> sqlx::Result<BTreeMap<String, u64>> {
    let (url, namespace) = (&source.url, &source.namespace);
    let rows: Vec<(String, i64)> = if url.starts_with("sqlite:") {
        let options: SqliteConnectOptions = url.parse()?;
        let mut file = options.read_only(true).connect().await?;
        let asked = sqlx::query_as(MARKS).bind(namespace);
        asked.fetch_all(&mut file).await?
    } else {
        // Not "fencepost": those connections are for the faults to end.
        let options = PgConnectOptions::from_str(url)?.application_name("upstream");
        let mut server = match kept.take() {
            Some(server) => server,
            None => options.connect().await?,
        };
        let asked = sqlx::query_as(MARKS).bind(namespace);
        let rows = asked.fetch_all(&mut server).await?;
        *kept = Some(server);
        rows
    };
    let unsigned = |token: i64| u64::try_from(token).expect("marks are not negative");
    let rows = rows.into_iter();
    Ok(rows
        .map(|(resource, token)| (resource, unsigned(token)))
        .collect())
}
