//! The epoch table: the marks that this instance knows, the epochs that it has open, the requests
//! in flight under each, and those that wait for the store. One state machine: it takes events and
//! the time, and returns what is to be sent. It has no socket and no SQL, and reads a clock only for
//! the log and where a lane waits.
//!
//! - A request: [`EpochTable::recall`], [`EpochTable::ask`], [`EpochTable::enter`],
//!   [`EpochTable::end`].
//! - A statement: [`EpochTable::compose`], [`EpochTable::answered`].
//! - A read of rows: [`EpochTable::looking`], [`EpochTable::looked`].
//! - A heartbeat: [`EpochTable::publish`].
//!
//! Invariants, each kept inside one critical section (a shard's lock):
//!
//! - Only [`EpochTable::enter`] gives a permit. Then the epoch is open in the store and of this
//!   incarnation, no newer mark is known here, no older permit is out here, and no older epoch is
//!   open elsewhere.
//! - An epoch is *in use* if it has a permit or an unknown outcome, if an equal token may still get
//!   one from memory, or if the statement that may open it has no answer yet. What a statement's
//!   list of epochs in use or a publication leaves out is closed in the same critical section that
//!   composes it, and never gives another permit.
//! - About one resource no two statements are on their way.
//! - A known mark only rises. The exception is a new era (an operator's override): the epoch table
//!   then forgets the marks that it refused by.
//! - Forgetting is always safe: the store is asked, under its lock, for everything that is not
//!   here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::fast::RandomState;
use lru::LruCache;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::fencing::refused::{Refused, Undecided};
use crate::locked::locked;
use crate::metrics::{DecidedBy, Limit, Metrics};
use crate::routing::{ResourceKey, Token, stale_by};
use crate::store::{Era, InstanceId, Lane};
use crate::throttle::Throttle;
pub use answer::Entering;
pub use compose::Composed;
use entry::{EpochEntry, UnknownPermit};
pub use errands::Errands;
use ready::Ready;
pub use request::{Answer, Answers, Waiter, Want};
pub use spent::Spend;
pub use verdicts::*;

mod answer;
mod compose;
mod entry;
mod errands;
mod look;
mod memory;
mod publication;
mod ready;
mod repair;
mod request;
mod spent;
#[cfg(test)]
mod tests;
mod upkeep;
mod verdicts;

/// With a million resources each shard has a few thousand, so a walk through one under its lock
/// delays requests by less than a millisecond.
const SHARDS: usize = 256;

/// After so long, a permit from memory has the row read again: a notification that a newer token is
/// durable may have been lost.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

struct Shard {
    /// Resources with an epoch, a waiter, a statement or a quarantine.
    active: HashMap<ResourceKey, EpochEntry, RandomState>,
    /// The active resources at which a request waits for older ones: few, and walked through often.
    waited: HashSet<ResourceKey, RandomState>,
    /// Marks of the others; bounded.
    remembered: LruCache<ResourceKey, (Token, Era)>,
    /// Tokens known to be spent. Bounded in the same way; empty unless a route has `reuse: once`.
    spends: LruCache<ResourceKey, Spend>,
}

/// The arguments of [`EpochTable::new`].
pub struct EpochTableSetup {
    /// How many idle resources are remembered.
    pub capacity: usize,
    /// How long an unknown outcome of this instance counts as in flight.
    pub settle: Duration,
    /// How long a resource is refused after its lost mark was written back.
    pub quarantine_time: Duration,
    /// How many batches the store takes at a time.
    pub lanes: usize,
    /// How many runtimes serve requests.
    pub workers: usize,
    /// Whether other instances can share the marks.
    pub shared: bool,
    pub metrics: Arc<Metrics>,
}

/// See the module's documentation.
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
    /// How often another server may have taken over.
    server: AtomicU64,
    /// The opening that the next statement uses. Given out under the lock of its resource's shard.
    opening: AtomicI64,
    numbers: AtomicU64,
    setup: EpochTableSetup,
    ready: Ready,
    /// Work at the store apart from the statements of requests.
    pub errands: Errands,
    /// A failover loses thousands of marks in the same way.
    losses: Throttle,
}

