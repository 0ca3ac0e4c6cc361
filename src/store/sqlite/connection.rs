//! [`HeldConnection`]: the connection to the file, with the settings on which durability rests.
//!
//! `SQLite` itself would copy the log into the file from time to time, and not report a failure. So
//! [`HeldConnection::tidy`] copies it, and a failure closes the connection. A copy stops early if
//! another program reads an older state (a backup, say). It is then synced here: `SQLite` syncs
//! only when it has copied everything, and would not copy these pages again.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::file::{FileLock, blocking};
use super::{count, log};
use crate::store::StoreError;
use crate::store::rows::Failure;

/// How long to wait for a program that has the file open, such as the `sqlite3` shell.
pub(super) const BUSY: Duration = Duration::from_millis(500);

/// How much of the file is kept in memory: negative, so in KiB. `SQLite`'s default is 2 MiB. The
/// tree of 150,000 marks has about this size. With fewer pages in memory, each batch reads again
/// the pages that it writes.
const CACHE: &str = "-16384";

/// How many rows of an answer the connection's thread reads ahead: as many as a large batch has.
const MOST_ROWS: usize = 1024;

/// From how many frames on the log is copied into the file: `SQLite`'s own default.
const MOST_FRAMES: i64 = 1000;

/// A connection and the lock of its file, which must outlive it: `SQLite`'s worker thread may
/// still be running when the handle to it is dropped.
#[derive(Debug)]
pub(super) struct HeldConnection {
    connection: Option<SqliteConnection>,
    lock: Arc<FileLock>,
    /// How many frames the log has, and how many of them the file has too; `None`: unknown.
    pub(super) log: Option<(i64, i64)>,
}

impl HeldConnection {
    /// Connects, and proves that the settings on which durability rests have taken effect.
    pub(super) async fn open(lock: &Arc<FileLock>) -> Result<Self, StoreError> {
        let file = Arc::clone(lock);
        blocking(move || {
            file.check()?;
            // Only while no connection of this process has the file: its locks would be lost.
            if file.connections.load(Ordering::Acquire) == 0 {
                count::fits_its_log(&file)?;
                log::write_again(&file)?;
            }
            Ok(())
        })
        .await?;
        let unfit = |error| not_a_database(lock, &error);
        lock.connections.fetch_add(1, Ordering::AcqRel);
        let connection = SqliteConnectOptions::new()
            .filename(lock.path())
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // fsync on Apple's systems does not reach the disk without these.
            .pragma("fullfsync", "on")
            .pragma("checkpoint_fullfsync", "on")
            .pragma("wal_autocheckpoint", "0")
            .pragma("cache_size", CACHE)
            // The file's directory may be the only one that can be written.
            .pragma("temp_store", "memory")
            .foreign_keys(false)
            .busy_timeout(BUSY)
            .disable_statement_logging()
            .row_buffer_size(MOST_ROWS)
            .connect()
            .await
            .inspect_err(|_| {
                lock.connections.fetch_sub(1, Ordering::AcqRel);
            })
            .map_err(unfit)?;
        let mut held = Self {
            connection: Some(connection),
            lock: Arc::clone(lock),
            log: None,
        };
        match held.prove().await {
            Ok(()) => Ok(held),
            Err(error) => {
                held.close().await;
                Err(error)
            }
        }
    }

    async fn prove(&mut self) -> Result<(), StoreError> {
        let lock = Arc::clone(&self.lock);
        let unfit = |error| not_a_database(&lock, &error);
        let (journal, synchronous): (String, i64) = sqlx::query_as(
            "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous",
        )
        .fetch_one(self.get()?)
        .await
        .map_err(unfit)?;
        if journal != "wal" || synchronous != 2 {
            return Err(StoreError::Unfit(format!(
                "{} is in journal mode {journal} with synchronous={synchronous} instead of wal and \
                 2: put it on a local file system that supports shared memory",
                lock.path().display()
            )));
        }
        // The first read opens the log. The sync below makes its name survive a crash.
        sqlx::raw_sql("SELECT count(*) FROM sqlite_schema")
            .execute(self.get()?)
            .await
            .map_err(unfit)?;
        let file = Arc::clone(&lock);
        blocking(move || {
            file.opened()?;
            file.synced(file.sync_directory())
        })
        .await?;
        let file = Arc::clone(&lock);
        let mut handle = self.get()?.lock_handle().await.map_err(unfit)?;
        // Within the transaction, just before it is written.
        handle.set_commit_hook(move || file.check().is_ok());
        drop(handle);
        self.copy_log(0).await
    }

    pub(super) fn get(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        self.connection
            .as_mut()
            .ok_or_else(|| StoreError::Connection("the connection was closed".to_owned()))
    }

