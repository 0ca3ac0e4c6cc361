//! Enters facts from the store: marks, epochs that were opened, epochs of other instances, and
//! eras.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::entry::OwnEpoch;
use super::{Ceded, EpochTable, Hint, Reread};
use crate::routing::{ResourceKey, Token, stale_by};
use crate::store::{EpochRow, Era};

impl EpochTable {
    /// The era of this instance's memory.
    #[must_use]
    pub fn era(&self) -> Era {
        self.era.load(Ordering::Acquire)
    }

    /// Learns of a later era: forgets the known marks, except at resources with an epoch open here,
    /// which no override can have touched. Once the forgetting has begun, nothing of an earlier era
    /// is learned. Until it has ended, no statement carries the new era.
    pub fn adopt(&self, era: Era) {
        if era <= self.era() {
            return;
        }
        let _turn = self.adopting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.newest.fetch_max(era, Ordering::AcqRel) < era {
            self.forget();
            self.era.store(era, Ordering::Release);
        }
    }

    /// Forgets the known marks, except at resources with an epoch of this incarnation open here.
    /// After a rejoin, the epochs of the previous incarnation protect nothing: they may have been
    /// deleted and their marks overridden, in an era that is known here already.
    pub fn forget(&self) {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.remembered.clear();
            for entry in shard.active.values_mut() {
                let held = |epoch: &OwnEpoch| epoch.incarnation == incarnation;
                if !entry.epochs.iter().any(held) {
                    entry.known = None;
                    entry.ring();
                }
            }
        }
    }

    /// The mark known here, if any.
    #[cfg(test)]
    pub(crate) fn known(&self, key: &ResourceKey) -> Option<Token> {
        self.known_in(key).map(|(known, _)| known)
    }

    /// The mark known here, and the era in which it was learned.
    #[must_use]
    pub fn known_in(&self, key: &ResourceKey) -> Option<(Token, Era)> {
        let shard = self.shard(key);
        match shard.active.get(key) {
            Some(entry) => entry.known.map(|known| (known, entry.known_in)),
            None => shard.remembered.peek(key).copied(),
        }
    }

    /// Learns a durable mark that was read in `era`. Ignores it if the era has changed since.
    /// `wanted`: another instance waits for the older epochs. Returns whether there were any here.
    pub fn learn(&self, key: &ResourceKey, mark: Token, era: Era, wanted: bool) -> bool {
        self.with(key, |entry, drained| {
            if self.newest.load(Ordering::Acquire) != era {
                return false;
            }
            entry.learn(mark, era);
            let mut older = false;
            for epoch in entry
                .epochs
                .iter_mut()
                .filter(|epoch| epoch.row.token < mark)
            {
                older = true;
                epoch.wanted |= wanted;
            }
            entry.drained(drained);
            older
        })
    }

    /// Handles a notification that a token is durable and that a request waits for the older
    /// epochs. A notification is no fact, so no mark is learned from it. The result says whether
    /// the store must be asked.
    #[must_use]
    pub fn hinted(&self, key: &ResourceKey, token: Token) -> Hint {
        let mut shard = self.shard(key);
        let Some(entry) = shard.active.get_mut(key) else {
            return Hint::NoEpoch;
        };
        let known = entry.known;
        let mut hint = Hint::NoEpoch;
        for epoch in &mut entry.epochs {
            let superseded = stale_by(known, epoch.row.token).is_some();
            epoch.wanted |= superseded;
            if epoch.row.token < token {
                hint = Hint::Known;
            }
        }
        if hint == Hint::Known && known < Some(token) {
            hint = Hint::ReadMark;
        }
        hint
    }

    /// Registers an epoch that was opened in the store. `foreign`: the older ones of other
    /// instances that were read after its commit. `false`: this instance has been declared dead
    /// since it asked. Then the epoch holds no request back, its mark may be overridden already,
    /// and nothing is learned from it.
    #[must_use]
    pub fn opened(
        &self,
        row: EpochRow,
        (incarnation, era): (u64, Era),
        foreign: Vec<EpochRow>,
    ) -> bool {
        let key = row.resource.clone();
        self.with(&key, |entry, drained| {
            if incarnation < self.incarnation.load(Ordering::Acquire) {
                return false;
            }
            let token = row.token;
            entry.epochs.push(OwnEpoch {
                row,
                incarnation,
                permits: 0,
                unknown: Vec::new(),
                closing: false,
                wanted: false,
                ceding: false,
                foreign,
                superseded: Arc::new(CancellationToken::new()),
                used: Instant::now(),
            });
            // No override lowers the mark below an open epoch, whatever the era.
            entry.learn(token, era);
            entry.drained(drained);
            entry.ring();
            true
        })
    }

    /// Enters the epoch rows of a resource that were read again. Returns the older ones that are
    /// still open elsewhere.
    pub fn reread(&self, key: &ResourceKey, rows: &[EpochRow], incarnation: u64) -> Reread {
        self.with(key, |entry, _| {
            let own = entry.epochs.iter().filter(|epoch| !epoch.ceding);
            let mut own = own.filter(|epoch| epoch.incarnation == incarnation);
            if own.any(|epoch| !rows.contains(&epoch.row)) {
                return Reread::Lost;
            }
            let mut left = Vec::new();
            for epoch in &mut entry.epochs {
                epoch.foreign.retain(|foreign| rows.contains(foreign));
                left.extend(
                    epoch
                        .foreign
                        .iter()
                        .map(|row| (row.clone(), epoch.row.token)),
                );
            }
            entry.ring();
            Reread::Left(left)
        })
    }

    /// Whether an epoch of this opening is registered here.
    #[must_use]
    pub fn holds(&self, row: &EpochRow) -> bool {
        let mut shard = self.shard(&row.resource);
        shard
            .active
            .get_mut(&row.resource)
            .is_some_and(|entry| entry.epoch(&row.instance, row.opening).is_some())
    }

    /// Whether an epoch of this opening is registered here and not being ceded.
    #[must_use]
    pub fn keeps(&self, row: &EpochRow) -> bool {
        let mut shard = self.shard(&row.resource);
        let entry = shard.active.get_mut(&row.resource);
        let epoch = entry.and_then(|entry| entry.epoch(&row.instance, row.opening));
        epoch.is_some_and(|epoch| !epoch.ceding)
    }

    /// Begins to cede the unused epochs of this resource below `token`, with which a request of
    /// another instance waits according to a notification. Returns their rows. They give no permit
    /// until [`Self::ceded`] is called with the result.
    #[must_use]
    pub fn cede(&self, key: &ResourceKey, token: Token) -> Vec<EpochRow> {
        let mut shard = self.shard(key);
        let Some(entry) = shard.active.get_mut(key).filter(|entry| entry.waiting == 0) else {
            return Vec::new();
        };
        let unused = |epoch: &&mut OwnEpoch| {
            epoch.row.token < token && epoch.idle() && !epoch.closing && !epoch.ceding
        };
        let ceding = entry.epochs.iter_mut().filter(unused).map(|epoch| {
            epoch.ceding = true;
            epoch.row.clone()
        });
        ceding.collect()
    }

    /// Records the result of ceding a row.
    pub fn ceded(&self, row: &EpochRow, fate: Ceded) {
        self.with(&row.resource, |entry, drained| {
            let is_it = |epoch: &OwnEpoch| {
                epoch.row.opening == row.opening && epoch.row.instance == row.instance
            };
            match fate {
                Ceded::Deleted => entry.epochs.retain(|epoch| !is_it(epoch)),
                Ceded::Kept | Ceded::Unknown => {
                    for epoch in entry.epochs.iter_mut().filter(|epoch| is_it(epoch)) {
                        epoch.ceding = false;
                        epoch.closing |= fate == Ceded::Unknown;
                        epoch.wanted |= fate == Ceded::Unknown;
                    }
                }
            }
            entry.drained(drained);
            entry.ring();
        });
    }
}
