//! [`SqliteStore`]: the embedded store. One file, one process, one connection.
//!
//! Each call's work runs in a task of its own that takes turns at the connection, so a caller that
//! leaves, or that is told [`StoreError::Timeout`], never abandons a transaction half way: the work
//! runs to its end, and until then nobody else is at the connection. Work whose caller has left
//! before its turn came is not begun. After any error the connection is closed, and the next call
//! opens a new one.
//!
//! Durability is `SQLite`'s own: a write-ahead log with `synchronous=FULL`, so that every commit
//! has been fsynced when it returns. Since nobody else can have the file ([`file`]), every other
//! instance recorded in it is dead.

mod calls;
mod file;
mod lane;
mod life;
mod own;
mod people;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::sync::{Mutex, oneshot};

use self::file::FileLock;
use super::rows::{self, Applied, Failure, Schema};
use super::store::StoreError;

/// The first version without a defect in which a write-ahead log that is reset while it is written
/// could lose commits (<https://sqlite.org/wal.html>, section 11).
const OLDEST: (u32, u32, u32) = (3, 51, 3);

/// How long to wait for a program that looks into the file, such as the `sqlite3` shell.
const BUSY: Duration = Duration::from_millis(500);

/// Marks in an embedded database.
#[derive(Debug)]
pub struct SqliteStore {
    namespace: Arc<str>,
    timeout: Duration,
    /// Held across awaits, by the tasks that do the work and by nobody else.
    session: Arc<Mutex<Session>>,
}

/// The turn at the connection.
#[derive(Debug)]
struct Session {
    /// `None`: the store was closed.
    lock: Option<Arc<FileLock>>,
    /// `None`: to be opened by the next call.
    connection: Option<Held>,
}

/// A connection and the lock of its file, which must outlive it: `SQLite`'s worker thread may
/// still be at work when the handle to it is dropped.
#[derive(Debug)]
struct Held {
    connection: Option<SqliteConnection>,
    lock: Arc<FileLock>,
}

impl SqliteStore {
    /// Opens the file (made if it is not there), locks it, and brings its schema up to date or
    /// checks that it is. `timeout` bounds each call.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unfit`] where the file cannot be made or written, is no database, is in use, or has a
    /// schema that this program cannot serve.
    pub async fn open(
        path: impl AsRef<Path>,
        timeout: Duration,
        migrate: bool,
        namespace: &str,
    ) -> Result<Self, StoreError> {
        let path: PathBuf = path.as_ref().to_owned();
        let lock = tokio::task::spawn_blocking(move || FileLock::take(&path))
            .await
            .map_err(|error| StoreError::Connection(error.to_string()))??;
        let lock = Arc::new(lock);
        let mut held = Held::open(&lock).await?;
        if let Err(error) = prepare_schema(held.get()?, migrate).await {
            held.close().await;
            return Err(error);
        }
        Ok(Self {
            namespace: namespace.into(),
            timeout,
            session: Arc::new(Mutex::new(Session {
                lock: Some(lock),
                connection: Some(held),
            })),
        })
    }

    /// Ends the work at hand, closes the file and gives up its lock. Calls after this fail. (A store
    /// that is dropped does the same in the background.)
    pub async fn close(&self) {
        let mut session = self.session.lock().await;
        if let Some(held) = session.connection.take() {
            held.close().await;
        }
        session.lock = None;
    }

    /// Runs work that only reads, or is one statement.
    async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>
            + Send
            + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let session = Arc::clone(&self.session);
        let namespace = Arc::clone(&self.namespace);
        tokio::spawn(async move {
            let mut session = session.lock().await;
            // A caller that has left was told to conclude nothing, so this need not be begun.
            if !answer.is_closed() {
                // Nobody to tell is no error: the work is done all the same.
                let _ = answer.send(session.run(&namespace, work).await);
            }
        });
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Connection(
                "the work was dropped before it ended".to_owned(),
            )),
            Err(_) => Err(StoreError::Timeout(self.timeout)),
        }
    }

    /// Runs work in one transaction that holds the write lock from its start.
    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>
            + Send
            + 'static,
    {
        self.read(move |connection, namespace| {
            Box::pin(async move {
                // After an error the connection is closed, which rolls back.
                sqlx::raw_sql("BEGIN IMMEDIATE")
                    .execute(&mut *connection)
                    .await?;
                let done = work(&mut *connection, namespace).await?;
                sqlx::raw_sql("COMMIT").execute(&mut *connection).await?;
                Ok(done)
            })
        })
        .await
    }
}

/// Brings the schema of a file up to date, for `fencepost migrate`.
///
/// # Errors
///
/// As [`SqliteStore::open`].
pub async fn migrate(path: impl AsRef<Path>) -> Result<(), StoreError> {
    let store = SqliteStore::open(path, Duration::MAX, true, "").await?;
    store.close().await;
    Ok(())
}

