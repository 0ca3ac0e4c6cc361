//! [`FileReader`]: a second connection to the file, for what people ask. It only reads, so what they
//! ask holds up no request: with one connection, a list of marks would take its turn among the
//! commits.
//!
//! Nothing that is read here decides anything. There is one such connection, and one read at a time
//! on it. It is opened by the first read, and only while [`HeldConnection`](super::connection::HeldConnection) has the
//! file: what `HeldConnection` does about the log when it opens and closes rests on its being the first and
//! the last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::sync::oneshot;

use super::connection::BUSY;
use super::fetch::error_of;
use super::file::{CountedReader, FileLock, FileReader, ReadConnection};
use crate::store::StoreError;
use crate::store::rows::Failure;

/// After how many of `SQLite`'s instructions a read looks whether it is to end.
const INSTRUCTIONS: i32 = 1000;

impl FileReader {
    /// Reads are answered from now on.
    pub(super) async fn allow(&self) {
        let _turn = self.turn.lock().await;
        self.allowed.store(true, Ordering::Release);
    }

    /// Whether they are.
    pub(super) fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    /// Ends the read at hand and closes the connection. Reads fail until [`Self::allow`].
    pub(super) async fn shut(&self) {
        self.stop.store(true, Ordering::Release);
        let mut turn = self.turn.lock().await;
        self.allowed.store(false, Ordering::Release);
        if let Some(reading) = turn.take() {
            reading.close().await;
        }
        self.stop.store(false, Ordering::Release);
    }
}

/// Runs work that only reads, when its turn has come and its asker still waits.
pub(super) async fn read<T, F>(
    lock: &Arc<FileLock>,
    namespace: &str,
    asker: &oneshot::Sender<Result<T, StoreError>>,
    work: F,
) -> Result<T, StoreError>
where
    F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>,
{
    let mut turn = lock.reader.turn.lock().await;
    if let Some(error) = lock.lost() {
        return Err(error);
    }
    if !lock.reader.is_allowed() || asker.is_closed() {
        return Err(StoreError::Connection("the file is not open".to_owned()));
    }
    // Taken out while in use, and only put back after success.
    let mut reading = match turn.take() {
        Some(reading) => reading,
        None => ReadConnection::open(lock).await?,
    };
    match work(&mut reading.connection, namespace).await {
        Ok(done) => {
            *turn = Some(reading);
            Ok(done)
        }
        Err(failure) => {
            reading.close().await;
            Err(lock.lost().unwrap_or_else(|| {
                if lock.reader.stop.load(Ordering::Acquire) {
                    StoreError::Connection("the file was closed meanwhile".to_owned())
                } else {
                    error_of(failure)
                }
            }))
        }
    }
}

impl ReadConnection {
    async fn open(lock: &Arc<FileLock>) -> Result<Self, StoreError> {
        let failed = |error: sqlx::Error| error_of(error.into());
        let counted = CountedReader::new(lock);
        let connection = SqliteConnectOptions::new()
            .filename(lock.path())
            .create_if_missing(false)
            .read_only(true)
            .pragma("query_only", "on")
            .busy_timeout(BUSY)
            .disable_statement_logging()
            .connect()
            .await
            .map_err(failed)?;
        let mut reading = Self {
            connection,
            _counted: counted,
        };
        match reading.prepare(lock).await {
            Ok(()) => Ok(reading),
            Err(error) => {
                reading.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&mut self, lock: &Arc<FileLock>) -> Result<(), StoreError> {
        let stop = Arc::clone(&lock.reader.stop);
        let handle = self.connection.lock_handle().await;
        handle
            .map_err(|error| error_of(error.into()))?
            .set_progress_handler(INSTRUCTIONS, move || !stop.load(Ordering::Acquire));
        // It was opened by its path, which may lead to another file by now.
        lock.check_aside().await
    }

    async fn close(self) {
        if let Err(error) = self.connection.close().await {
            tracing::debug!(%error, "closing the SQLite connection for reads");
        }
    }
}

impl CountedReader {
    fn new(lock: &Arc<FileLock>) -> Self {
        lock.connections.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(lock))
    }
}

impl Drop for CountedReader {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
