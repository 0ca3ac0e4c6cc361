//! The epoch table: the marks that this instance knows, the epochs that it has open, and the
//! requests in flight under each. It is memory only; [`super::writer`] keeps it in step with the
//! store.
//!
//! Invariants, each kept inside one critical section (a shard's lock):
//!
//! - Only [`EpochTable::enter`] gives a permit. Then the epoch is open in the store and of this
//!   incarnation, no newer mark is known here, no older permit is out here, and no older epoch is
//!   open elsewhere.
//! - An epoch that was asked to close never gives another permit. It leaves this map when its last
//!   permit has ended and settled. Only then the writer deletes its row.
//! - A known mark only rises. The exception is a new era (an operator's override): the epoch table
//!   then forgets the marks that it refused by.
//! - Forgetting is always safe: the store is asked, under its lock, for everything that is not
//!   here.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::fencing::refused::Refused;
use crate::metrics::{DecidedBy, StoreMetrics};
use crate::routing::{ResourceKey, Token, stale_by};
use crate::store::{Era, InstanceId};
use entry::{EpochEntry, UnknownPermit};
pub use spent::Spend;
pub use verdicts::*;

mod entry;
mod learned;
mod spent;
#[cfg(test)]
mod tests;
mod upkeep;
mod verdicts;

/// With a million resources each shard has a few thousand, so a walk through one under its lock
/// delays requests by less than a millisecond.
const SHARDS: usize = 256;

/// How long an epoch may be without a permit while more are open than `capacity`. Not zero: the
/// request that opened it must reach the barrier first.
const CROWDED_IDLE: Duration = Duration::from_secs(1);

struct Shard {
    /// Resources with an epoch, a waiter or a quarantine.
    active: HashMap<ResourceKey, EpochEntry>,
    /// The active resources at which a request waits: few, and walked through often.
    waited: HashSet<ResourceKey>,
    /// Marks of the others; bounded.
    remembered: LruCache<ResourceKey, (Token, Era)>,
    /// Tokens known to be spent. Bounded in the same way; empty unless a route has `reuse: once`.
    spends: LruCache<ResourceKey, Spend>,
}

/// The marks, epochs and requests in flight that this instance knows. The invariants are in the
/// module's documentation.
pub struct EpochTable {
    /// Short sections, never across an await.
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// The era of this memory: statements carry it, and judge their answers by it.
    era: AtomicI64,
    /// The latest known era. Ahead of `era` while memory is being cleared: marks that were read
    /// under an earlier era are not learned any more.
    newest: AtomicI64,
    /// Only one task adopts an era at a time, so that none works in an era whose memory is half
    /// cleared.
    adopting: Mutex<()>,
    /// The current incarnation. Epochs of an earlier one protect nothing: this instance was
    /// declared dead under that id.
    incarnation: AtomicU64,
    capacity: usize,
    active: AtomicUsize,
    /// The shard that the next sweep begins with.
    swept: AtomicUsize,
    numbers: AtomicU64,
    settle: Duration,
    /// How long a resource is refused after its lost mark was written back.
    quarantine_time: Duration,
    drained: mpsc::UnboundedSender<Drained>,
    metrics: Arc<StoreMetrics>,
}

impl EpochTable {
    /// `capacity`: how many idle resources are remembered. `settle`: how long an unknown outcome of
    /// this instance counts as in flight. `quarantine_time`: see [`Reckoning::after_loss`]. Drained
    /// epochs go to `drained`.
    ///
    /// [`Reckoning::after_loss`]: crate::store::reckoning::Reckoning::after_loss
    #[must_use]
    pub fn new(
        capacity: usize,
        settle: Duration,
        quarantine_time: Duration,
        drained: mpsc::UnboundedSender<Drained>,
        metrics: Arc<StoreMetrics>,
    ) -> Self {
        let shards = (0..SHARDS)
            .map(|_| {
                Mutex::new(Shard {
                    active: HashMap::new(),
                    waited: HashSet::new(),
                    // Unbounded, so that they grow as they fill. Every insertion keeps the bound.
                    remembered: LruCache::unbounded(),
                    spends: LruCache::unbounded(),
                })
            })
            .collect();
        Self {
            shards,
            hasher: RandomState::new(),
            era: AtomicI64::new(0),
            newest: AtomicI64::new(0),
            adopting: Mutex::new(()),
            incarnation: AtomicU64::new(0),
            capacity,
            active: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
            numbers: AtomicU64::new(1),
            settle,
            quarantine_time,
            drained,
            metrics,
        }
    }

    // --- the request path ---

