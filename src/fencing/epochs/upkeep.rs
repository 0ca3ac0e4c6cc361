//! The epoch table as the membership task and operators see it.

use tokio::time::Instant;

use super::entry::EpochEntry;
use super::{EpochTable, ResourceActivity};
use crate::locked::locked;
use crate::routing::{ResourceKey, Token};
use crate::store::{Epoch, InstanceId, Notification};

impl EpochTable {
    /// For the owners of the epochs that a request waits for here.
    pub fn waited_for(&self) -> Vec<Notification> {
        let mut all = Vec::new();
        self.waited(|key, entry| {
            let notify = |(epoch, waits): (Epoch, _)| Notification::to(epoch.instance, key, waits);
            all.extend(entry.foreign().map(notify));
        });
        all
    }

    /// Wakes all waiting requests, so that they check every condition again (the lease, for
    /// example).
    pub fn ring_all(&self) {
        self.waited(|_, entry| entry.ring());
    }

    /// Runs `f` on each entry at which a request waits.
    fn waited(&self, mut f: impl FnMut(&ResourceKey, &EpochEntry)) {
        for shard in &self.shards {
            let shard = locked(shard);
            for key in &shard.waited {
                if let Some(entry) = shard.active.get(key) {
                    f(key, entry);
                }
            }
        }
    }

    /// Closes the idle epochs of one resource, unless a request waits under one. Returns those of
    /// these epochs, which are open in the store, that this instance does not use: they may be
    /// ceded.
    pub fn release(&self, key: &ResourceKey, me: InstanceId, open: &[Epoch]) -> Vec<Epoch> {
        self.with(key, |entry| {
            let waits = entry.waiting > 0;
            entry.close(|own| own.idle() && !waits);
            entry.drained();
            entry.unused(me, open).collect()
        })
    }

    /// The activity at one resource here.
    pub fn activity(&self, key: &ResourceKey, now: Instant) -> ResourceActivity {
        let shard = self.shard(key);
        let entry = shard.active.get(key);
        entry.map_or_else(ResourceActivity::default, |entry| entry.activity(now))
    }

    /// The tokens of the older requests that a request waits for here, in no order.
    pub fn older(&self, key: &ResourceKey, token: Token) -> Vec<Token> {
        let shard = self.shard(key);
        let Some(entry) = shard.active.get(key).filter(|entry| entry.waiting > 0) else {
            return Vec::new();
        };
        let own = entry.epochs.iter().filter(|own| !own.idle());
        let own = own.map(|own| own.epoch.token).filter(|own| *own < token);
        let foreign = entry.foreign().filter(|(_, waits)| *waits == token);
        own.chain(foreign.map(|(epoch, _)| epoch.token)).collect()
    }

    /// The activity at each resource where `wanted` holds. Goes through all open epochs, one shard
    /// after the other.
    pub fn activities(
        &self,
        now: Instant,
        mut wanted: impl FnMut(&ResourceActivity) -> bool,
    ) -> Vec<(ResourceKey, ResourceActivity)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for (key, entry) in &locked(shard).active {
                let activity = entry.activity(now);
                if wanted(&activity) {
                    all.push((key.clone(), activity));
                }
            }
        }
        all
    }
}
