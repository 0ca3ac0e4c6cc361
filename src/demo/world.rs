//! [`World`]: everything that runs while the stories are played.

use std::path::PathBuf;

use serde_json::Value;

use super::child::Fencepost;
use super::http::client;
use super::legacy::Legacy;
use super::locks::LockService;
use super::screen::Screen;

/// The API, the lock service, fencepost, and the screen.
pub(super) struct World {
    pub api: Legacy,
    pub locks: LockService,
    pub fencepost: Fencepost,
    pub config: PathBuf,
    pub screen: Screen,
}

impl World {
    /// Fresh books, fresh locks, and the story's name.
    pub(super) fn begin(&self, title: &str) {
        self.api.reset();
        self.locks.reset();
        self.screen.heading(title);
    }

    /// Asks the API itself, past everything that stands in front of it.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = client()
            .get(format!("{}{path}", self.api.url))
            .send()
            .await?;
        Ok(answer.error_for_status()?.json().await?)
    }
}
