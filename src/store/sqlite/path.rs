//! The path to the database file, and the refusal of a file that is unfit for a store before it is
//! opened.

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statfs, statx};

use crate::config::Create;
use crate::store::StoreError;

/// The file systems in memory, by their `f_type` (statfs(2)). /dev and /dev/shm are tmpfs.
const IN_MEMORY: [(i128, &str); 3] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x9584_58f6, "hugetlbfs"),
];

/// The file system of a container's own layer, among others.
const OVERLAY: i128 = 0x794c_7630;

/// The path as it was configured, from the root.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    std::path::absolute(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => no_file(path),
        _ => StoreError::Unfit(format!("{}: {error}", path.display())),
    })
}

/// The path of the file, or of the file to create, without symbolic links. So its companions are
/// where `SQLite` expects them.
pub(super) fn resolve(path: &Path, create: Create) -> Result<PathBuf, StoreError> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let name = path.file_name().ok_or_else(|| no_file(path))?;
    let parent = directory(path.parent().unwrap_or(Path::new("/")), create)?;
    let path = parent.join(name);
    if path.is_symlink() {
        return Err(StoreError::Unfit(format!(
            "{} is a symbolic link that leads to no file: name the file itself",
            path.display()
        )));
    }
    Ok(path)
}

/// Fails if the file is on a file system in memory, or is to be created there, unless `volatile`
/// allows it. Creates nothing. Blocks on the file system.
pub(super) fn keeps_marks(path: &Path, create: Create, volatile: bool) -> Result<(), StoreError> {
    let path = resolve(&absolute(path)?, create)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let found = statfs(parent).map_err(|error| {
        StoreError::Unfit(format!("the directory {}: {error}", parent.display()))
    })?;
    let kind = i128::from(found.f_type);
    if kind == OVERLAY {
        tracing::warn!(
            "{} is on an overlay file system. A container's own layer is one, and its marks go with \
             the container: mount a volume there",
            path.display()
        );
    }
    let Some((_, name)) = IN_MEMORY.iter().find(|(magic, _)| *magic == kind) else {
        return Ok(());
    };
    let what = format!("{} is on a file system in memory ({name})", path.display());
    if volatile {
        tracing::warn!("{what}: its marks are lost when the machine or the mount goes");
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "{what}: its marks would be lost when the machine or the mount goes, and stale tokens would \
         pass. Put it on a disk; `store.volatile: true` allows it, for a trial"
    )))
}

fn directory(path: &Path, create: Create) -> Result<PathBuf, StoreError> {
    path.canonicalize().map_err(|error| {
        StoreError::Unfit(match error.kind() {
            io::ErrorKind::NotFound if create == Create::Never => format!(
                "the directory {} for the store does not exist, and store.create is `never`: is \
                 the volume of the marks mounted?",
                path.display()
            ),
            io::ErrorKind::NotFound => format!(
                "the directory {} for the store does not exist: create it",
                path.display()
            ),
            _ => format!("the directory {}: {error}", path.display()),
        })
    })
}

fn no_file(path: &Path) -> StoreError {
    StoreError::Unfit(format!(
        "{:?} names no file: write sqlite:<file>",
        path.display()
    ))
}

/// The log is beside the file. If only the file is mounted, the log is on another file system:
/// often a container's own layer, which is deleted with the container.
pub(super) fn is_mounted_with_its_log(path: &Path, file: &File) -> Result<(), StoreError> {
    let root = StatxAttributes::MOUNT_ROOT;
    let mounted_alone = match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(root) => {
            found.stx_attributes.contains(root)
        }
        // Before Linux 5.8, or behind a filter of system calls.
        _ => fs::read("/proc/self/mountinfo").is_ok_and(|mounts| is_mount_point(&mounts, path)),
    };
    if !mounted_alone {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "{} is mounted by itself, without its directory (`docker -v` or `subPath` with a file): the \
         log beside it, which has the latest marks, would go with the container. Mount a directory, \
         with the file in it",
        path.display()
    )))
}

/// True if the kernel's list of mounts has one at this path (`proc_pid_mountinfo(5)`, field 5).
fn is_mount_point(mounts: &[u8], path: &Path) -> bool {
    let mut name = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => name.extend(format!("\\{byte:03o}").bytes()),
            _ => name.push(byte),
        }
    }
    let mut lines = mounts.split(|byte| *byte == b'\n');
    lines.any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_found_in_the_kernels_list() {
        let mounts = b"22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
            30 22 0:5 / /data rw - tmpfs tmpfs rw\n\
            31 30 8:1 /home/a/b.db /data/my\\040marks.db rw master:1 - ext4 /dev/sda1 rw\n";
        for (path, mounted) in [
            ("/data/my marks.db", true),
            ("/data", true),
            ("/data/my", false),
            ("/data/marks.db", false),
            ("/home/a/b.db", false),
        ] {
            assert_eq!(is_mount_point(mounts, Path::new(path)), mounted, "{path}");
        }
    }
}
