//! The epoch table: what this instance knows of marks, which epochs it has open, and what is in flight
//! under each. It is memory only; [`super::writer`] keeps it in step with the store.
//!
//! Invariants, each kept inside one critical section (a shard's lock):
//!
//! - A permit is given only by [`EpochTable::enter`]: the epoch is open in the store and of this generation,
//!   no newer mark is known here, no older permit is out here, and no older epoch is open elsewhere.
//! - An epoch that was asked to close never gives another permit. It leaves this map when its
//!   last permit has ended and settled, and only then its row is handed to the writer for deletion.
//! - A known mark only rises, but for a new era (an operator's override), which makes the epoch table
//!   forget what it refused from memory.
//! - Forgetting is always safe: what is not here is asked of the store, under its lock.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use prometheus::IntGauge;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

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

/// So many that each, of a million resources, holds a few thousand: what walks through one under its lock holds
/// requests up for less than a millisecond.
const SHARDS: usize = 256;

/// How long an epoch may be without a permit while more are open than are to be remembered. Not zero: the
/// request that opened it must get to the barrier first.
const CROWDED_IDLE: Duration = Duration::from_secs(1);

struct Shard {
    /// Resources with an epoch, a waiter or a bar.
    active: HashMap<ResourceKey, EpochEntry>,
    /// Those of them at which somebody waits: few, and looked through often.
    waited: HashSet<ResourceKey>,
    /// Marks of the others; bounded.
    remembered: LruCache<ResourceKey, (Token, Era)>,
    /// Tokens known to be spent; as many, and few where no route has `reuse: once`.
    spends: LruCache<ResourceKey, Spend>,
}

/// See the module's page.
pub struct EpochTable {
    /// Short sections, never across an await.
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// The era that memory is of: what statements carry, and judge their answers by.
    era: AtomicI64,
    /// The latest era heard of. Ahead of `era` while memory is being cleared: what was read under an earlier one
    /// is not learned any more.
    newest: AtomicI64,
    /// One adopts at a time, so that nobody works in an era whose memory is half cleared.
    adopting: Mutex<()>,
    /// Epochs of an earlier rejoin protect nothing: this instance was declared dead under that id.
    generation: AtomicU64,
    capacity: usize,
    active: AtomicUsize,
    /// The shard that the next sweep begins with.
    swept: AtomicUsize,
    numbers: AtomicU64,
    settle: Duration,
    /// See [`Self::bar_for`].
    bar: Duration,
    drained: mpsc::UnboundedSender<Drained>,
    open_epochs: IntGauge,
    unknown_outcomes: IntGauge,
}

impl EpochTable {
    /// `capacity`: how many idle resources are remembered. `settle`: how long an unknown outcome of this
    /// instance's own counts as in flight. `bar`: see [`Reckoning::after_loss`]. Epochs that are done go to
    /// `drained`.
    ///
    /// [`Reckoning::after_loss`]: crate::store::reckoning::Reckoning::after_loss
    #[must_use]
    pub fn new(
        capacity: usize,
        settle: Duration,
        bar: Duration,
        drained: mpsc::UnboundedSender<Drained>,
        open_epochs: IntGauge,
        unknown_outcomes: IntGauge,
    ) -> Self {
        let shards = (0..SHARDS)
            .map(|_| {
                Mutex::new(Shard {
                    active: HashMap::new(),
                    waited: HashSet::new(),
                    // Unbounded, so that they grow as they fill; whatever puts something in keeps the bound.
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
            generation: AtomicU64::new(0),
            capacity,
            active: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
            numbers: AtomicU64::new(1),
            settle,
            bar,
            drained,
            open_epochs,
            unknown_outcomes,
        }
    }

    // --- the request path ---

    /// What memory alone can say about a request.
    #[must_use]
    pub fn look(&self, key: &ResourceKey, token: Token, generation: u64) -> Look {
        let mut shard = self.shard(key);
        if let Some(entry) = shard.active.get_mut(key) {
            if let Some(known) = stale_by(entry.known, token) {
                return Look::Stale(known);
            }
            if let Some(left) = entry.barred(self.bar_for()) {
                return Look::Barred(left);
            }
            return match entry.usable(token, generation) {
                Some(_) => Look::Open,
                None => Look::Ask,
            };
        }
        let remembered = shard.remembered.get(key).map(|(known, _)| *known);
        stale_by(remembered, token).map_or(Look::Ask, Look::Stale)
    }

    /// The critical section of the barrier: the last look at everything, and the registration of the
    /// permit, under one lock.
    #[must_use]
    pub fn enter(
        &self,
        key: &ResourceKey,
        token: Token,
        generation: u64,
        foreign_left: impl Fn(&InstanceId) -> Option<Duration>,
    ) -> Entered {
        let mut shard = self.shard(key);
        let Some(entry) = shard.active.get_mut(key) else {
            return Entered::NotOpen;
        };
        if let Some(known) = stale_by(entry.known, token) {
            return Entered::Superseded(known);
        }
        if let Some(left) = entry.barred(self.bar_for()) {
            return Entered::Barred(left);
        }
        let Some(index) = entry.usable(token, generation) else {
            return Entered::NotOpen;
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
            return Entered::Wait { known_left };
        }
        let held = entry.held() + 1;
        let epoch = &mut entry.epochs[index];
        epoch.permits += 1;
        Entered::Permit(Ticket {
            opening: epoch.row.opening,
            instance: epoch.row.instance.clone(),
            generation: epoch.generation,
            superseded: Arc::clone(&epoch.superseded),
            held,
        })
    }

    /// One more waits at this resource: the bell that rings there on every change. Waiters with older
    /// tokens than the newest are superseded, and on their way out: they do not count against
    /// [`RequestLimits::queue`].
    ///
    /// # Errors
    /// Where there is no room.
    pub fn queue(
        &self,
        key: &ResourceKey,
        token: Token,
        room: RequestLimits,
    ) -> Result<Arc<Notify>, QueueLimit> {
        self.with(key, |entry, _| {
            let (newest, count) = entry
                .newest
                .filter(|(newest, _)| *newest >= token)
                .unwrap_or((token, 0));
            if count >= room.queue {
                return Err(QueueLimit::Queue);
            }
            if count > 0 && entry.held() >= room.share {
                return Err(QueueLimit::Share);
            }
            entry.newest = Some((newest, count + usize::from(newest == token)));
            entry.waiting += 1;
            Ok(Arc::clone(entry.bell.get_or_insert_with(Arc::default)))
        })
    }

    /// One less waits at this resource.
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
                self.unknown_outcomes.inc();
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

    /// An unknown outcome has settled, or an operator knows it now. `false`: there is none of that number.
    pub fn settled(&self, key: &ResourceKey, number: u64) -> bool {
        self.with(key, |entry, drained| {
            let mut found = false;
            for epoch in &mut entry.epochs {
                let before = epoch.unknown.len();
                epoch.unknown.retain(|unknown| unknown.number != number);
                if epoch.unknown.len() != before {
                    found = true;
                    epoch.used = Instant::now();
                    self.unknown_outcomes.dec();
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

    /// Runs `f` on the entry (made if need be), hands what it drained to the writer, and lets the entry go
    /// if nothing holds it any more.
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
            self.open_epochs.add(number(after) - number(before));
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
