//! Repair after a loss: composes the rows to write back, and ends the quarantine once they have
//! settled.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::EpochTable;
use super::entry::Quarantine;
use crate::fencing::lease::Identity;
use crate::routing::ResourceKey;
use crate::store::{Epoch, Found, Repair};

impl EpochTable {
    /// Composes the repair of each resource: its mark, whether its token is spent, and the epochs in
    /// use. Write it back only under a lease that still holds after this: an instance that was
    /// declared dead may have missed an override.
    pub fn to_repair(&self, keys: &[ResourceKey], by: &Identity) -> Vec<Repair> {
        let repairs = keys.iter().map(|key| {
            let shard = self.shard(key);
            let entry = shard.active.get(key);
            let own = entry.iter().flat_map(|entry| &entry.epochs);
            let own = own.map(|own| own.epoch);
            let open: Vec<Epoch> = own.filter(|epoch| epoch.instance == by.instance).collect();
            let known = entry.and_then(|entry| entry.known);
            // A spending of an older token than the mark, or of an earlier era, is not written
            // back.
            let spent = shard.spends.peek(key);
            let spent = spent.filter(|spent| known <= Some((spent.token, spent.era)));
            let spent = spent.filter(|spent| known.is_none_or(|(_, era)| era <= spent.era));
            let mark = spent.map(|spent| (spent.token, spent.era)).or(known);
            // The mark was at least there when the epoch was opened.
            let newest = open.iter().map(|epoch| (epoch.token, 0)).max();
            let (token, era) = mark.or(newest)?;
            Some(Repair {
                resource: key.clone(),
                token,
                era,
                spend: spent.map(|spent| spent.by.to_string()),
                open,
            })
        });
        let mut repairs: Vec<Repair> = repairs.flatten().collect();
        repairs.sort_by_key(|repair| repair.era);
        repairs
    }

    /// The resource was repaired. Its quarantine runs from now.
    pub fn repaired(&self, repair: &Repair, found: &Found, now: Instant) {
        let key = &repair.resource;
        if found.era > repair.era {
            self.adopt(found.era);
        } else if found.before < Some(repair.token) {
            self.setup.metrics.series.mark_regressions.inc();
        }
        let mut shard = self.shard(key);
        if found.era > repair.era {
            shard.spends.pop(key);
        } else if let Some(name) = &repair.spend {
            // The name that is now in the store counts, even if it is another one. Later answers
            // are compared with it.
            let own = shard.spends.pop(key).is_some_and(|spent| spent.own);
            let own = Some(name.as_str()).filter(|_| own);
            let era = self.newest.load(Ordering::Acquire);
            self.learn_spent_in(&mut shard, key, repair.token, found, era, own);
        }
        let until = now + self.setup.quarantine_time;
        self.within(&mut shard, key, |entry| {
            if found.era > repair.era {
                entry.overruled();
            }
            entry.quarantine = Some(Quarantine::Until(until));
        });
    }

    /// This instance knows nothing of the resource to write back.
    pub fn nothing_to_repair(&self, key: &ResourceKey, now: Instant) {
        let until = now + self.setup.quarantine_time;
        self.with(key, |entry| {
            entry.quarantine = Some(Quarantine::Until(until));
        });
    }
}