impl EpochTable {
    #[must_use]
    pub fn new(setup: EpochTableSetup) -> Self {
        let shards = (0..SHARDS)
            .map(|_| {
                Mutex::new(Shard {
                    active: HashMap::default(),
                    waited: HashSet::default(),
                    // Unbounded, so that they grow as they fill. Every insertion keeps the bound.
                    remembered: LruCache::unbounded(),
                    spends: LruCache::unbounded(),
                })
            })
            .collect();
        Self {
            shards,
            hasher: RandomState::default(),
            era: AtomicI64::new(0),
            newest: AtomicI64::new(0),
            adopting: Mutex::new(()),
            incarnation: AtomicU64::new(0),
            server: AtomicU64::new(0),
            opening: AtomicI64::new(1),
            numbers: AtomicU64::new(1),
            ready: Ready::new(setup.lanes, setup.workers),
            errands: Errands::default(),
            losses: Throttle::of_many(10),
            setup,
        }
    }

    /// Another server may answer from now on, which may lack epochs (a failover). All rows of open
    /// epochs are to be read. Until its row was, an epoch gives no permit from memory: another
    /// instance that has noticed the loss waits only as long as a lease may run.
    pub fn another_server(&self) {
        self.server.fetch_add(1, Ordering::AcqRel);
        self.errands.recheck.notify_one();
    }

    fn server(&self) -> u64 {
        self.server.load(Ordering::Acquire)
    }

    /// How many main lanes there are.
    pub fn lanes(&self) -> usize {
        self.ready.lanes()
    }

    /// Decides about a request from memory alone, as far as that is possible. Returns whether its
    /// epoch is open here; else the store is to be asked.
    ///
    /// # Errors
    ///
    /// The token is below a mark that is known here, or the resource is quarantined.
    pub fn recall(
        &self,
        key: &ResourceKey,
        token: Token,
        incarnation: u64,
        now: Instant,
    ) -> Result<bool, Refused> {
        let mut shard = self.shard(key);
        if let Some(entry) = shard.active.get_mut(key) {
            if let Some(known) = stale_by(entry.mark(), token) {
                return Err(Refused::stale(known, DecidedBy::Memory));
            }
            if let Some(left) = entry.quarantined(self.setup.quarantine_time, now) {
                return Err(Refused::Unavailable(Undecided::Repairing(left)));
            }
            return Ok(entry.usable(token, incarnation, self.server()).is_some());
        }
        let remembered = shard.remembered.get(key).map(|(known, _)| *known);
        match stale_by(remembered, token) {
            Some(known) => Err(Refused::stale(known, DecidedBy::Memory)),
            None => Ok(false),
        }
    }

    /// Has the next statement about this resource ask for the request's token. `worker`: the one
    /// that the request came on.
    pub fn ask(&self, key: &ResourceKey, waiter: Waiter, worker: usize) {
        let due = self.with(key, |entry| {
            entry.asking.push(waiter);
            entry.due()
        });
        if due {
            self.ready.push(self.ready.lane(worker), key.clone());
        }
    }

