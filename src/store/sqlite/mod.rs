//! [`SqliteStore`]: the embedded store. One file, one process, one connection.
//!
//! Each call waits for its turn at the connection. Its work runs in a task of its own, so no transaction is abandoned halfway:
//! the work runs to its end, and until then no other call uses the connection. If the caller leaves
//! before its turn, the work is not started. After any error the connection is closed, and the next
//! call opens a new one.
//!
//! Durability is `SQLite`'s own: a write-ahead log with `synchronous=FULL`, so that every commit
//! has been fsynced when it returns. No other process can have the file ([`mod@file`]), so every
//! other instance recorded in it is dead.

#[macro_use]
mod epochs;

mod batch;
mod connection;
mod count;
mod file;
mod log;
mod lost;
mod marks;
mod note;
mod path;
mod session;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use sqlx::migrate::MigrateError;
use tokio::sync::{Mutex, oneshot};

use self::connection::{HeldConnection, error_of};
use self::file::FileLock;
pub use self::lost::{LostMarks, lost_marks};
use self::session::Session;
use super::rows::{self, Applied, Failure};
use crate::config::Create;
use crate::store::engine::{Engine, Turn, Work};
use crate::store::{StoreError, place};

/// Marks in an embedded database.
#[derive(Debug)]
pub struct SqliteStore {
    timeout: Duration,
    /// Held across awaits, only by the tasks that do the work.
    session: Arc<Mutex<Session>>,
    /// See the column `place`.
    boot: String,
    /// For checks that do not wait for a turn; gone once the store was closed.
    lock: Weak<FileLock>,
    pub opened: Opened,
}

/// The state of the file at the start.
#[derive(Clone, Debug)]
pub struct Opened {
    pub path: PathBuf,
    /// There was no store in the file, or no file.
    pub created: bool,
    /// The marks of the namespace.
    pub marks: u64,
    /// When one of them last rose or was overridden, in milliseconds since the Unix epoch.
    pub latest_ms: Option<i64>,
}

impl SqliteStore {
    /// Opens the file, locks it, and brings its schema up to date or checks that it is. `create`
    /// says whether a missing store is created. `timeout` bounds each call.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unfit`] if the file cannot be created or written, is not a database, is in
    /// use, or has a schema that this program cannot serve; and if there is no store and none may
    /// be created.
    pub async fn open(
        path: impl AsRef<Path>,
        timeout: Duration,
        migrate: bool,
        namespace: &str,
        create: Create,
    ) -> Result<Self, StoreError> {
        let path: PathBuf = path.as_ref().to_owned();
        let lock = file::blocking(move || FileLock::take(&path, create)).await?;
        let lock = Arc::new(lock);
        let mut held = HeldConnection::open(&lock).await?;
        let (opened, commits) = match start(&mut held, &lock, migrate, namespace, create).await {
            Ok(started) => started,
            Err(error) => {
                held.close().await;
                return Err(error_of(error));
            }
        };
        Ok(Self {
            timeout,
            boot: place::boot(),
            lock: Arc::downgrade(&lock),
            session: Arc::new(Mutex::new(Session {
                namespace: namespace.into(),
                lock: Some(lock),
                connection: Some(held),
                commits,
                overwritten: false,
            })),
            opened,
        })
    }

    /// Waits for the current work, closes the file and gives up its lock. Later calls fail. (A
    /// store that is dropped does the same in the background.)
    pub async fn close(&self) {
        let mut session = self.session.lock().await;
        if let Some(held) = session.connection.take() {
            held.close().await;
        }
        if let Some(lock) = session.lock.take() {
            let _ = count::in_place(&lock).await;
        }
    }

    /// Runs work on the session, in its turn.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl for<'s> FnOnce(&'s mut Session) -> BoxFuture<'s, Result<T, StoreError>>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let session = Arc::clone(&self.session);
        tokio::spawn(async move {
            let mut session = session.lock().await;
            // A caller that has left concludes nothing, so its work need not start.
            if answer.is_closed() {
                return;
            }
            // Without a caller the sending fails, but the work is done.
            let _ = answer.send(work(&mut session).await);
            session.tidy().await;
        });
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Connection(
                "the work was dropped before it ended".to_owned(),
            )),
            Err(_) => Err(StoreError::Timeout(self.timeout)),
        }
    }
}

#[async_trait]
impl Engine for SqliteStore {
    fn shared(&self) -> bool {
        false
    }

    async fn work(&self, turn: Turn, work: Work) -> Result<(), StoreError> {
        self.in_turn(move |session| Box::pin(session.run(turn, work)))
            .await
    }

    async fn place(&self) -> Result<String, StoreError> {
        Ok(self.known_place())
    }

    fn known_place(&self) -> String {
        self.boot.clone()
    }
}

/// Checks that the place of a file can keep marks, without opening the file. `volatile` allows a
/// file system in memory, with a warning.
///
/// # Errors
///
/// [`StoreError::Unfit`] if it cannot, or there is no such directory.
pub async fn check_place(path: &Path, create: Create, volatile: bool) -> Result<(), StoreError> {
    let path = path.to_owned();
    file::blocking(move || path::keeps_marks(&path, create, volatile)).await
}

/// Brings the schema up to date or checks that it is, and counts the marks. Returns the count of
/// transactions, too.
async fn start(
    held: &mut HeldConnection,
    lock: &FileLock,
    migrate: bool,
    namespace: &str,
    create: Create,
) -> Result<(Opened, i64), Failure> {
    let connection = held.get()?;
    count::check(connection, lock).await?;
    let created = !has_schema(connection).await?;
    if created && create == Create::Never {
        return Err(file::not_there(lock.path(), "holds no store").into());
    }
    prepare_schema(connection, created, migrate).await?;
    count::name(connection).await?;
    let sql = "SELECT count(*), max(changed_at) FROM marks WHERE namespace = ?1";
    let counted = sqlx::query_as(sql).bind(namespace);
    let (marks, latest_ms): (i64, _) = counted.fetch_one(&mut *connection).await?;
    let commits = count::latest(connection).await?;
    let opened = Opened {
        path: lock.path().to_owned(),
        created,
        marks: marks.unsigned_abs(),
        latest_ms,
    };
    Ok((opened, commits))
}

/// True if there has ever been a store in the file.
async fn has_schema(connection: &mut SqliteConnection) -> Result<bool, Failure> {
    let known = sqlx::query("SELECT name FROM sqlite_schema WHERE name = 'fencepost_migrations'");
    Ok(known.fetch_optional(connection).await?.is_some())
}

async fn prepare_schema(
    connection: &mut SqliteConnection,
    created: bool,
    migrate: bool,
) -> Result<(), Failure> {
    let migrator = rows::migrator(include_str!("schema.sql"));
    if !created {
        let applied = sqlx::query_as("SELECT version, checksum, success FROM fencepost_migrations");
        let applied: Vec<Applied> = applied.fetch_all(&mut *connection).await?;
        if rows::is_current(&migrator, &applied)? {
            return Ok(());
        }
    }
    if !migrate {
        return Err(rows::schema_behind().into());
    }
    // `run` is the same, but its future cannot be sent between threads.
    migrator
        .run_direct(None, connection, false)
        .await
        .map_err(|error| match error {
            MigrateError::Execute(error) => error.into(),
            other => rows::not_migrated(&other).into(),
        })
}
