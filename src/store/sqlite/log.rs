//! Writes the log of an earlier run, or of a connection that had an error, to the disk once more
//! before `SQLite` reads it.
//!
//! After a failed fsync Linux marks the pages as clean: they can be read, and are not on the disk.
//! The next fsync does not write them, and succeeds. `SQLite` is safe from that as long as its
//! index of the log lives: frames that were not synced are not in the index, and are overwritten.
//! But a new connection or a new process builds another index, from everything that can be *read*.
//! It would take those frames for committed and append its own. After a power failure the log would
//! end before the gap, and every later commit would be lost.
//!
//! So the log is written once more, byte for byte as it can be read, and synced. If that succeeds,
//! the disk has the bytes that `SQLite` is about to read. If not, the store stays closed.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::file::FileLock;
use crate::store::StoreError;

/// How much is read and written at a time.
const PIECE: usize = 1 << 20;

/// Writes the log once more and syncs it, if there is one. Call it while this process has no
/// connection to the file. Blocks on the file system.
pub(super) fn write_again(lock: &FileLock) -> Result<(), StoreError> {
    let again = || -> io::Result<()> {
        let log = match OpenOptions::new().read(true).write(true).open(lock.log()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            log => log?,
        };
        if log.metadata()?.len() == 0 {
            return Ok(());
        }
        // Conflicts with the locks of every program that has the file open through SQLite. If there
        // is one (a shell, a backup), the index lives, and may be written to.
        match fcntl_lock(lock.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let done = copy_onto_itself(&log);
        fcntl_lock(lock.file(), FlockOperation::Unlock)?;
        done
    };
    again().map_err(|error| {
        StoreError::Connection(format!(
            "{} could not be written to the disk: {error}",
            lock.log().display()
        ))
    })
}

fn copy_onto_itself(file: &File) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let read = match file.read_at(&mut piece, at) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return file.sync_all();
        }
        file.write_all_at(&piece[..read], at)?;
        at += read as u64;
    }
}
