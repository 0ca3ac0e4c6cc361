//! [`Hints`]: the resources that notifications have named, until the store is read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::routing::{ResourceKey, Token};

/// The most marks that one read asks for, and the most hints that wait for it.
pub(super) const MAX_HINTS: usize = 1024;

/// The rows to look at.
#[derive(Default)]
pub(super) struct Hints {
    /// Resources whose mark must be read, each with the newest token that a hint has named. A hint
    /// that was answered meanwhile must not reach a later epoch.
    pub(super) newer: HintQueue<Token>,
    /// Resources at which an older epoch was closed.
    pub(super) closed: HintQueue<()>,
    /// It may be another server that answers now.
    pub(super) server: Notify,
}

/// Resources that hints have named, each with the largest of what its hints say.
pub(super) struct HintQueue<T> {
    /// Short sections, never across an await.
    waiting: Mutex<HashMap<ResourceKey, T>>,
    bell: Notify,
}

impl<T> Default for HintQueue<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            bell: Notify::default(),
        }
    }
}

impl<T: Ord + Copy> HintQueue<T> {
    /// `false`: too many wait already.
    pub(super) fn add(&self, key: ResourceKey, says: T) -> bool {
        let mut waiting = self.lock();
        if waiting.len() >= MAX_HINTS && !waiting.contains_key(&key) {
            return false;
        }
        let largest = waiting.entry(key).or_insert(says);
        *largest = says.max(*largest);
        drop(waiting);
        self.bell.notify_one();
        true
    }

    /// Waits for hints, and takes all of them.
    pub(super) async fn next(&self) -> Vec<(ResourceKey, T)> {
        loop {
            let taken = std::mem::take(&mut *self.lock());
            if !taken.is_empty() {
                return taken.into_iter().collect();
            }
            self.bell.notified().await;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<ResourceKey, T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hints {
    /// Notes that another server may answer now, one that was behind.
    pub(super) fn change_server(&self) {
        self.server.notify_one();
    }

    /// Waits for [`Self::change_server`].
    pub(super) async fn server_changed(&self) {
        self.server.notified().await;
    }
}
