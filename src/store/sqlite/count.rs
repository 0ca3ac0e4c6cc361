//! The count of heartbeats, by which a start notices that commits are missing, and the count of
//! transactions, by which a run notices it.
//!
//! `SQLite` has the latest commits only in the log beside the file. They are lost if the log is
//! deleted after a crash, or left behind when the file is copied. The file alone is still a whole
//! database, only an older one.
//!
//! So each heartbeat raises a number in the database (`user_version`) within its transaction. Once
//! that is on the disk, the same number is noted in an extended attribute of the file, which needs
//! no log. So a database never has less than the note, unless it has lost commits. Commits between
//! a copy of the log into the file and the next heartbeat, a second later at most, are not covered.
//!
//! The note belongs to the file, not to the store, and stays when another store is copied or
//! restored into the file. So the store has an id, in the database and in the note. A store with
//! another id is refused as well: the marks of the noted store are gone.
//!
//! `SQLite` ties no log to its file. If a crash has left the log, and an older copy or another
//! store is put in the file's place, `SQLite` would mix the two, and the log would bring the latest
//! count along. So the note has a second number, the count of the file alone. A file that has less
//! is not opened with a log.
//!
//! A program that opens the file after a crash (the `sqlite3` shell) may copy and delete the log,
//! and copies the number as well. A backup, or a copy without attributes, has no note, and is not
//! judged; nor is a file on a file system without attributes. A copy with its attributes, put into
//! the file's place while no proxy runs, is judged by its own note.
//!
//! Another program can write into the file of a running proxy through `SQLite` itself, and put an
//! older copy there (`.restore`, the backup API). So each transaction of a run counts itself in the
//! table `commits`, and reads the number. If it is not the next one, nothing is believed, the
//! store is unfit, and the note is raised past every number that the file may have. Backups,
//! checkpoints and tables of other programs leave the number as it is.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use sqlx::SqliteConnection;

use super::file::{FileLock, blocking, cannot_look};
use super::note::{Heartbeats, Note};
use crate::locked::locked;
use crate::store::StoreError;
use crate::store::rows::Failure;

/// The offsets of the two numbers (<https://sqlite.org/fileformat2.html>, section 1.3), and the
/// length of the part of the file that has them.
const USER_VERSION: usize = 60;
const APPLICATION_ID: usize = 68;
const HEADER: usize = 72;

/// Counts a heartbeat, in the open transaction. `SQLite` keeps 32 bits with a sign: the count stops
/// at the greatest number.
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

/// Counts a transaction, in the open one, and returns its number.
pub(super) async fn next(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("UPDATE commits SET count = count + 1 RETURNING count")
        .fetch_one(connection)
        .await
}

/// The number of the latest transaction.
pub(super) async fn latest(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT count FROM commits")
        .fetch_one(connection)
        .await
}

/// The count of a note for which every start refuses the file.
const RAISED: i32 = i32::MAX;

/// Notes a count that is on the disk. Blocks on the file system.
pub(super) fn note(lock: &FileLock, beats: Heartbeats) -> Result<(), StoreError> {
    let base = base(lock)?;
    let mut noted = locked(&lock.noted);
    if noted.is_none_or(|note| note.beats.count < RAISED) {
        let note = noted.insert(Note { beats, base });
        // If this fails, less is noticed later, and nothing is refused.
        let _ = note.write(lock.file());
    }
    Ok(())
}

/// Remembers that the file has more without its log now; the next heartbeat notes it. Blocks on the
/// file system.
pub(super) fn copied(lock: &FileLock) -> Result<(), StoreError> {
    let base = base(lock)?;
    if let Some(note) = &mut *locked(&lock.noted) {
        note.base = note.base.max(base);
    }
    Ok(())
}

/// The most that the file has had without its log. What is not known of it yet is synced: another
/// program may have copied it, and whether `SQLite` synced it is not known.
fn base(lock: &FileLock) -> Result<i32, StoreError> {
    let base = locked(&lock.noted).map_or(0, |note| note.base);
    let alone = alone(lock)?.count;
    if alone > base {
        lock.sync()?;
    }
    Ok(base.max(alone))
}

/// Checks that the file is in its place, and that no older copy was written over it, other than
/// through `SQLite`: such a copy counts less than the file did. Call it before the log is copied
/// into the file too, which would hide that.
pub(super) async fn in_place(lock: &Arc<FileLock>) -> Result<(), StoreError> {
    let lock = Arc::clone(lock);
    blocking(move || {
        let _ = stay_raised(&lock);
        lock.check()?;
        match fits_its_log(&lock) {
            Err(StoreError::Unfit(_)) => Err(overwritten(&lock, false)),
            fits => fits,
        }
    })
    .await
}

