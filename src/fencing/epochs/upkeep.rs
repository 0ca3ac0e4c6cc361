//! The epoch table's upkeep between requests, for the membership task, the writer and operators.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{EpochEntry, OwnEpoch, Quarantine};
use super::{CROWDED_IDLE, EpochTable, ResourceActivity, SHARDS};
use crate::routing::ResourceKey;
use crate::store::{EpochRow, InstanceId, Opening};

/// How many epochs are closed under one lock.
const MAX_SWEPT: usize = 512;

impl EpochTable {
    /// Resources at which a request waits for epochs of other instances.
    #[must_use]
    pub fn waiting_for_others(&self) -> Vec<ResourceKey> {
        self.waited(|entry| entry.epochs.iter().any(|epoch| !epoch.foreign.is_empty()))
    }

    /// Resources at which a request waits for epochs of this other instance.
    #[must_use]
    pub fn waiting_for(&self, instance: &InstanceId) -> Vec<ResourceKey> {
        self.waited(|entry| entry.is_behind(instance))
    }

    /// Resources at which epochs of this other instance are in the way and no request waits now, at
    /// most `most`. A client that was refused there may come back. Searches all open epochs.
    #[must_use]
    pub fn refused_for(&self, instance: &InstanceId, most: usize) -> Vec<ResourceKey> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let active = shard.active.iter();
            let fitting = active.filter(|(_, entry)| entry.waiting == 0);
            let fitting = fitting.filter(|(_, entry)| entry.is_behind(instance));
            let room = most - all.len();
            all.extend(fitting.map(|(key, _)| key.clone()).take(room));
            if all.len() == most {
                break;
            }
        }
        all
    }

    /// The resources at which a request waits and `f` holds.
    fn waited(&self, f: impl Fn(&EpochEntry) -> bool) -> Vec<ResourceKey> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = shard.waited.iter();
            let fitting = waited.filter(|key| shard.active.get(*key).is_some_and(&f));
            all.extend(fitting.cloned());
        }
        all
    }

    /// Whether epochs of other instances are in the way at this resource, even if no request waits
    /// there now: a client that was refused may come back.
    #[must_use]
    pub fn waits_for_others(&self, key: &ResourceKey) -> bool {
        let shard = self.shard(key);
        let entry = shard.active.get(key);
        entry.is_some_and(|entry| entry.epochs.iter().any(|epoch| !epoch.foreign.is_empty()))
    }

    /// The number of shards of the table, for [`Self::open_rows`].
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Every epoch row of `incarnation` that is registered in this shard and must be in the store.
    #[must_use]
    pub fn open_rows(&self, shard: usize, incarnation: u64) -> Vec<EpochRow> {
        let Some(shard) = self.shards.get(shard) else {
            return Vec::new();
        };
        let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let epochs = shard.active.values().flat_map(|entry| &entry.epochs);
        let rows = epochs.filter(|epoch| epoch.incarnation == incarnation && !epoch.ceding);
        rows.map(|epoch| epoch.row.clone()).collect()
    }

    /// The rows of a resource that is registered here, for recording them again.
    #[must_use]
    pub fn rows_of(&self, key: &ResourceKey) -> Vec<EpochRow> {
        let shard = self.shard(key);
        shard.active.get(key).map_or_else(Vec::new, |entry| {
            let kept = entry.epochs.iter().filter(|epoch| !epoch.ceding);
            kept.map(|epoch| epoch.row.clone()).collect()
        })
    }

    /// Closes epochs that had no permit for `idle`, in some of the shards. After `of` calls every
    /// shard has had its turn; after a fifth of that while the table is over its capacity.
    pub async fn sweep(&self, idle: Duration, of: usize) {
        let of = if self.crowded() { of.div_ceil(5) } else { of };
        for _ in 0..SHARDS.div_ceil(of.max(1)) {
            let next = self.swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
            while self.sweep_shard(next, idle) {
                // Lets requests use this shard.
                tokio::task::yield_now().await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn crowded(&self) -> bool {
        self.active.load(Ordering::Relaxed) > self.capacity
    }

    /// Closes some of the epochs of one shard that are due. Returns whether there may be more.
    ///
    /// While the table is over its capacity, the surplus is due, the longest unused first.
    fn sweep_shard(&self, shard: usize, idle: Duration) -> bool {
        let now = Instant::now();
        let unused = |epoch: &OwnEpoch| now.saturating_duration_since(epoch.used);
        let mut shard = self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut least = idle;
        if self.crowded() {
            let too_many = shard.active.len().saturating_sub(self.capacity / SHARDS);
            let entries = shard.active.values().filter(|entry| entry.waiting == 0);
            let mut spans: Vec<Duration> = entries
                .filter(|entry| entry.epochs.iter().all(OwnEpoch::idle))
                .filter_map(|entry| entry.epochs.iter().map(unused).min())
                .filter(|span| *span >= CROWDED_IDLE)
                .collect();
            if let Some(last) = too_many.min(spans.len()).checked_sub(1) {
                let (_, span, _) = spans.select_nth_unstable_by(last, |one, two| two.cmp(one));
                least = idle.min(*span);
            }
        }
        let mut closed = 0;
        self.each(&mut shard, |entry, drained| {
            if let Some(Quarantine::Until(end)) = entry.quarantine
                && end <= now
            {
                entry.lift();
            }
            if entry.waiting == 0 && closed < MAX_SWEPT {
                for epoch in &mut entry.epochs {
                    epoch.closing |= epoch.idle() && unused(epoch) >= least;
                }
            }
            let before = drained.len();
            entry.drained(drained);
            closed += drained.len() - before;
        });
        closed >= MAX_SWEPT
    }

    /// Asks every epoch of an incarnation before `incarnation` to close. They give no further
    /// permit, and no other epoch of those incarnations is registered.
    pub fn retire_before(&self, incarnation: u64) {
        self.incarnation.fetch_max(incarnation, Ordering::AcqRel);
        self.every(|entry, drained| {
            for epoch in &mut entry.epochs {
                epoch.closing |= epoch.incarnation < incarnation;
            }
            entry.drained(drained);
            entry.ring();
        });
    }

    /// Asks every epoch to close, because their rows may be lost.
    pub fn retire_all(&self) {
        self.every(|entry, drained| {
            for epoch in &mut entry.epochs {
                epoch.closing = true;
            }
            entry.drained(drained);
        });
    }

    /// Ends the run: asks every epoch to close. Returns the openings of those that have something
    /// in flight or settling. The others are forgotten, and their rows are no longer used.
    #[must_use]
    pub fn finish(&self) -> Vec<Opening> {
        let mut busy = Vec::new();
        self.every(|entry, _| {
            entry.epochs.retain_mut(|epoch| {
                epoch.closing = true;
                !epoch.idle()
            });
            busy.extend(entry.epochs.iter().map(|epoch| epoch.row.opening));
            entry.ring();
        });
        busy
    }

    /// Asks the idle epochs of one resource to close.
    pub fn release(&self, key: &ResourceKey) {
        self.with(key, |entry, drained| {
            for epoch in entry.epochs.iter_mut().filter(|epoch| epoch.idle()) {
                epoch.closing = true;
            }
            entry.drained(drained);
        });
    }

    /// Whether an epoch of the resource has anything in flight or settling here.
    #[must_use]
    pub fn busy(&self, key: &ResourceKey) -> bool {
        let shard = self.shard(key);
        let entry = shard.active.get(key);
        entry.is_some_and(|entry| entry.epochs.iter().any(|epoch| !epoch.idle()))
    }

    /// Wakes all waiting requests, so that they check every condition again (the lease, for
    /// example).
    pub fn ring_all(&self) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in shard.waited.iter().filter_map(|key| shard.active.get(key)) {
                entry.ring();
            }
        }
    }

    /// Refuses this resource, whose mark was lost, until [`Self::repaired`] and the settling after
    /// it.
    pub fn quarantine(&self, key: &ResourceKey) {
        self.with(key, |entry, _| {
            entry.quarantine = Some(Quarantine::Repairing);
        });
    }

    /// The higher mark and the open epochs are in the store again. The settling runs from now.
    pub fn repaired(&self, key: &ResourceKey) {
        let until = Instant::now() + self.quarantine_time;
        self.with(key, |entry, _| {
            entry.quarantine = Some(Quarantine::Until(until));
        });
    }

    /// The mark was overridden while its epochs were missing from the store. The known mark is of
    /// an era that is over, and those epochs give no further permit.
    pub fn overruled(&self, key: &ResourceKey) {
        self.forget_spent(key);
        self.with(key, |entry, drained| {
            entry.known = None;
            for epoch in &mut entry.epochs {
                epoch.closing = true;
                epoch.superseded.cancel();
            }
            entry.drained(drained);
            entry.ring();
        });
    }

    /// The activity at one resource here.
    #[must_use]
    pub fn activity(&self, key: &ResourceKey) -> ResourceActivity {
        let entry = self.shard(key);
        let entry = entry.active.get(key);
        entry.map_or_else(ResourceActivity::default, EpochEntry::activity)
    }

    /// The activity at each resource where `wanted` holds. Goes through all open epochs, one shard
    /// after the other.
    pub fn activities(
        &self,
        mut wanted: impl FnMut(&ResourceActivity) -> bool,
    ) -> Vec<(ResourceKey, ResourceActivity)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, entry) in &shard.active {
                let activity = entry.activity();
                if wanted(&activity) {
                    all.push((key.clone(), activity));
                }
            }
        }
        all
    }

    /// How many resources have an epoch, a waiter or a quarantine.
    #[cfg(test)]
    pub(crate) fn active(&self) -> usize {
        let counted = self.active.load(Ordering::Relaxed);
        let shards = self.shards.iter();
        let lens = shards.map(|shard| shard.lock().expect("not poisoned").active.len());
        assert_eq!(counted, lens.sum::<usize>());
        counted
    }
}
