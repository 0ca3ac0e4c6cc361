//! [`World`]: everything that runs while the stories are played, and what runs where.

use std::path::PathBuf;

use super::child::Fencepost;
use super::screen::{heading, print};
use super::servers::Servers;

/// The API, the lock, and fencepost.
pub(super) struct World {
    pub servers: Servers,
    pub fencepost: Fencepost,
    pub config: PathBuf,
}

impl World {
    /// Fresh books, a fresh lock, and the story's name.
    pub(super) fn begin(&self, title: &str) {
        self.servers.reset();
        heading(title);
    }

    /// Lists the running servers.
    pub(super) fn introduce(&self) {
        let (api, front) = (&self.servers.api, &self.fencepost.url);
        let pid = self.fencepost.process.id().unwrap_or_default();
        print(&format!(
            "\
A lock is a lease. A holder that stalls loses it, and may still wake up and write. The
lock service numbers its grants. fencepost refuses a number older than the newest that
it has seen, and lets nothing overtake.

  API        {api}   a legacy service that accepts every request
  lock       in this process          leases, and a number with each grant
  fencepost  {front}   a process of its own (pid {pid}), marks in SQLite"
        ));
    }
}
