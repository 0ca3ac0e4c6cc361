//! [`LostMarks`]: a file that has lost commits, for `fencepost migrate --accept-lost-marks`.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::fremovexattr;
use rustix::io::Errno;

use super::connection::{HeldConnection, error_of};
use super::count::missing;
use super::file::{FileLock, blocking};
use super::note::ATTRIBUTE;
use crate::config::Create;
use crate::store::StoreError;

/// A file that has lost commits, and its lock, so that no process serves it meanwhile.
#[derive(Debug)]
#[must_use]
pub struct LostMarks(Arc<FileLock>);

/// Checks whether a file has lost commits, for `fencepost migrate`. An empty file may have lost all
/// of them, so a missing file is created, as by [`migrate`](super::migrate).
///
/// # Errors
///
/// As [`SqliteStore::open`](super::SqliteStore::open).
pub async fn lost_marks(path: impl AsRef<Path>) -> Result<Option<LostMarks>, StoreError> {
    let path = path.as_ref().to_owned();
    let lock = blocking(move || FileLock::take(&path, Create::IfMissing)).await?;
    let lock = Arc::new(lock);
    let mut held = HeldConnection::open(&lock).await?;
    let missing = match held.get() {
        Ok(connection) => missing(connection, &lock).await.map_err(error_of),
        Err(error) => Err(error),
    };
    held.close().await;
    Ok(missing?.map(|_| LostMarks(lock)))
}

impl LostMarks {
    /// Accepts the file as it is: removes the note that it was judged by. The next heartbeat writes
    /// a new one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Connection`] if the note cannot be removed, [`StoreError::Unfit`] if the file is
    /// not in its place.
    pub async fn accept(self) -> Result<(), StoreError> {
        blocking(move || {
            self.0.check()?;
            self.0.synced(match fremovexattr(self.0.file(), ATTRIBUTE) {
                Err(Errno::NODATA) => Ok(()),
                removed => removed.map_err(Into::into),
            })
        })
        .await
    }
}
