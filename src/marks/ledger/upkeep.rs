//! The ledger's upkeep: what is asked of it between requests, by the keeper, the lane and people.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::Bar;
use super::{Activity, CROWDED_IDLE, Ledger, UnknownOutcome};
use crate::fence::ResourceKey;
use crate::marks::store::EpochRow;

impl Ledger {
    /// Resources at which somebody waits for epochs of other instances.
    #[must_use]
    pub fn waiting_for_others(&self) -> Vec<ResourceKey> {
        self.collect(|key, entry| {
            let foreign = entry.epochs.iter().any(|epoch| !epoch.foreign.is_empty());
            (entry.waiting > 0 && foreign).then(|| key.clone())
        })
    }

    /// Whether epochs of other instances are in the way at this resource. Nobody need wait there right now: who
    /// was refused for them comes back.
    #[must_use]
    pub fn waits_for_others(&self, key: &ResourceKey) -> bool {
        let shard = self.shard(key);
        let entry = shard.active.get(key);
        entry.is_some_and(|entry| entry.epochs.iter().any(|epoch| !epoch.foreign.is_empty()))
    }

    /// Every epoch row of `generation` that is registered here.
    #[must_use]
    pub fn open_rows(&self, generation: u64) -> Vec<EpochRow> {
        self.collect(|_, entry| {
            let rows = entry.epochs.iter();
            let rows = rows.filter(|epoch| epoch.generation == generation);
            Some(rows.map(|epoch| epoch.row.clone()).collect::<Vec<_>>())
        })
        .concat()
    }

    /// The rows of a resource that is registered here, for recording them again.
    #[must_use]
    pub fn rows_of(&self, key: &ResourceKey) -> Vec<EpochRow> {
        let shard = self.shard(key);
        shard.active.get(key).map_or_else(Vec::new, |entry| {
            entry.epochs.iter().map(|epoch| epoch.row.clone()).collect()
        })
    }

    /// Closes epochs without a permit for `idle`, or almost at once while more are open than are to be
    /// remembered.
    pub fn sweep(&self, idle: Duration) {
        let crowded = self.active.load(Ordering::Relaxed) > self.capacity;
        let idle = if crowded { CROWDED_IDLE } else { idle };
        let now = Instant::now();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let keys: Vec<ResourceKey> = shard.active.keys().cloned().collect();
            for key in keys {
                self.within(&mut shard, &key, |entry, drained| {
                    if let Some(Bar::Until(end)) = entry.bar
                        && end <= now
                    {
                        entry.lift();
                    }
                    for epoch in &mut entry.epochs {
                        let unused = now.saturating_duration_since(epoch.used) >= idle;
                        if unused && epoch.idle() && entry.waiting == 0 {
                            epoch.closing = true;
                        }
                    }
                    entry.drained(drained);
                });
            }
        }
    }

    /// Asks every epoch to close that is of an earlier generation than `generation`: they give no permit any more,
    /// and no other one of theirs is registered.
    pub fn retire_before(&self, generation: u64) {
        self.generation.fetch_max(generation, Ordering::AcqRel);
        self.every(|entry, drained| {
            for epoch in &mut entry.epochs {
                epoch.closing |= epoch.generation < generation;
            }
            entry.drained(drained);
            entry.ring();
        });
    }

    /// Every epoch is asked to close: at the end of the run, and where their rows may be lost.
    pub fn retire_all(&self) {
        self.every(|entry, drained| {
            for epoch in &mut entry.epochs {
                epoch.closing = true;
            }
            entry.drained(drained);
        });
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

    /// Wakes everybody who waits, to look again (at the lease, say).
    pub fn ring_all(&self) {
        self.every(|entry, _| entry.ring());
    }

    /// Marks of this resource were lost: nothing of it is let through until [`Self::repaired`].
    pub fn bar(&self, key: &ResourceKey) {
        self.with(key, |entry, _| entry.bar = Some(Bar::Repairing));
    }

    /// The higher mark and the open epochs are on record again; the settling runs from now.
    pub fn repaired(&self, key: &ResourceKey) {
        let until = Instant::now() + self.bar_for();
        self.with(key, |entry, _| entry.bar = Some(Bar::Until(until)));
    }

    /// The mark was overridden while its epochs were off the record: what was known of it is of an era that is over,
    /// and those epochs give no permit any more.
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

    /// What goes on at one resource here.
    #[must_use]
    pub fn activity(&self, key: &ResourceKey) -> Activity {
        let shard = self.shard(key);
        let Some(entry) = shard.active.get(key) else {
            return Activity::default();
        };
        let now = Instant::now();
        Activity {
            in_flight: entry.epochs.iter().map(|epoch| epoch.permits).sum(),
            waiting: entry.waiting,
            unknown: entry
                .epochs
                .iter()
                .flat_map(|epoch| {
                    epoch.unknown.iter().map(|unknown| UnknownOutcome {
                        number: unknown.number,
                        token: epoch.row.token,
                        instance: epoch.row.instance.clone(),
                        settles_in: unknown.until.saturating_duration_since(now),
                    })
                })
                .collect(),
        }
    }

    /// How many resources have an epoch, a waiter or a bar.
    #[cfg(test)]
    pub(crate) fn active(&self) -> usize {
        let counted = self.active.load(Ordering::Relaxed);
        assert_eq!(counted, self.collect(|_, _| Some(())).len());
        counted
    }
}
