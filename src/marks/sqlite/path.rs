//! The way to the database file: links that lead to it, and what makes a file unfit for a store
//! before it is opened.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::config::settings::Create;
use crate::marks::store::StoreError;

/// As many links as Linux follows.
const MOST_LINKS: u32 = 40;

/// The path as it was configured, from the root.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    std::path::absolute(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => no_file(path),
        _ => StoreError::Unfit(format!("{}: {error}", path.display())),
    })
}

/// Where the file is, or is to be made: through all symbolic links, so that its companions lie
/// where `SQLite` looks.
pub(super) fn resolve(path: &Path, create: Create) -> Result<PathBuf, StoreError> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let name = path.file_name().ok_or_else(|| no_file(&path))?;
        let parent = directory(path.parent().unwrap_or(Path::new("/")), create)?;
        path = parent.join(name);
        match fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            // No link, or nothing at all. What is wrong otherwise shows when it is opened.
            Err(_) => return Ok(path),
        }
    }
    Err(StoreError::Unfit(format!(
        "{} leads from link to link without an end",
        path.display()
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

/// The log goes by the name of the file. Under another name of it the latest commits would be
/// missed.
pub(super) fn has_one_name(path: &Path, metadata: &Metadata) -> Result<(), StoreError> {
    let links = metadata.nlink();
    if links <= 1 {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "{} has {links} names (hard links): what was committed last may be in a log beside another \
         one of them. Keep the name that fencepost uses, and delete the others",
        path.display()
    )))
}
