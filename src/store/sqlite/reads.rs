//! [`FileReader`]: a second connection to the file, for operators' reads. It only reads, so it
//! holds up no request: over one connection, a list of marks would take a turn among the commits.
//!
//! Nothing that is read here decides anything. One read at a time uses the connection. The first
//! read opens it, and only while [`HeldConnection`](super::connection::HeldConnection) has the
//! file. `HeldConnection` treats the log when it opens and closes, so it has to be the first
//! connection and the last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::oneshot;

use super::connection::BUSY;
use super::errors::error_of;
use super::file::{CountedReader, FileLock, FileReader, ReadConnection};
use super::session::Work;
use crate::store::StoreError;

/// After how many of `SQLite`'s instructions a read checks whether it must stop.
const INSTRUCTIONS: i32 = 1000;

impl FileReader {
    /// Allows reads from now on.
    pub(super) async fn allow(&self) {
        let _turn = self.turn.lock().await;
        self.allowed.store(true, Ordering::Release);
    }

    /// True if reads are allowed.
    pub(super) fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    /// Stops the current read and closes the connection. Reads fail until [`Self::allow`].
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

/// Runs work that only reads, when its turn has come and if its caller still waits.
pub(super) async fn read<T>(
    lock: &Arc<FileLock>,
    namespace: &str,
    caller: &oneshot::Sender<Result<T, StoreError>>,
    work: impl Work<T>,
) -> Result<T, StoreError> {
    let mut turn = lock.reader.turn.lock().await;
    if let Some(error) = lock.lost() {
        return Err(error);
    }
    if !lock.reader.is_allowed() || caller.is_closed() {
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
        // The connection was opened by the path, which may lead to another file by now.
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
