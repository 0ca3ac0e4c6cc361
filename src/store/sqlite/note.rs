//! [`Note`]: what an extended attribute of the database file says of its contents
//! (see [`count`](super::count)).

use std::fs::File;
use std::io;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

pub(super) const ATTRIBUTE: &str = "user.fencepost.heartbeats";

/// The contents of the attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) beats: Heartbeats,
    /// The least that the file counts without its log.
    pub(super) base: i32,
}

/// A store's id and count of heartbeats, in the database or in the note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heartbeats {
    /// The store's id (`application_id`), which other stores in the same file do not have; 0: none
    /// yet.
    pub(super) store: i32,
    pub(super) count: i32,
}

impl Note {
    pub(super) fn read(file: &File) -> Option<Self> {
        let mut text = [0; 40];
        let length = fgetxattr(file, ATTRIBUTE, &mut text[..]).ok()?;
        let mut numbers = std::str::from_utf8(text.get(..length)?).ok()?.split(':');
        let mut next = || numbers.next()?.parse().ok();
        let (store, count, base) = (next()?, next()?, next()?);
        let beats = Heartbeats { store, count };
        Some(Self { beats, base })
    }

    pub(super) fn write(self, file: &File) -> io::Result<()> {
        let Heartbeats { store, count } = self.beats;
        let text = format!("{store}:{count}:{}", self.base);
        fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty())?;
        Ok(())
    }
}
