//! [`World`]: everything that runs while the stories are played, and what runs where.

use std::path::PathBuf;

use serde_json::Value;

use super::child::Fencepost;
use super::screen::{Screen, print};
use super::servers::{Servers, client};

/// The API, the lock service, fencepost, and the screen.
pub(super) struct World {
    pub servers: Servers,
    pub fencepost: Fencepost,
    pub config: PathBuf,
    pub screen: Screen,
}

impl World {
    /// Fresh books, fresh locks, and the story's name.
    pub(super) fn begin(&self, title: &str) {
        self.servers.reset();
        self.screen.heading(title);
    }

    /// Asks the API itself, past everything that stands in front of it.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.servers.api);
        let answer = client().get(url).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Lists the running servers.
    pub(super) fn introduce(&self) {
        let (api, locks, front) = (&self.servers.api, &self.servers.locks, &self.fencepost.url);
        let pid = self.fencepost.process.id().unwrap_or_default();
        print(&format!(
            "\
A lock is a lease. A holder that stalls loses it, and may still wake up and write. The
lock service numbers its grants. fencepost refuses a number older than the newest that
it has seen, and lets nothing overtake.

  API        {api}   a legacy service that accepts every request
  lock       {locks}   leases, and a number with each grant
  fencepost  {front}   a process of its own (pid {pid}), marks in SQLite"
        ));
    }
}
