//! [`Errands`]: work at the store apart from the statements of requests. The membership task does it;
//! with Postgres over other connections than theirs, so that no request waits for it.
//!
//! All but a repair may be dropped: a look is asked for again while a request waits, an epoch that is
//! not ceded is over with a publication to come, and a notification is a hint.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Mutex;

use tokio::sync::Notify;

use crate::locked::locked;
use crate::routing::ResourceKey;
use crate::store::{Epoch, Notification};

/// The most that one statement takes.
const TOGETHER: usize = 1024;
/// The most that wait in one queue.
const MOST: usize = 16 * TOGETHER;

/// See the module's documentation.
#[derive(Default)]
pub struct Errands {
    /// Rows to read.
    pub looks: ErrandQueue<ResourceKey>,
    /// Rows to read some time, many together.
    pub later: ErrandQueue<ResourceKey>,
    /// Epochs that other instances wait for, and that give no permit any more.
    pub cedes: ErrandQueue<(ResourceKey, Epoch)>,
    pub notifications: ErrandQueue<Notification>,
    /// Resources of which the store has lost something. Never dropped: each is refused until it was
    /// repaired.
    pub repairs: ErrandQueue<ResourceKey>,
    /// All rows of open epochs are to be read: another server may answer now, one that was behind.
    pub recheck: Notify,
}

/// A queue without duplicates or order.
pub struct ErrandQueue<T> {
    /// Short sections, never across an await.
    waiting: Mutex<HashSet<T>>,
    bell: Notify,
}

impl<T> Default for ErrandQueue<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            bell: Notify::new(),
        }
    }
}

impl<T: Eq + Hash + Clone> ErrandQueue<T> {
    /// Adds these, as far as there is room.
    pub fn add(&self, errands: impl IntoIterator<Item = T>) {
        let mut waiting = locked(&self.waiting);
        let before = waiting.len();
        for errand in errands {
            if waiting.len() >= MOST {
                break;
            }
            waiting.insert(errand);
        }
        let more = waiting.len() > before;
        drop(waiting);
        if more {
            self.bell.notify_one();
        }
    }

    /// Adds these, whether there is room or not.
    pub fn must(&self, errands: impl IntoIterator<Item = T>) {
        locked(&self.waiting).extend(errands);
        self.bell.notify_one();
    }

    /// Waits for errands, and takes as many as one statement may have.
    pub async fn next(&self) -> Vec<T> {
        loop {
            let taken = self.take(TOGETHER);
            if !taken.is_empty() {
                return taken;
            }
            self.bell.notified().await;
        }
    }

    /// Takes at most `most`.
    pub fn take(&self, most: usize) -> Vec<T> {
        let mut waiting = locked(&self.waiting);
        if waiting.len() <= most {
            return std::mem::take(&mut *waiting).into_iter().collect();
        }
        let taken: Vec<T> = waiting.iter().take(most).cloned().collect();
        for errand in &taken {
            waiting.remove(errand);
        }
        taken
    }
}