    /// Waits until this lane may have something to send.
    pub async fn due(&self, lane: Lane) {
        self.ready.due(lane).await;
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
        foreign_left: impl Fn(InstanceId) -> Option<Duration>,
        now: Instant,
    ) -> Result<Entered, Refused> {
        let mut shard = self.shard(key);
        let Some(entry) = shard.active.get_mut(key) else {
            return Ok(Entered::NotOpen);
        };
        if let Some(known) = stale_by(entry.mark(), token) {
            return Err(Refused::stale(known, DecidedBy::Barrier));
        }
        if let Some(left) = entry.quarantined(self.setup.quarantine_time, now) {
            return Err(Refused::Unavailable(Undecided::Repairing(left)));
        }
        let Some(index) = entry.usable(token, incarnation, self.server()) else {
            return Ok(Entered::NotOpen);
        };
        let mut clear = entry.epochs[index].foreign.is_empty();
        let mut known_left = Some(Duration::ZERO);
        for foreign in &entry.epochs[index].foreign {
            let left = foreign_left(foreign.instance);
            known_left = known_left.and_then(|known| Some(known.max(left?)));
        }
        for older in entry.epochs.iter().filter(|own| own.epoch.token < token) {
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
        let own = &mut entry.epochs[index];
        own.permits += 1;
        let ticket = Ticket {
            opening: own.epoch.opening,
            instance: own.epoch.instance,
            incarnation: own.incarnation,
            superseded: Arc::clone(&own.superseded),
            held,
        };
        if self.setup.shared && now.saturating_duration_since(own.looked) >= LOOK_AGAIN {
            own.looked = now;
            self.errands.later.add([key.clone()]);
        }
        Ok(Entered::Permit(ticket))
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
        self.with(key, |entry| {
            let (newest, count) = entry
                .newest
                .filter(|(newest, _)| *newest >= token)
                .unwrap_or((token, 0));
            if count >= room.queue {
                return Err(Refused::Limited(Limit::Queue));
            }
            if count > 0 && entry.held() >= room.share {
                return Err(Refused::Limited(Limit::InFlightPerResource));
            }
            entry.newest = Some((newest, count + usize::from(newest == token)));
            entry.waiting += 1;
            Ok(Arc::clone(entry.bell.get_or_insert_with(Arc::default)))
        })
    }

    /// Counts one waiting request less.
    pub fn unqueue(&self, key: &ResourceKey, token: Token) {
        self.with(key, |entry| {
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

    /// A permit has ended. Returns when [`Self::settled`] is due, if its outcome is unknown.
    pub fn end(
        &self,
        key: &ResourceKey,
        ticket: &Ticket,
        ending: Ending,
        now: Instant,
    ) -> Option<Settles> {
        self.with(key, |entry| {
            let own = entry.epoch(ticket.instance, ticket.opening)?;
            own.permits = own.permits.saturating_sub(1);
            own.used = now;
            let mut settles = None;
            if ending == Ending::Unknown {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let until = now + self.setup.settle;
                own.unknown.push(UnknownPermit { number, until });
                self.setup.metrics.series.unknown_outcomes.inc();
                settles = Some(Settles { number, at: until });
            }
            entry.ring();
            settles
        })
    }

    /// An unknown outcome has settled, or an operator knows it now. `false`: there is none of that
    /// number.
    pub fn settled(&self, key: &ResourceKey, number: u64, now: Instant) -> bool {
        self.with(key, |entry| {
            let mut found = false;
            for own in &mut entry.epochs {
                let before = own.unknown.len();
                own.unknown.retain(|unknown| unknown.number != number);
                if own.unknown.len() != before {
                    found = true;
                    own.used = now;
                    self.setup.metrics.series.unknown_outcomes.dec();
                }
            }
            if found {
                entry.ring();
            }
            found
        })
    }

    // --- plumbing ---

    fn with<R>(&self, key: &ResourceKey, f: impl FnOnce(&mut EpochEntry) -> R) -> R {
        let mut shard = self.shard(key);
        self.within(&mut shard, key, f)
    }

    /// Runs `f` on the entry (made if need be), lets its drained epochs go, and the entry with them
    /// if nothing holds it any more.
    fn within<R>(
        &self,
        shard: &mut Shard,
        key: &ResourceKey,
        f: impl FnOnce(&mut EpochEntry) -> R,
    ) -> R {
        let Shard {
            active,
            waited,
            remembered,
            ..
        } = shard;
        let mut place = match active.entry(key.clone()) {
            Entry::Occupied(place) => place,
            Entry::Vacant(place) => place.insert_entry(EpochEntry {
                known: remembered.pop(key),
                ..EpochEntry::default()
            }),
        };
        let entry = place.get_mut();
        let (open, waiting) = (entry.epochs.len(), entry.waiting);
        let result = f(entry);
        if waiting == 0 && entry.waiting > 0 {
            waited.insert(key.clone());
        } else if waiting > 0 && entry.waiting == 0 {
            waited.remove(key);
        }
        if self.tidied(key, entry, open, remembered) {
            place.remove();
        }
        result
    }

    /// Runs `f` on each entry, shard by shard. It may close epochs, and not change who waits.
    fn every(&self, mut f: impl FnMut(&ResourceKey, &mut EpochEntry)) {
        for shard in &self.shards {
            let Shard {
                active, remembered, ..
            } = &mut *locked(shard);
            active.retain(|key, entry| {
                let open = entry.epochs.len();
                f(key, entry);
                !self.tidied(key, entry, open, remembered)
            });
        }
    }

    /// Lets drained epochs go. `true`: nothing holds the entry any more, and its mark is remembered
    /// elsewhere. `open`: how many epochs it had.
    fn tidied(
        &self,
        key: &ResourceKey,
        entry: &mut EpochEntry,
        open: usize,
        remembered: &mut LruCache<ResourceKey, (Token, Era)>,
    ) -> bool {
        let wanted = entry.drained();
        if !wanted.is_empty() {
            let wanted = wanted.into_iter().map(|epoch| (key.clone(), epoch));
            self.errands.cedes.add(wanted);
        }
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let more = number(entry.epochs.len()) - number(open);
        if more != 0 {
            self.setup.metrics.series.open_epochs.add(more);
        }
        if !entry.idle() {
            return false;
        }
        if let Some(known) = entry.known {
            remembered.put(key.clone(), known);
            if remembered.len() > self.setup.capacity.div_ceil(SHARDS) {
                remembered.pop_lru();
            }
        }
        true
    }

    fn shard(&self, key: &ResourceKey) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        locked(&self.shards[index])
    }
}
