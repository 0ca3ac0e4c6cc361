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
//! The note belongs to the file, not to the store, and stays when another store is copied or restored
//! into it. So the store has an id, in the database and in the note, and one with another id is
//! refused as well: the marks of the one that is noted are gone.
//!
//! `SQLite` ties no log to its file. Where a crash has left the log, and an older copy or another
//! store is put in front of it, it would make one of the two that is neither, and the log would bring
//! the latest count along. So the note says, too, what the file alone counts: what it had at the
//! latest copy of the whole log. A file that has less is not opened with a log.
//!
//! A program that looks into the file, and copies and deletes the log after a crash (the `sqlite3`
//! shell), copies the number as well. A backup, or a copy without attributes, has no note, and is
//! not judged; nor is a file on a file system without attributes.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use sqlx::SqliteConnection;

use super::fetch::error_of;
use super::file::{FileLock, cannot_look};
use crate::store::StoreError;
use crate::store::rows::Failure;

pub(super) const ATTRIBUTE: &str = "user.fencepost.heartbeats";

/// Where `SQLite` keeps the two numbers (<https://sqlite.org/fileformat2.html>, section 1.3), and how
/// much of the file has them.
const USER_VERSION: usize = 60;
const APPLICATION_ID: usize = 68;
const HEADER: usize = 72;

/// What is counted, and noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heartbeats {
    /// Tells the store from others that are put into its file (`application_id`); 0: none yet.
    store: i32,
    pub(super) count: i32,
}

/// What an attribute of the file says.
#[derive(Clone, Copy, Debug)]
struct Note {
    beats: Heartbeats,
    /// The least that the file counts without its log.
    base: i32,
}

/// Counts a heartbeat, in the transaction that is open. `SQLite` keeps 32 bits with a sign: a count
/// that has come to their end stays there.
pub(super) async fn raise(connection: &mut SqliteConnection) -> Result<Heartbeats, Failure> {
    let mut beats = read(&mut *connection).await?;
    beats.count = beats.count.saturating_add(1);
    let set = sqlx::AssertSqlSafe(format!("PRAGMA user_version = {}", beats.count));
    sqlx::raw_sql(set).execute(connection).await?;
    Ok(beats)
}

/// Gives the store an id, if it has none, before its first heartbeat.
pub(super) async fn name(connection: &mut SqliteConnection) -> Result<(), Failure> {
    if read(&mut *connection).await?.store == 0 {
        let id = rand::random::<i32>() | 1;
        let set = sqlx::AssertSqlSafe(format!("PRAGMA application_id = {id}"));
        sqlx::raw_sql(set).execute(connection).await?;
    }
    Ok(())
}

async fn read(connection: &mut SqliteConnection) -> Result<Heartbeats, sqlx::Error> {
    let (store, count) = sqlx::query_as(
        "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version",
    )
    .fetch_one(connection)
    .await?;
    Ok(Heartbeats { store, count })
}

/// Notes a count that is on the disk. Without a note, or with an older one, less is noticed, and
/// nothing is refused for it. `base`: the count that was there at the latest copy of the whole log.
/// Blocks on the file system.
pub(super) fn note(lock: &FileLock, beats: Heartbeats, base: i32) {
    let text = format!("{}:{}:{base}", beats.store, beats.count);
    if let Err(error) = fsetxattr(lock.file(), ATTRIBUTE, text.as_bytes(), XattrFlags::empty()) {
        tracing::debug!(%error, "no attribute can be set on the file of the store");
    }
}

fn noted(lock: &FileLock) -> Option<Note> {
    let mut text = [0; 40];
    let length = fgetxattr(lock.file(), ATTRIBUTE, &mut text[..]).ok()?;
    let mut numbers = std::str::from_utf8(text.get(..length)?).ok()?.split(':');
    let mut next = || numbers.next()?.parse().ok();
    Some(Note {
        beats: Heartbeats {
            store: next()?,
            count: next()?,
        },
        base: next()?,
    })
}

/// The least that the file counts without its log, as it is noted. Blocks on the file system.
pub(super) fn noted_base(lock: &FileLock) -> i32 {
    noted(lock).map_or(0, |noted| noted.base)
}

/// Refuses a file that is not the one that the log beside it belongs to. To be called before `SQLite`
/// reads the log. Blocks on the file system.
pub(super) fn fits_its_log(lock: &FileLock) -> Result<(), StoreError> {
    let Some(noted) = noted(lock) else {
        return Ok(());
    };
    match std::fs::metadata(lock.log()) {
        Ok(log) if log.len() > 0 => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot_look(&lock.log(), &error)),
    }
    let mut header = [0; HEADER];
    match lock.file().read_exact_at(&mut header, 0) {
        // Less than a page is no database: nothing is counted in it.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => header = [0; HEADER],
        read => read.map_err(|error| cannot_look(lock.path(), &error))?,
    }
    let number = |at: usize| {
        let bytes = header.iter().skip(at).take(4);
        bytes
            .fold(0_u32, |number, byte| number << 8 | u32::from(*byte))
            .cast_signed()
    };
    let (count, store) = (number(USER_VERSION), number(APPLICATION_ID));
    if count >= noted.base && (store == noted.beats.store || store == 0) {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "{} is not the file that the log beside it ({}) belongs to: after a crash, an older copy or \
         another store's was put in its place. Read with that log it would be neither of the two, and \
         tokens that were stale would pass. Bring the file back that was there. If there is none, move \
         the log away; then what is left is judged by itself",
        lock.path().display(),
        lock.log().display(),
    )))
}

/// What the database has, and what is noted, if that is more or of another store.
pub(super) async fn missing(
    connection: &mut SqliteConnection,
    lock: &FileLock,
) -> Result<Option<(Heartbeats, Heartbeats)>, StoreError> {
    let found = read(connection)
        .await
        .map_err(|error| error_of(error.into()))?;
    let noted = noted(lock).map(|noted| noted.beats);
    Ok(noted
        .filter(|noted| noted.store != found.store || noted.count > found.count)
        .map(|noted| (found, noted)))
}

/// Refuses a file that has lost commits.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    lock: &FileLock,
) -> Result<(), StoreError> {
    let Some((found, noted)) = missing(connection, lock).await? else {
        return Ok(());
    };
    // A store that has lost its first commits has no id, and is no other one.
    let now = if found.store == noted.store || found.store == 0 {
        format!("has {}", found.count)
    } else {
        "is another store now".to_owned()
    };
    Err(StoreError::Unfit(format!(
        "{} has lost commits that were on the disk: it had {} heartbeats, and {now}. Its \
         log ({}) was deleted or left behind, or an older copy, or another store's, was put in its place. Tokens that were \
         stale would pass. Bring the log or the latest copy back. If there is none: make sure that no \
         older holder is left, or raise the marks after it, and run `fencepost migrate \
         --accept-lost-marks`, which waits first until what is in flight has settled",
        lock.path().display(),
        noted.count,
        lock.log().display(),
    )))
}