/// The same for a file that was open and is not in its place any more, nor its log. Blocks on the
/// file system.
pub(super) fn not_overwritten(lock: &FileLock) -> Result<(), StoreError> {
    if has_what_was_noted(lock)? {
        return Ok(());
    }
    Err(overwritten(lock, false))
}

/// Makes the store unfit, since the file lacks commits of this run, and every later start refuse the
/// file as it is. `with_log`: the log was written by the same program, and is read with the file. The
/// log may have heartbeats that are not noted yet. Blocks on the file system.
pub(super) fn overwritten(lock: &FileLock, with_log: bool) -> StoreError {
    let lost = lock.lose(&format!(
        "{} was overwritten by another program (a backup that was restored into it?)",
        lock.path().display()
    ));
    let mut noted = locked(&lock.noted);
    let note = noted.get_or_insert_default();
    if note.beats.count < RAISED {
        note.beats.count = RAISED;
        note.base = if with_log { 0 } else { note.base };
    }
    drop(noted);
    if let Err(error) = stay_raised(lock) {
        tracing::error!(%error, "the next start may not refuse the file");
    }
    lost
}

/// Writes a raised note, and again where another one is: a copy that is still being written brings
/// its own at its end. Blocks on the file system.
fn stay_raised(lock: &FileLock) -> io::Result<()> {
    let noted = locked(&lock.noted);
    let raised = noted.filter(|note| note.beats.count == RAISED && lock.lost().is_some());
    match raised {
        Some(note) if Note::read(lock.file()) != raised => {
            note.write(lock.file())?;
            lock.file().sync_all()
        }
        _ => Ok(()),
    }
}

/// Refuses a file that the log beside it does not belong to. Call it before `SQLite` reads the log.
/// Blocks on the file system.
pub(super) fn fits_its_log(lock: &FileLock) -> Result<(), StoreError> {
    match std::fs::metadata(lock.log()) {
        Ok(log) if log.len() > 0 => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot_look(&lock.log(), &error)),
    }
    if has_what_was_noted(lock)? {
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

/// Checks that the file without its log is the noted store, and has no less than the note says.
/// Blocks on the file system.
fn has_what_was_noted(lock: &FileLock) -> Result<bool, StoreError> {
    let Some(noted) = *locked(&lock.noted) else {
        return Ok(true);
    };
    let alone = alone(lock)?;
    let store = alone.store == noted.beats.store || alone.store == 0;
    Ok(alone.count >= noted.base && store)
}

/// What the file has without its log. Blocks on the file system.
fn alone(lock: &FileLock) -> Result<Heartbeats, StoreError> {
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
    Ok(Heartbeats {
        store: number(APPLICATION_ID),
        count: number(USER_VERSION),
    })
}

/// The count of the database and that of the note, if the note has more or is of another store.
pub(super) async fn missing(
    connection: &mut SqliteConnection,
    lock: &FileLock,
) -> Result<Option<(Heartbeats, Heartbeats)>, Failure> {
    let found = read(connection).await?;
    let noted = locked(&lock.noted).map(|noted| noted.beats);
    Ok(noted
        .filter(|noted| noted.store != found.store || noted.count > found.count)
        .map(|noted| (found, noted)))
}

/// Refuses a file that has lost commits.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    lock: &FileLock,
) -> Result<(), Failure> {
    let Some((found, noted)) = missing(connection, lock).await? else {
        return Ok(());
    };
    // A store that has lost its first commits has no id, and is the same one.
    let now = if found.store == noted.store || found.store == 0 {
        format!("has {}", found.count)
    } else {
        "is another store now".to_owned()
    };
    let had = match noted.count {
        RAISED => "more".to_owned(),
        count => count.to_string(),
    };
    Err(StoreError::Unfit(format!(
        "{} has lost commits that were on the disk: it had {had} heartbeats, and {now}. Its \
         log ({}) was deleted or left behind, or an older copy, or another store's, was put in its place. Tokens that were \
         stale would pass. Bring the log or the latest copy back. If there is none: make sure that no \
         older holder is left, or raise the marks after it, and run `fencepost migrate \
         --accept-lost-marks`, which waits first until what is in flight has settled",
        lock.path().display(),
        lock.log().display(),
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Create;

    #[test]
    fn a_heartbeat_that_is_noted_late_does_not_make_an_overwritten_file_fit() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = FileLock::take(&dir.path().join("marks.db"), Create::IfMissing);
        let lock = lock.expect("a new file");
        let beats = |count| Heartbeats { store: 1, count };
        note(&lock, beats(5)).expect("a note");
        let noted = || Note::read(lock.file());
        if noted().is_none() {
            // A file system without attributes.
            return;
        }
        // The log has the sixth already.
        let _unfit = overwritten(&lock, false);
        note(&lock, beats(6)).expect("nothing is wrong");
        assert_eq!(noted().expect("a note").beats.count, RAISED);
    }
}
