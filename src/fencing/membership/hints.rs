//! [`Hints`]: the resources that notifications have named, until they are looked at.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::routing::ResourceKey;

/// The most marks that one read asks for, and the most hints that wait for it.
pub(super) const MOST: usize = 1024;

/// The rows to look at.
#[derive(Default)]
pub(super) struct Hints {
    /// Resources whose mark is to be read.
    pub(super) newer: HintQueue,
    /// Resources of which an older epoch was closed.
    pub(super) closed: HintQueue,
    /// The same, where nobody waits for one yet: the answer that says so may still be under way to the writer.
    pub(super) early: HintQueue,
    /// It may be another server that answers now.
    pub(super) server: Notify,
}

/// Resources that hints were given of.
#[derive(Default)]
pub(super) struct HintQueue {
    /// Short sections, never across an await.
    waiting: Mutex<HashSet<ResourceKey>>,
    bell: Notify,
}

impl HintQueue {
    /// `false`: too many wait already.
    pub(super) fn add(&self, key: ResourceKey) -> bool {
        let mut waiting = self.lock();
        if waiting.len() >= MOST && !waiting.contains(&key) {
            return false;
        }
        waiting.insert(key);
        drop(waiting);
        self.bell.notify_one();
        true
    }

    /// All that wait, once there are any.
    pub(super) async fn next(&self) -> Vec<ResourceKey> {
        loop {
            let taken = std::mem::take(&mut *self.lock());
            if !taken.is_empty() {
                return taken.into_iter().collect();
            }
            self.bell.notified().await;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashSet<ResourceKey>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hints {
    /// It may be another server that answers now, one that was behind.
    pub(super) fn change_server(&self) {
        self.server.notify_one();
    }

    /// Waits for [`Self::change_server`].
    pub(super) async fn server_changed(&self) {
        self.server.notified().await;
    }
}