    /// Copies the log into the file, if the file lacks enough of its frames.
    pub(super) async fn tidy(&mut self) -> Result<(), StoreError> {
        if self.log.is_none() {
            self.log = self.checkpoint("noop").await?;
        }
        match self.log {
            Some((log, copied)) if log - copied >= MOST_FRAMES => self.copy_log(copied).await,
            _ => Ok(()),
        }
    }

    /// Copies as much of the log into the file as it can; `before` frames are there already.
    async fn copy_log(&mut self, before: i64) -> Result<(), StoreError> {
        count::in_place(&self.lock).await?;
        self.log = self.checkpoint("passive").await?;
        let Some((log, copied)) = self.log else {
            return Ok(());
        };
        let file = Arc::clone(&self.lock);
        blocking(move || {
            if before < copied && copied < log {
                file.sync()?;
            }
            count::copied(&file)
        })
        .await
    }

    /// How many frames the log has, and how many of them the file has as well; `None` while another
    /// program copies it.
    async fn checkpoint(&mut self, mode: &str) -> Result<Option<(i64, i64)>, StoreError> {
        let pragma = sqlx::AssertSqlSafe(format!("PRAGMA wal_checkpoint({mode})"));
        let (busy, log, copied): (bool, i64, i64) = sqlx::query_as(pragma)
            .fetch_one(self.get()?)
            .await
            .map_err(|error| error_of(error.into()))?;
        if busy || log < 0 {
            return Ok(None);
        }
        Ok(Some((log, copied)))
    }

    /// Closes the connection, or leaves it open if closing could harm another store.
    pub(super) async fn close(mut self) {
        // If the check fails the store is not lost: SQLite can delete nothing there either.
        let _ = count::in_place(&self.lock).await;
        if self.lock.lost().is_some() {
            self.abandon().await;
            return;
        }
        self.lock.closing();
        let Some(connection) = self.connection.take() else {
            return;
        };
        match connection.close().await {
            Ok(()) => {
                self.lock.connections.fetch_sub(1, Ordering::AcqRel);
            }
            Err(error) => tracing::debug!(%error, "closing the SQLite connection"),
        }
    }

    /// Leaves a file that is not in its place any more. Commits that only the log has are copied
    /// into the file, wherever it is, unless it was overwritten as well and nothing has noticed that:
    /// the copy would hide it. The connection is never closed: closing deletes the log *by its
    /// name*, and that name may belong to another process's log by now.
    async fn abandon(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        // The connection and the lock of its file last as long as the process, even if nobody waits
        // for this any more.
        let mut connection = ManuallyDrop::new(connection);
        std::mem::forget(Arc::clone(&self.lock));
        // Fails where no transaction is open.
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
        let file = Arc::clone(&self.lock);
        let copied = async {
            blocking(move || count::not_overwritten(&file)).await?;
            let copy = sqlx::raw_sql("PRAGMA wal_checkpoint(PASSIVE)");
            let copied = copy.execute(&mut *connection).await;
            copied.map_err(|error| error_of(error.into()))
        };
        if let Err(error) = copied.await {
            tracing::error!(%error, "the latest marks are only in the log, which could not be copied into the file");
        }
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let held = ManuallyDrop::new(Self {
            connection: Some(connection),
            lock: Arc::clone(&self.lock),
            log: None,
        });
        // A thread, since there may be no runtime left. If none can be started, the process is
        // ending anyway, and its locks end with it.
        let _ = std::thread::Builder::new()
            .name("sqlite-close".to_owned())
            .spawn(move || {
                if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() {
                    runtime.block_on(ManuallyDrop::into_inner(held).close());
                }
            });
    }
}

/// Translates a failure for the callers of the store.
pub(super) fn error_of(failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        Failure::Sql(sqlx::Error::Database(error)) => StoreError::Statement(error.to_string()),
        Failure::Sql(error) => StoreError::Connection(error.to_string()),
    }
}

fn not_a_database(lock: &FileLock, error: &sqlx::Error) -> StoreError {
    StoreError::Unfit(format!(
        "{} cannot be opened as a SQLite database: {error}",
        lock.path().display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first version without a defect in which a write-ahead log that is reset while it is
    /// written could lose commits (<https://sqlite.org/wal.html>, section 11).
    #[tokio::test]
    async fn the_engine_that_is_built_in_has_no_known_way_to_lose_commits() {
        let memory = SqliteConnectOptions::new().in_memory(true);
        let mut memory = memory.connect().await.expect("it opens");
        let version = sqlx::query_scalar("SELECT sqlite_version()");
        let version: String = version.fetch_one(&mut memory).await.expect("a version");
        let parts: Vec<u32> = version.split('.').flat_map(str::parse).collect();
        assert!(parts >= vec![3, 51, 3], "{version}");
    }
}
