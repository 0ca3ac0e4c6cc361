//! [`World`]: everything that runs while the stories are played.

use std::path::PathBuf;
use std::sync::Arc;

use super::child::Fencepost;
use super::legacy::Legacy;
use super::locks::LockService;
use super::screen::Screen;

/// The API, the lock service, fencepost, and the screen.
pub(super) struct World {
    pub api: Legacy,
    pub locks: LockService,
    pub fencepost: Fencepost,
    pub config: PathBuf,
    pub screen: Arc<Screen>,
}

impl World {
    /// fencepost's data port, as a URL.
    pub(super) fn front(&self) -> String {
        format!("http://{}", self.fencepost.data)
    }

    /// fencepost's admin port, as a URL.
    pub(super) fn admin(&self) -> String {
        format!("http://{}", self.fencepost.admin)
    }
}
