//! The count of heartbeats, by which a start notices that commits are missing.
//!
//! `SQLite` has the latest commits only in the log beside the file. A log that is deleted after a
//! crash, or stays behind when the file is copied, takes them along, and what is left in the file
//! is a whole database, only an older one.
//!
//! So each heartbeat raises a number in the database (`user_version`) within its transaction. Once
//! that is on the disk, the same number is noted in an extended attribute of the file, which no log
//! is needed for. So a database never has less than is noted, unless it has lost commits. After a
//! copy of the log into the file, the next batch of requests carries a heartbeat: from then on only
//! the log has the number that is noted.
//!
//! A program that looks into the file, and copies and deletes the log after a crash (the `sqlite3`
//! shell), copies the number as well. A backup, or a copy without attributes, has no note, and is
//! not judged; nor is a file on a file system without attributes.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use sqlx::SqliteConnection;

use super::connection::Held;
use super::error_of;
use super::file::{FileLock, blocking};
use crate::config::settings::Create;
use crate::marks::rows::Failure;
use crate::marks::store::StoreError;

const ATTRIBUTE: &str = "user.fencepost.heartbeats";

/// Counts a heartbeat, in the transaction that is open. `SQLite` keeps 32 bits with a sign: a count
/// that has come to their end stays there.
pub(super) async fn raise(connection: &mut SqliteConnection) -> Result<i32, Failure> {
    let next = read(&mut *connection).await?.saturating_add(1);
    let set = sqlx::AssertSqlSafe(format!("PRAGMA user_version = {next}"));
    sqlx::raw_sql(set).execute(connection).await?;
    Ok(next)
}

async fn read(connection: &mut SqliteConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT user_version FROM pragma_user_version")
        .fetch_one(connection)
        .await
}

/// Notes a count that is on the disk. Without a note, or with an older one, less is noticed, and
/// nothing is refused for it. Blocks on the file system.
pub(super) fn note(lock: &FileLock, count: i32) {
    let text = count.to_string();
    if let Err(error) = fsetxattr(lock.file(), ATTRIBUTE, text.as_bytes(), XattrFlags::empty()) {
        tracing::debug!(%error, "no attribute can be set on the file of the store");
    }
}

fn noted(lock: &FileLock) -> Option<i32> {
    let mut text = [0; 16];
    let length = fgetxattr(lock.file(), ATTRIBUTE, &mut text[..]).ok()?;
    std::str::from_utf8(text.get(..length)?).ok()?.parse().ok()
}

/// The count of the database, and the one that is noted, if that is larger.
async fn missing(
    connection: &mut SqliteConnection,
    lock: &FileLock,
) -> Result<Option<(i32, i32)>, StoreError> {
    let count = read(connection)
        .await
        .map_err(|error| error_of(error.into()))?;
    Ok(noted(lock)
        .filter(|noted| *noted > count)
        .map(|noted| (count, noted)))
}

/// Refuses a file that has lost commits.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    lock: &FileLock,
) -> Result<(), StoreError> {
    let Some((count, noted)) = missing(connection, lock).await? else {
        return Ok(());
    };
    Err(StoreError::Unfit(format!(
        "{} has lost commits that were on the disk: it had {noted} heartbeats, and has {count}. Its \
         log ({}) was deleted or left behind, or an older copy was put in its place. Tokens that were \
         stale would pass. Bring the log or the latest copy back. If there is none: make sure that no \
         older holder is left, or raise the marks after it, and run `fencepost migrate \
         --accept-lost-marks`, which waits first until what is in flight has settled",
        lock.path().display(),
        lock.log().display(),
    )))
}

/// A file that has lost commits, and its lock: nobody serves it meanwhile.
#[derive(Debug)]
#[must_use]
pub struct LostMarks(Arc<FileLock>);

/// Looks whether a file has lost commits, for `fencepost migrate`. An empty file may have lost all
/// of them, so one is made where there is none, as by [`migrate`](super::migrate).
///
/// # Errors
///
/// As [`SqliteStore::open`](super::SqliteStore::open).
pub async fn lost_marks(path: impl AsRef<Path>) -> Result<Option<LostMarks>, StoreError> {
    let path = path.as_ref().to_owned();
    let lock = blocking(move || FileLock::take(&path, Create::IfMissing)).await?;
    let lock = Arc::new(lock);
    let mut held = Held::open(&lock).await?;
    let missing = match held.get() {
        Ok(connection) => missing(connection, &lock).await,
        Err(error) => Err(error),
    };
    held.close().await;
    Ok(missing?.map(|_| LostMarks(lock)))
}

impl LostMarks {
    /// Takes the file as it is. Without a note it is not judged; the next heartbeat makes one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unfit`] where the note cannot be removed, or the file is not in its place.
    pub async fn accept(self) -> Result<(), StoreError> {
        blocking(move || {
            self.0.check()?;
            match fremovexattr(self.0.file(), ATTRIBUTE) {
                Ok(()) | Err(Errno::NODATA) => Ok(()),
                Err(error) => Err(StoreError::Unfit(format!(
                    "{} keeps its attribute {ATTRIBUTE} ({error}), for which a start refuses it",
                    self.0.path().display()
                ))),
            }
        })
        .await
    }
}
