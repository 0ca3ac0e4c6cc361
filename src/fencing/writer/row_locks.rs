//! Row locks of other sessions. A batch that meets one is sent again without the locked rows, so a
//! locked row delays the requests of other resources once.
//!
//! A row that another session has inserted and not committed cannot be seen. So if the batch meets a
//! lock again, each of its resources is asked for in a batch of its own, until one has passed.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use super::closes::TICK;
use super::waiter::Waiter;
use crate::routing::ResourceKey;

/// The most suspects that are known at once.
const MAX_SUSPECTS: usize = 16 << 10;

/// A request that waits, and its resource.
type Waiting = (ResourceKey, Waiter);

/// The resources whose row may be locked, and the requests that wait for one.
pub(super) struct RowLocks {
    /// The resources of batches that met a row lock, until a batch with them has passed. `true`: it
    /// met one again, and they are asked for alone.
    suspects: HashMap<ResourceKey, bool>,
    parked: Vec<Waiting>,
    /// When the parked requests are tried again.
    again: Instant,
    alone: VecDeque<Waiting>,
    /// The last batch was one of a single suspect.
    was_alone: bool,
}

impl RowLocks {
    pub(super) fn new() -> Self {
        Self {
            suspects: HashMap::new(),
            parked: Vec::new(),
            again: Instant::now(),
            alone: VecDeque::new(),
            was_alone: false,
        }
    }

    /// Takes out the parked requests whose turn it is, at most `most`.
    pub(super) fn unpark(&mut self, most: usize) -> Vec<Waiting> {
        if self.again > Instant::now() {
            return Vec::new();
        }
        self.again = Instant::now() + TICK;
        let most = most.min(self.parked.len());
        let parked = self.parked.drain(..most);
        parked
            .filter(|(_, waiter)| !waiter.reply.is_closed())
            .collect()
    }

    /// Keeps these until [`TICK`] has passed.
    pub(super) fn park(&mut self, waiting: impl IntoIterator<Item = Waiting>) {
        if self.parked.is_empty() {
            self.again = Instant::now() + TICK;
        }
        self.parked.extend(waiting);
    }

    pub(super) fn is_suspect(&self, key: &ResourceKey) -> bool {
        self.suspects.contains_key(key)
    }

    /// A batch with this resource met a row lock. `true`: it was asked for alone, and so it is the
    /// cause.
    pub(super) fn suspect(&mut self, key: &ResourceKey) -> bool {
        if let Some(alone) = self.suspects.get_mut(key) {
            return std::mem::replace(alone, true);
        }
        if self.suspects.len() == MAX_SUSPECTS {
            self.suspects.clear();
        }
        self.suspects.insert(key.clone(), false);
        false
    }

    /// A batch with this resource met no row lock.
    pub(super) fn passed(&mut self, key: &ResourceKey) {
        if !self.suspects.is_empty() {
            self.suspects.remove(key);
        }
    }

    /// Takes a request if its resource is to be asked for alone.
    pub(super) fn take_alone(&mut self, (key, waiter): Waiting) -> Option<Waiting> {
        if self.suspects.get(&key) == Some(&true) {
            self.alone.push_back((key, waiter));
            return None;
        }
        Some((key, waiter))
    }

    /// Requests wait to be asked for alone.
    pub(super) fn has_alone(&self) -> bool {
        !self.alone.is_empty()
    }

    /// Leaves the requests of one suspect as the next batch, and returns the others. In turns with
    /// the batches of all others.
    pub(super) fn one_alone(&mut self, waiting: &mut VecDeque<Waiting>) -> VecDeque<Waiting> {
        self.was_alone = !self.alone.is_empty() && (waiting.is_empty() || !self.was_alone);
        if !self.was_alone {
            return VecDeque::new();
        }
        let one = self.alone.front().map(|(key, _)| key.clone());
        let alone = std::mem::take(&mut self.alone).into_iter();
        let (now, later) = alone.partition(|(key, _)| Some(key) == one.as_ref());
        self.alone = later;
        std::mem::replace(waiting, now)
    }
}
