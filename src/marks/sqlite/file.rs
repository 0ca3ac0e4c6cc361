//! [`FileLock`]: one process per database file, held for the whole life of the store.
//!
//! It is an `flock`, on a descriptor of its own that is opened before `SQLite` opens the file. A
//! frozen holder keeps it; a dead one has lost it.
//!
//! `SQLite` itself uses POSIX locks, which a process loses for a file as soon as it closes *any*
//! descriptor of it. So no other descriptor of the file is ever opened here while `SQLite` has it:
//! a second store on the same file within one process is refused by a look at the list below,
//! before anything is opened.

use std::collections::HashSet;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::marks::store::StoreError;

/// Device and inode: what a file is, whatever it is called.
type FileId = (u64, u64);

/// The files that this process has open as stores. Short sections, no await within.
static OPEN: Mutex<Option<HashSet<FileId>>> = Mutex::new(None);

/// The lock on one database file. Dropped: free for another process.
#[derive(Debug)]
#[must_use]
pub(super) struct FileLock {
    /// Absolute, so that neither a change of directory nor `SQLite`'s `file:` syntax can make it
    /// mean another file.
    path: PathBuf,
    id: FileId,
    _file: File,
}

impl FileLock {
    /// Makes the file if it is not there, and locks it. Blocks on the file system.
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        let path = absolute(path)?;
        // Between opening and locking, the file may have been replaced; then the lock is on
        // nothing that a name leads to.
        for _ in 0..10 {
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            let open = open.get_or_insert_default();
            match std::fs::metadata(&path) {
                Ok(metadata) if open.contains(&file_id(&metadata)) => return Err(in_use(&path)),
                Ok(metadata) if metadata.is_dir() => {
                    return Err(StoreError::Unfit(format!(
                        "{} is a directory: name a file in it",
                        path.display()
                    )));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(cannot_open(&path, &error)),
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|error| cannot_open(&path, &error))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(in_use(&path)),
                Err(TryLockError::Error(error)) => {
                    return Err(StoreError::Unfit(format!(
                        "{} cannot be locked ({error}): put it on a local file system",
                        path.display()
                    )));
                }
            }
            let id = file
                .metadata()
                .map(|metadata| file_id(&metadata))
                .map_err(|error| cannot_open(&path, &error))?;
            if std::fs::metadata(&path).is_ok_and(|now| file_id(&now) == id) {
                sync_directory(&path).map_err(|error| cannot_open(&path, &error))?;
                open.insert(id);
                return Ok(Self {
                    path,
                    id,
                    _file: file,
                });
            }
        }
        Err(StoreError::Unfit(format!(
            "{} is being replaced over and over: stop what does it",
            path.display()
        )))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to the file that is locked. If somebody has moved another one
    /// there, a second process may be at work on it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if file_id(&metadata) == self.id => Ok(()),
            _ => Err(StoreError::Unfit(format!(
                "{} was removed or replaced while fencepost had it open: start again on the right \
                 file",
                self.path.display()
            ))),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = open.as_mut() {
            open.remove(&self.id);
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    // Through symbolic links, so that the file's companions (-wal, -shm) lie where SQLite looks.
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let name = path.file_name().ok_or_else(|| {
        StoreError::Unfit(format!(
            "{:?} names no file: write sqlite:<file>",
            path.display()
        ))
    })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|error| {
        StoreError::Unfit(match error.kind() {
            ErrorKind::NotFound => format!(
                "the directory {} for the store does not exist: create it",
                parent.display()
            ),
            _ => format!("the directory {}: {error}", parent.display()),
        })
    })?;
    Ok(parent.join(name))
}

/// The name of a file that was just made survives a crash only once its directory is synced.
fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn file_id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

fn in_use(path: &Path) -> StoreError {
    StoreError::Unfit(format!(
        "{} is in use by another fencepost: one process per file; stop the other one (a frozen \
         one keeps the file), or let several share a Postgres",
        path.display()
    ))
}

fn cannot_open(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unfit(format!(
        "{} cannot be opened ({error}): fencepost must be able to read and write it, and to make \
         files next to it",
        path.display()
    ))
}
