//! [`World`]: everything that runs while the stories are played, and what runs where.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use super::child::Fencepost;
use super::screen::{heading, print};
use super::servers::{Servers, client};

/// The API, the lock service, and fencepost.
pub(super) struct World {
    pub servers: Servers,
    pub fencepost: Fencepost,
    pub config: PathBuf,
}

impl World {
    /// Fresh books, fresh locks, and the story's name.
    pub(super) fn begin(&self, title: &str) {
        self.servers.reset();
        heading(title);
    }

    /// Asks the API itself, past everything that stands in front of it.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.servers.api);
        let answer = client().get(url).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// The charges and the balance of an account, also in words.
    pub(super) async fn account(&self, path: &str) -> anyhow::Result<(usize, i64, String)> {
        let account = self.get(path).await?;
        let charges = account["ledger"].as_array().map_or(0, Vec::len);
        let balance = account["balance"].as_i64().context("a balance")?;
        let s = if charges == 1 { "" } else { "s" };
        let text = format!("balance {balance} after {charges} charge{s}");
        Ok((charges, balance, text))
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