impl Session {
    async fn run<T, F>(&mut self, namespace: &str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let Some(lock) = &self.lock else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        // Taken out while in use, and only put back after success: whatever else happens, a panic
        // included, closes it.
        let mut held = match self.connection.take() {
            Some(held) => held,
            None => Held::open(lock).await?,
        };
        match work(held.get()?, namespace).await {
            Ok(done) => {
                self.connection = Some(held);
                Ok(done)
            }
            Err(failure) => {
                held.close().await;
                Err(error_of(failure))
            }
        }
    }
}

impl Held {
    /// Connects, and sees to it that the settings on which durability rests have taken effect.
    async fn open(lock: &Arc<FileLock>) -> Result<Self, StoreError> {
        lock.check()?;
        let unfit = |error: sqlx::Error| {
            StoreError::Unfit(format!(
                "{} cannot be opened as a SQLite database: {error}",
                lock.path().display()
            ))
        };
        let connection = SqliteConnectOptions::new()
            .filename(lock.path())
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // fsync on Apple's systems does not reach the disk without these.
            .pragma("fullfsync", "on")
            .pragma("checkpoint_fullfsync", "on")
            .foreign_keys(false)
            .busy_timeout(BUSY)
            .disable_statement_logging()
            .connect()
            .await
            .map_err(unfit)?;
        let mut held = Self {
            connection: Some(connection),
            lock: Arc::clone(lock),
        };
        let (version, journal, synchronous): (String, String, i64) = sqlx::query_as(
            "SELECT sqlite_version(), journal_mode, synchronous \
             FROM pragma_journal_mode, pragma_synchronous",
        )
        .fetch_one(held.get()?)
        .await
        .map_err(unfit)?;
        let parts: Vec<u32> = version.split('.').flat_map(str::parse).collect();
        let number = |at: usize| parts.get(at).copied().unwrap_or(0);
        if (number(0), number(1), number(2)) < OLDEST {
            return Err(StoreError::Unfit(format!(
                "SQLite {version} is too old to be trusted with marks: build with 3.51.3 or newer"
            )));
        }
        if journal != "wal" || synchronous != 2 {
            return Err(StoreError::Unfit(format!(
                "{} is in journal mode {journal} with synchronous={synchronous} instead of wal and \
                 2: put it on a local file system that supports shared memory",
                lock.path().display()
            )));
        }
        Ok(held)
    }

    fn get(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        self.connection
            .as_mut()
            .ok_or_else(|| StoreError::Connection("the connection was closed".to_owned()))
    }

    async fn close(mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "closing the SQLite connection");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let lock = Arc::clone(&self.lock);
        // A thread, since there may be no runtime left. If none can be had, the process is ending
        // anyway, and its locks end with it.
        let _ = std::thread::Builder::new()
            .name("sqlite-close".to_owned())
            .spawn(move || {
                if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() {
                    let _ = runtime.block_on(connection.close());
                }
                drop(lock);
            });
    }
}

pub(super) fn migrator() -> Migrator {
    rows::migrator(&[
        (
            1,
            "marks",
            include_str!("../migrations/sqlite/0001_marks.sql"),
        ),
        (
            2,
            "terms",
            include_str!("../migrations/sqlite/0002_terms.sql"),
        ),
        (
            3,
            "route_table",
            include_str!("../migrations/sqlite/0003_route_table.sql"),
        ),
    ])
}

async fn schema(connection: &mut SqliteConnection) -> Result<Schema, StoreError> {
    let known: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sqlite_schema WHERE name = 'fencepost_migrations'",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(|error| error_of(error.into()))?;
    if known == 0 {
        return Ok(Schema::Behind);
    }
    let applied: Vec<Applied> =
        sqlx::query_as("SELECT version, checksum, success FROM fencepost_migrations")
            .fetch_all(connection)
            .await
            .map_err(|error| error_of(error.into()))?;
    rows::judge_schema(&migrator(), &applied)
}

async fn prepare_schema(
    connection: &mut SqliteConnection,
    migrate: bool,
) -> Result<(), StoreError> {
    if schema(connection).await? == Schema::Current {
        return Ok(());
    }
    if !migrate {
        return Err(rows::schema_behind());
    }
    // `run` is the same, but its future cannot be sent between threads.
    migrator()
        .run_direct(None, connection, false)
        .await
        .map_err(|error| match error {
            MigrateError::Execute(error) => error_of(error.into()),
            other => StoreError::Unfit(format!(
                "the schema could not be brought up to date: {other}"
            )),
        })
}

fn error_of(failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        Failure::Sql(sqlx::Error::Database(error)) => StoreError::Statement(error.to_string()),
        Failure::Sql(error) => StoreError::Connection(error.to_string()),
    }
}
