//! Row locks of other sessions. A batch that meets one is sent again without the locked rows, so a
//! locked row delays the requests of other resources once.

use std::collections::HashSet;

use tokio::time::Instant;

use super::closes::TICK;
use super::waiter::Waiter;
use crate::routing::ResourceKey;

/// The resources whose row may be locked, and the requests that wait for one.
pub(super) struct RowLocks {
    /// The resources of batches that met a row lock, until their row was seen without one.
    pub suspects: HashSet<ResourceKey>,
    parked: Vec<(ResourceKey, Waiter)>,
    /// When the parked requests are tried again.
    again: Instant,
}

impl RowLocks {
    pub(super) fn new() -> Self {
        Self {
            suspects: HashSet::new(),
            parked: Vec::new(),
            again: Instant::now(),
        }
    }

    /// Takes out the parked requests whose turn it is, at most `most`.
    pub(super) fn unpark(&mut self, most: usize) -> Vec<(ResourceKey, Waiter)> {
        if self.again > Instant::now() {
            return Vec::new();
        }
        let most = most.min(self.parked.len());
        let parked = self.parked.drain(..most);
        parked
            .filter(|(_, waiter)| !waiter.reply.is_closed())
            .collect()
    }

    /// Keeps these until [`TICK`] has passed.
    pub(super) fn park(&mut self, waiting: Vec<(ResourceKey, Waiter)>) {
        if !waiting.is_empty() {
            self.again = Instant::now() + TICK;
            self.parked.extend(waiting);
        }
    }

    /// A batch with this resource met a row lock.
    pub(super) fn suspect(&mut self, key: &ResourceKey) {
        self.suspects.insert(key.clone());
    }
}
