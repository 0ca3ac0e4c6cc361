//! [`Sources`]: the files that a configuration was read from, as each was when it was read. So a
//! watcher misses no change in between. A mounted `ConfigMap` or secret changes by swapping a
//! symbolic link, so the target of the link is compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files by path; `None`: there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<PathBuf, Option<Stamp>>);

/// Distinguishes one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

impl Sources {
    /// Notes a file that is about to be read. One that was read before keeps its older stamp.
    pub(super) fn note(&mut self, path: &Path) {
        self.0
            .entry(path.to_owned())
            .or_insert_with(|| Stamp::of(path));
    }

    /// The same files, as they are now.
    #[must_use]
    pub fn now(&self) -> Self {
        let files = self.0.keys();
        Self(files.map(|path| (path.clone(), Stamp::of(path))).collect())
    }

    /// Returns true if a file was there.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(Option::is_some)
    }

    /// These, and those of `other` that are not among them.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        for (path, stamp) in &other.0 {
            self.0.entry(path.clone()).or_insert(*stamp);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_link_is_another_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (one, two, link) = (
            dir.path().join("one"),
            dir.path().join("two"),
            dir.path().join("link"),
        );
        fs::write(&one, "same").expect("it is writable");
        fs::write(&two, "same").expect("it is writable");
        std::os::unix::fs::symlink(&one, &link).expect("it is writable");
        let mut sources = Sources::default();
        sources.note(&link);
        assert!(sources.has(&link));
        assert_eq!(sources, sources.now());
        fs::remove_file(&link).expect("it is there");
        assert!(!sources.now().has(&link));
        std::os::unix::fs::symlink(&two, &link).expect("it is writable");
        assert_ne!(sources, sources.now());
    }

    #[test]
    fn a_file_keeps_the_stamp_of_its_first_reading() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, "a").expect("it is writable");
        let mut sources = Sources::default();
        sources.note(&file);
        fs::write(&file, "longer").expect("it is writable");
        sources.note(&file);
        assert_ne!(sources, sources.now());
        assert_eq!(sources.clone().and(&sources.now()), sources);
    }
}
