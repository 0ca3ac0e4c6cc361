//! Eras and incarnations: what makes this memory void.

use std::sync::atomic::Ordering;

use lru::LruCache;

use super::EpochTable;
use super::entry::OwnEpoch;
use crate::locked::locked;
use crate::store::Era;

impl EpochTable {
    /// The era of this instance's memory.
    pub fn era(&self) -> Era {
        self.era.load(Ordering::Acquire)
    }

    /// Learns of a later era: forgets the known marks and spendings, except at resources with an
    /// epoch open here, which no override and no prune can have touched. Once the forgetting has
    /// begun, nothing of an earlier era is learned. Until it has ended, no statement carries the new
    /// era.
    pub fn adopt(&self, era: Era) {
        if era <= self.era() {
            return;
        }
        let _turn = locked(&self.adopting);
        if self.newest.fetch_max(era, Ordering::AcqRel) < era {
            self.forget();
            self.era.store(era, Ordering::Release);
        }
    }

    /// Forgets the known marks and spendings, except at resources with an epoch of this incarnation
    /// open here. After a rejoin, the epochs of the previous incarnation protect nothing: they may
    /// be over and their marks overridden, in an era that is known here already.
    pub fn forget(&self) {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        for shard in &self.shards {
            let mut shard = locked(shard);
            let shard = &mut *shard;
            shard.remembered.clear();
            let mut spends = std::mem::replace(&mut shard.spends, LruCache::unbounded());
            for (key, entry) in &mut shard.active {
                let held = |own: &OwnEpoch| own.incarnation == incarnation;
                if !entry.epochs.iter().any(held) {
                    entry.known = None;
                    entry.ring();
                } else if let Some(mut spend) = spends.pop(key) {
                    // It holds in the new era as well: else it would not be written back after a
                    // loss.
                    spend.era = self.newest.load(Ordering::Acquire);
                    shard.spends.put(key.clone(), spend);
                }
            }
        }
    }

    /// Closes every epoch of an incarnation before `incarnation`. They give no further permit, and
    /// no other epoch of those incarnations is registered.
    pub fn retire_before(&self, incarnation: u64) {
        self.incarnation.fetch_max(incarnation, Ordering::AcqRel);
        self.every(|_, entry| {
            entry.close(|own| own.incarnation < incarnation);
            entry.ring();
        });
    }

    /// Closes every epoch, because their rows may be lost.
    pub fn retire_all(&self) {
        self.every(|_, entry| entry.close(|_| true));
    }
}
