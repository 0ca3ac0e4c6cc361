//! [`Note`]: what an extended attribute of the database file says of its contents
//! (see [`count`](super::count)).

use std::fs::File;
use std::io;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

pub(super) const ATTRIBUTE: &str = "user.fencepost.heartbeats";

/// The contents of the attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) beats: Heartbeats,
    /// The least that the file counts without its log.
    pub(super) base: i32,
}

/// A store's id and count of heartbeats, in the database or in the note.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heartbeats {
    /// The store's id (`application_id`), which other stores in the same file do not have; 0: none
    /// yet.
    pub(super) store: i32,
    pub(super) count: i32,
}

/// The note that this run goes by. Another program may change the file's: `cp -a` and `rsync -X`
/// bring along that of the copy.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) latest: Option<Note>,
    /// It was raised for every later start to refuse the file.
    pub(super) raised: bool,
}

impl Noted {
    pub(super) fn of(file: &File) -> Self {
        Self {
            latest: read(file),
            raised: false,
        }
    }
}

impl Note {
    pub(super) fn write(self, file: &File) -> io::Result<()> {
        let text = format!("{}:{}:{}", self.beats.store, self.beats.count, self.base);
        fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty())?;
        Ok(())
    }
}

fn read(file: &File) -> Option<Note> {
    let mut text = [0; 40];
    let length = fgetxattr(file, ATTRIBUTE, &mut text[..]).ok()?;
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
