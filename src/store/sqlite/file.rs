//! [`FileLock`]: one process per database file, held for the whole life of the store.
//!
//! The lock is an `flock`, on a separate descriptor that is opened before `SQLite` opens the file.
//! A frozen holder keeps it; a dead one has lost it.
//!
//! The lock is on the file, and a second process opens the *path*. So the lock alone excludes no
//! process once the file was moved, replaced or deleted. [`FileLock::check`] checks that the path
//! still leads to the locked file, through the configured links too, and that the log beside it is
//! still the one that `SQLite` has open. A store that was lost once stays lost for the rest of the
//! run: a file that comes back is the same file, but another process may have served under its path
//! in between.
//!
//! `SQLite` itself uses POSIX locks, which a process loses for a file as soon as it closes *any*
//! descriptor of it. So a process opens one store, and no other descriptor of its file while `SQLite`
//! has it. The checks go by name and open nothing.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock};

use super::note::Note;
use super::path;
use crate::config::Create;
use crate::locked::locked;
use crate::store::StoreError;

/// Device and inode: identify a file, whatever its name.
type InodeId = (u64, u64);

/// The files that `SQLite` keeps beside the file: its write-ahead log, and the index of that.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// The lock on one database file. Dropping it frees the file for another process.
#[derive(Debug)]
#[must_use]
pub(super) struct FileLock {
    /// Absolute and without links, so that neither a change of directory nor `SQLite`'s `file:`
    /// syntax can make it mean another file.
    path: PathBuf,
    /// The path from the configuration, which another process would use: absolute, maybe with
    /// links.
    configured: PathBuf,
    id: InodeId,
    file: File,
    /// The companions while a connection has them open. Held during a check: a connection that
    /// closes deletes them, and the check must not take that for another process's act.
    companions: Mutex<Option<[InodeId; 2]>>,
    /// The note that this run goes by. Another program may change the file's: `cp -a` and `rsync -X`
    /// bring along that of the copy. Held while it is written.
    pub(super) noted: Mutex<Option<Note>>,
    /// Why this store is unfit for the rest of the run.
    lost: OnceLock<String>,
    /// How many connections of this process may have the file open.
    pub(super) connections: AtomicUsize,
}