    /// Decides about a request from memory alone, as far as that is possible.
    ///
    /// # Errors
    ///
    /// The token is below a mark that is known here, or the resource is quarantined.
    pub fn recall(
        &self,
        key: &ResourceKey,
        token: Token,
        incarnation: u64,
    ) -> Result<Recalled, Refused> {
        let mut shard = self.shard(key);
        if let Some(entry) = shard.active.get_mut(key) {
            if let Some(known) = stale_by(entry.known, token) {
                return Err(Refused::stale(known, DecidedBy::Memory));
            }
            if let Some(left) = entry.quarantined(self.quarantine_time) {
                return Err(Refused::repairing(left));
            }
            return Ok(match entry.usable(token, incarnation) {
                Some(_) => Recalled::Open,
                None => Recalled::AskStore,
            });
        }
        let remembered = shard.remembered.get(key).map(|(known, _)| *known);
        match stale_by(remembered, token) {
            Some(known) => Err(Refused::stale(known, DecidedBy::Memory)),
            None => Ok(Recalled::AskStore),
        }
    }

    /// The critical section of the barrier: checks everything a last time and registers the permit,
    /// under one lock.
    ///
    /// # Errors
    ///
    /// The token is below a mark that is known here, or the resource is quarantined.
    pub fn enter(
        &self,
        key: &ResourceKey,
        token: Token,
        incarnation: u64,
        foreign_left: impl Fn(&InstanceId) -> Option<Duration>,
    ) -> Result<Entered, Refused> {
        let mut shard = self.shard(key);
        let Some(entry) = shard.active.get_mut(key) else {
            return Ok(Entered::NotOpen);
        };
        if let Some(known) = stale_by(entry.known, token) {
            return Err(Refused::stale(known, DecidedBy::Barrier));
        }
        if let Some(left) = entry.quarantined(self.quarantine_time) {
            return Err(Refused::repairing(left));
        }
        let Some(index) = entry.usable(token, incarnation) else {
            return Ok(Entered::NotOpen);
        };
        let mut clear = entry.epochs[index].foreign.is_empty();
        let mut known_left = Some(Duration::ZERO);
        for row in &entry.epochs[index].foreign {
            known_left = known_left.and_then(|left| Some(left.max(foreign_left(&row.instance)?)));
        }
        let now = Instant::now();
        for older in entry.epochs.iter().filter(|epoch| epoch.row.token < token) {
            if older.idle() {
                continue;
            }
            clear = false;
            if older.permits > 0 {
                known_left = None;
            }
            for unknown in &older.unknown {
                let left = unknown.until.saturating_duration_since(now);
                known_left = known_left.map(|known| known.max(left));
            }
        }
        if !clear {
            return Ok(Entered::Wait { known_left });
        }
        let held = entry.held() + 1;
        let epoch = &mut entry.epochs[index];
        epoch.permits += 1;
        Ok(Entered::Permit(Ticket {
            opening: epoch.row.opening,
            instance: epoch.row.instance.clone(),
            incarnation: epoch.incarnation,
            superseded: Arc::clone(&epoch.superseded),
            held,
        }))
    }

    /// Counts one more waiting request at this resource, and returns the bell that rings there on
    /// every change. Waiters with tokens older than the newest are superseded and about to leave.
    /// They do not count against [`RequestLimits::queue`].
    ///
    /// # Errors
    /// Where there is no room.
    pub fn queue(
        &self,
        key: &ResourceKey,
        token: Token,
        room: RequestLimits,
    ) -> Result<Arc<Notify>, Refused> {
        self.with(key, |entry, _| {
            let (newest, count) = entry
                .newest
                .filter(|(newest, _)| *newest >= token)
                .unwrap_or((token, 0));
            if count >= room.queue {
                return Err(Refused::QueueFull);
            }
            if count > 0 && entry.held() >= room.share {
                return Err(Refused::ShareTaken);
            }
            entry.newest = Some((newest, count + usize::from(newest == token)));
            entry.waiting += 1;
            Ok(Arc::clone(entry.bell.get_or_insert_with(Arc::default)))
        })
    }

    /// Counts one waiting request less.
    pub fn unqueue(&self, key: &ResourceKey, token: Token) {
        self.with(key, |entry, _| {
            entry.waiting = entry.waiting.saturating_sub(1);
            if let Some((newest, count)) = &mut entry.newest
                && *newest == token
            {
                *count = count.saturating_sub(1);
            }
            if entry.waiting == 0 {
                entry.bell = None;
                entry.newest = None;
            }
        });
    }

