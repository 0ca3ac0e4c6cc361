//! Row locks of other sessions. A batch that meets one is sent again without the locked rows, so a
//! locked row delays the requests of other resources once.

use std::collections::HashSet;

use tokio::time::Instant;

use super::closes::TICK;
use super::state::Writer;
use super::task::MAX_PER_BATCH;
use super::waiter::Waiter;
use crate::routing::ResourceKey;

/// The resources whose row may be locked, and the requests that wait for one.
pub(super) struct RowLocks {
    /// The resources of batches that met a row lock, until their row was seen without one.
    suspects: HashSet<ResourceKey>,
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

    /// A batch with this resource met a row lock.
    pub(super) fn suspect(&mut self, key: &ResourceKey) {
        self.suspects.insert(key.clone());
    }
}

impl Writer {
    /// Takes the requests whose row is locked out of the queue. They are tried again every
    /// [`TICK`], until their callers leave.
    pub(super) async fn park_locked(&mut self) {
        let now = Instant::now();
        if self.locks.again <= now {
            let room = MAX_PER_BATCH.saturating_sub(self.queue.waiting.len());
            let most = room.min(self.locks.parked.len());
            let parked = self.locks.parked.drain(..most);
            let left = parked.filter(|(_, waiter)| !waiter.reply.is_closed());
            self.queue.waiting.extend(left);
        }
        let suspects = &self.locks.suspects;
        let waiting = self.queue.waiting.iter().map(|(key, _)| key);
        let asked: HashSet<&ResourceKey> = waiting.filter(|key| suspects.contains(*key)).collect();
        let asked: Vec<ResourceKey> = asked.into_iter().cloned().collect();
        if asked.is_empty() {
            return;
        }
        let locked = match self.context.store.locked(&asked).await {
            Ok(locked) => locked,
            Err(error) => {
                self.context.metrics.failed(&error);
                asked.clone()
            }
        };
        for key in asked.iter().filter(|key| !locked.contains(key)) {
            self.locks.suspects.remove(key);
        }
        let waiting = std::mem::take(&mut self.queue.waiting);
        let (parked, waiting): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|(key, _)| locked.contains(key));
        self.queue.waiting.extend(waiting);
        if !parked.is_empty() {
            self.locks.again = now + TICK;
            self.locks.parked.extend(parked);
        }
    }
}