impl FileLock {
    /// Locks the file, and creates it first if it is missing and `create` allows it. Blocks on the
    /// file system.
    pub(super) fn take(path: &Path, create: Create) -> Result<Self, StoreError> {
        let configured = path::absolute(path)?;
        let path = path::resolve(&configured, create)?;
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(StoreError::Unfit(format!(
                    "{} is a directory: name a file in it",
                    path.display()
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => may_be_made(&path, create)?,
            // If it cannot be looked at, it cannot be opened either.
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create == Create::IfMissing)
            // SQLite gives its companions the same mode.
            .mode(0o600)
            .truncate(false)
            .open(&path)
            .map_err(|error| cannot_open(&path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Unfit(format!(
                    "{} is in use by another fencepost. Only one process can use a file: stop the \
                     other one (a frozen one keeps the file), or let several share a Postgres",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => {
                return Err(StoreError::Unfit(format!(
                    "{} cannot be locked ({error}): put it on a local file system",
                    path.display()
                )));
            }
        }
        let metadata = file
            .metadata()
            .map_err(|error| cannot_open(&path, &error))?;
        let id = file_id(&metadata);
        let leads_there = |path: &Path| matches!(id_through(path), Ok(Some(found)) if found == id);
        // Between opening and locking, the file may have been replaced. Then no name leads to it.
        if !leads_there(&path) || !leads_there(&configured) {
            return Err(StoreError::Unfit(format!(
                "{} was replaced while it was opened: stop the program that does it, and start again",
                configured.display()
            )));
        }
        if metadata.len() == 0 {
            may_be_made(&path, create)?;
        }
        path::is_mounted_with_its_log(&path, &file)?;
        let lock = Self {
            path,
            configured,
            id,
            noted: Mutex::new(Note::read(&file)),
            file,
            companions: Mutex::default(),
            lost: OnceLock::new(),
            connections: AtomicUsize::new(0),
        };
        let synced = lock.sync_directory();
        synced.map_err(|error| cannot_open(&lock.path, &error))?;
        Ok(lock)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that is locked.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The write-ahead log.
    pub(super) fn log(&self) -> PathBuf {
        beside(&self.path, COMPANIONS[0])
    }

    /// Blocks on the file system.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.synced(self.file.sync_all())
    }

    /// A new name survives a crash only once its directory is synced.
    pub(super) fn sync_directory(&self) -> io::Result<()> {
        let directory = self.path.parent().map(File::open);
        directory.map_or(Ok(()), |opened| opened?.sync_all())
    }

    pub(super) fn synced(&self, done: io::Result<()>) -> Result<(), StoreError> {
        done.map_err(|error| {
            let path = self.path.display();
            StoreError::Connection(format!("{path} could not be written to the disk: {error}"))
        })
    }

    /// A connection has opened the companions: from now on they are checked, too. Blocks on the
    /// file system.
    pub(super) fn opened(&self) -> Result<(), StoreError> {
        let mut companions = locked(&self.companions);
        let mut ids = [(0, 0); 2];
        for (id, suffix) in ids.iter_mut().zip(COMPANIONS) {
            let name = beside(&self.path, suffix);
            *id = id_at(&name)?.ok_or_else(|| {
                let why = format!("{} was removed while it was opened", name.display());
                StoreError::Connection(why)
            })?;
        }
        *companions = Some(ids);
        Ok(())
    }

    /// The connection is about to be closed, and may delete its companions.
    pub(super) fn closing(&self) {
        *locked(&self.companions) = None;
    }

    /// Why the store is unfit for the rest of the run, if it is.
    pub(super) fn lost(&self) -> Option<StoreError> {
        self.lost.get().map(|why| StoreError::Unfit(why.clone()))
    }

    /// Checks that the path still leads to the locked file, and that the log beside it is the one
    /// that is written. Blocks on the file system, and opens nothing.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if let Some(error) = self.lost() {
            return Err(error);
        }
        self.look()?.map_or(Ok(()), |what| Err(self.lose(&what)))
    }

    /// Makes the store unfit for the rest of the run. `what`: what happened to which file.
    pub(super) fn lose(&self, what: &str) -> StoreError {
        let why = self.lost.get_or_init(|| {
            format!(
                "{what} while fencepost had it open: nothing fenced is forwarded until fencepost \
                 is started again on the right file"
            )
        });
        StoreError::Unfit(why.clone())
    }

    /// Describes what happened to the file or its companions; `None`: they are in their places.
    fn look(&self) -> Result<Option<String>, StoreError> {
        let found = id_at(&self.path)?;
        if found != Some(self.id) {
            let links = self.file.metadata().map_or(0, |metadata| metadata.nlink());
            let what = match (links, found) {
                (0, None) => "was deleted",
                (0, Some(_)) => "was replaced by another file",
                (_, None) => "was moved away",
                (_, Some(_)) => "was moved away, and another file is in its place,",
            };
            return Ok(Some(format!("{} {what}", self.path.display())));
        }
        if self.configured != self.path && id_through(&self.configured)? != Some(self.id) {
            return Ok(Some(format!(
                "{}, by which {} was opened, was made to lead elsewhere",
                self.configured.display(),
                self.path.display()
            )));
        }
        let companions = locked(&self.companions);
        for (id, suffix) in companions.iter().flatten().zip(COMPANIONS) {
            let name = beside(&self.path, suffix);
            let found = id_at(&name)?;
            if found != Some(*id) {
                let what = if found.is_some() {
                    "replaced"
                } else {
                    "moved or deleted"
                };
                return Ok(Some(format!("{} was {what}", name.display())));
            }
        }
        Ok(None)
    }
}

/// Runs work that blocks on the file system on a thread that serves no requests.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| StoreError::Connection(error.to_string()))?
}

/// Fails if no store may be created here, where there is none, or only an empty file.
fn may_be_made(path: &Path, create: Create) -> Result<(), StoreError> {
    if create == Create::Never {
        return Err(not_there(path, "is not there, or empty"));
    }
    for suffix in COMPANIONS {
        let name = beside(path, suffix);
        if id_at(&name)?.is_some() {
            return Err(StoreError::Unfit(format!(
                "{} is not there, or empty, but its {} is: the store was moved or deleted, and the \
                 latest marks may be in what it left. Put the file back beside it. Where its marks \
                 are not needed any more, delete what ends in -wal and -shm as well",
                path.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

/// The refusal to create a store if `store.create` is `never`.
pub(super) fn not_there(path: &Path, what: &str) -> StoreError {
    StoreError::Unfit(format!(
        "{} {what}, and store.create is `never`: is the right volume mounted at the right place? A \
         new store, without any marks, is made by `fencepost migrate`, or with `store.create: \
         if-missing`",
        path.display()
    ))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn file_id(metadata: &Metadata) -> InodeId {
    (metadata.dev(), metadata.ino())
}

/// The file at a path. Does not follow a symbolic link, whose target has its companions elsewhere.
fn id_at(path: &Path) -> Result<Option<InodeId>, StoreError> {
    id_of(path, std::fs::symlink_metadata(path))
}

/// The file that a path leads to, through links.
fn id_through(path: &Path) -> Result<Option<InodeId>, StoreError> {
    id_of(path, std::fs::metadata(path))
}

fn id_of(path: &Path, found: io::Result<Metadata>) -> Result<Option<InodeId>, StoreError> {
    match found {
        Ok(metadata) => Ok(Some(file_id(&metadata))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(cannot_look(path, &error)),
    }
}

fn cannot_open(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unfit(format!(
        "{} cannot be opened ({error}): fencepost must be able to read and write it, and to make \
         files next to it",
        path.display()
    ))
}

/// It is not known whether the file is in its place, so the store is not given up.
pub(super) fn cannot_look(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Connection(format!("{} cannot be checked: {error}", path.display()))
}