    /// A permit has ended.
    pub fn end(self: &Arc<Self>, key: &ResourceKey, ticket: &Ticket, ending: Ending) {
        let settle = self.with(key, |entry, drained| {
            let epoch = entry.epoch(&ticket.instance, ticket.opening)?;
            epoch.permits = epoch.permits.saturating_sub(1);
            epoch.used = Instant::now();
            let mut unknown = None;
            if ending == Ending::Unknown {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let until = Instant::now() + self.settle;
                epoch.unknown.push(UnknownPermit { number, until });
                self.metrics.series.unknown_outcomes.inc();
                unknown = Some((number, until));
            }
            entry.drained(drained);
            entry.ring();
            unknown
        });
        if let Some((number, until)) = settle
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let epoch_table = Arc::clone(self);
            let key = key.clone();
            runtime.spawn(async move {
                tokio::time::sleep_until(until).await;
                epoch_table.settled(&key, number);
            });
        }
    }

    /// An unknown outcome has settled, or an operator knows it now. `false`: there is none of that
    /// number.
    pub fn settled(&self, key: &ResourceKey, number: u64) -> bool {
        self.with(key, |entry, drained| {
            let mut found = false;
            for epoch in &mut entry.epochs {
                let before = epoch.unknown.len();
                epoch.unknown.retain(|unknown| unknown.number != number);
                if epoch.unknown.len() != before {
                    found = true;
                    epoch.used = Instant::now();
                    self.metrics.series.unknown_outcomes.dec();
                }
            }
            if found {
                entry.drained(drained);
                entry.ring();
            }
            found
        })
    }

    // --- plumbing ---

    fn with<R>(
        &self,
        key: &ResourceKey,
        f: impl FnOnce(&mut EpochEntry, &mut Vec<Drained>) -> R,
    ) -> R {
        let mut shard = self.shard(key);
        self.within(&mut shard, key, f)
    }

    /// Runs `f` on the entry (made if need be), hands what it drained to the writer, and lets the
    /// entry go if nothing holds it any more.
    fn within<R>(
        &self,
        shard: &mut Shard,
        key: &ResourceKey,
        f: impl FnOnce(&mut EpochEntry, &mut Vec<Drained>) -> R,
    ) -> R {
        if !shard.active.contains_key(key) {
            let remembered = shard.remembered.pop(key);
            let entry = EpochEntry {
                known: remembered.map(|(known, _)| known),
                known_in: remembered.map_or(0, |(_, era)| era),
                ..EpochEntry::default()
            };
            shard.active.insert(key.clone(), entry);
            self.active.fetch_add(1, Ordering::Relaxed);
        }
        let Shard {
            active,
            waited,
            remembered,
            ..
        } = shard;
        let Some(entry) = active.get_mut(key) else {
            unreachable!("it was inserted above, under the same lock")
        };
        let (open, waiting) = (entry.epochs.len(), entry.waiting);
        let mut drained = Vec::new();
        let result = f(entry, &mut drained);
        if waiting == 0 && entry.waiting > 0 {
            waited.insert(key.clone());
        } else if waiting > 0 && entry.waiting == 0 {
            waited.remove(key);
        }
        self.count_open(open, entry.epochs.len());
        if entry.idle() {
            let known = entry.known.map(|known| (known, entry.known_in));
            active.remove(key);
            self.active.fetch_sub(1, Ordering::Relaxed);
            self.remember(remembered, key, known);
        }
        self.hand_over(drained);
        result
    }

    /// Runs `f` on each entry of a shard. It may drain epochs, and not change who waits.
    fn each(&self, shard: &mut Shard, mut f: impl FnMut(&mut EpochEntry, &mut Vec<Drained>)) {
        let Shard {
            active, remembered, ..
        } = shard;
        let mut drained = Vec::new();
        active.retain(|key, entry| {
            let open = entry.epochs.len();
            f(entry, &mut drained);
            self.count_open(open, entry.epochs.len());
            if entry.idle() {
                let known = entry.known.map(|known| (known, entry.known_in));
                self.active.fetch_sub(1, Ordering::Relaxed);
                self.remember(remembered, key, known);
                return false;
            }
            true
        });
        self.hand_over(drained);
    }

    fn every(&self, mut f: impl FnMut(&mut EpochEntry, &mut Vec<Drained>)) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            self.each(&mut shard, &mut f);
        }
    }

    fn count_open(&self, before: usize, after: usize) {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        if before != after {
            self.metrics
                .series
                .open_epochs
                .add(number(after) - number(before));
        }
    }

    /// The mark of a resource that nothing else holds any more.
    fn remember(
        &self,
        remembered: &mut LruCache<ResourceKey, (Token, Era)>,
        key: &ResourceKey,
        known: Option<(Token, Era)>,
    ) {
        if let Some(known) = known {
            remembered.put(key.clone(), known);
            if remembered.len() > self.capacity.div_ceil(SHARDS) {
                remembered.pop_lru();
            }
        }
    }

    fn hand_over(&self, drained: Vec<Drained>) {
        for row in drained {
            // The writer is gone only when the process ends; the row stays recorded then.
            let _ = self.drained.send(row);
        }
    }

    fn shard(&self, key: &ResourceKey) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
