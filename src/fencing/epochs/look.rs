//! Reads of rows: whether a newer mark supersedes an epoch, which older epochs are still open
//! elsewhere, and whether the store has lost something.
//!
//! A row is out of date by the time it is entered. So an epoch counts as missing only if it was in
//! use before the read was sent, and still is.

use std::sync::atomic::Ordering;

use super::EpochTable;
use super::entry::EpochEntry;
use super::spent::Spend;
use crate::fencing::lease::Identity;
use crate::locked::locked;
use crate::routing::{ResourceKey, Token};
use crate::store::{Era, Found, Notification, Opening};

/// A row that is to be read, and what was known here before.
#[derive(Debug)]
pub struct Looking {
    pub key: ResourceKey,
    known: Option<(Token, Era)>,
    spent: Option<Spend>,
    used: Vec<Opening>,
    server: u64,
}

impl EpochTable {
    /// Reads of these rows are about to be sent.
    pub fn looking(&self, keys: &[ResourceKey], by: &Identity) -> Vec<Looking> {
        let looking = keys.iter().map(|key| {
            let shard = self.shard(key);
            let entry = shard.active.get(key);
            let known = entry.and_then(|entry| entry.known);
            let used = entry
                .into_iter()
                .flat_map(|entry| entry.used_by(by.instance));
            Looking {
                known,
                spent: shard.spends.peek(key).cloned(),
                used: used.collect(),
                server: self.server(),
                key: key.clone(),
            }
        });
        looking.collect()
    }

    /// Enters a row that was read under `era`. `holds`: whether the lease of `by` holds.
    pub fn looked(
        &self,
        looking: &Looking,
        found: &Found,
        (era, by, holds): (Era, &Identity, bool),
    ) {
        if found.era > era {
            self.adopt(found.era);
            return;
        }
        let (key, open) = (&looking.key, &found.open);
        let mut shard = self.shard(key);
        if self.newest.load(Ordering::Acquire) != era {
            return;
        }
        // A spending that is being given back is no longer known here.
        let spent = looking.spent.as_ref();
        let spent = spent.filter(|spent| shard.spends.peek(key) == Some(spent));
        let unspent = spent.is_some_and(|spent| spent.is_missing(spent.token, found));
        self.within(&mut shard, key, |entry| {
            let known = looking.known.map(|(known, _)| known);
            let lost = found.before < known || unspent;
            if holds && (lost || entry.misses(by, &looking.used, open)) {
                // Under a lapsed lease others may have declared this instance dead, and overridden
                // what its epochs protected.
                self.lost(key, entry, known, found.before);
                return;
            }
            if let Some(mark) = found.before {
                entry.want_below(mark);
                entry.learn(mark, era);
                // Closed here, or never used: a newer token need not wait for the publication.
                let unused = entry.unused(by.instance, open);
                let older = unused.filter(|epoch| epoch.token < mark);
                self.errands
                    .cedes
                    .add(older.map(|epoch| (key.clone(), epoch)));
            }
            for own in &mut entry.epochs {
                // A row from before its opening says nothing of the older ones.
                if open.contains(&own.epoch) {
                    own.foreign.retain(|foreign| open.contains(foreign));
                    own.server = own.server.max(looking.server);
                }
            }
            entry.ring();
        });
    }

    /// The resources at which an epoch is open here, shard by shard.
    pub fn with_epochs(&self) -> impl Iterator<Item = Vec<ResourceKey>> {
        self.shards.iter().map(|shard| {
            let shard = locked(shard);
            let open = shard.active.iter();
            let open = open.filter(|(_, entry)| !entry.epochs.is_empty());
            open.map(|(key, _)| key.clone()).collect()
        })
    }

    /// Handles a notification. It is no fact: it closes an epoch that is idle here, or has the row
    /// read.
    pub fn hinted(&self, notification: &Notification) {
        let key = &notification.resource;
        let mut shard = self.shard(key);
        let look = if shard.active.contains_key(key) {
            self.within(&mut shard, key, |entry| match notification.waits {
                Some(token) => {
                    if entry.waiting == 0 {
                        entry.cede_below(token);
                    }
                    let older = entry.epochs.iter().filter(|own| own.epoch.token < token);
                    let mut older = older.peekable();
                    // None: the row may have one that is closed here, and not over.
                    older.peek().is_none() || older.any(|own| !own.wanted)
                }
                None => entry.foreign().next().is_some(),
            })
        } else {
            notification.waits.is_some()
        };
        drop(shard);
        if look {
            self.errands.looks.add([key.clone()]);
        }
    }
}

impl EpochEntry {
    /// Closes the idle epochs below this token, with which a request of another instance waits.
    fn cede_below(&mut self, token: Token) {
        for own in &mut self.epochs {
            if own.epoch.token < token && own.idle() {
                (own.closing, own.wanted) = (true, true);
            }
        }
    }

    /// Another instance has raised the mark, and may wait for the older epochs.
    pub(super) fn want_below(&mut self, mark: Token) {
        for own in &mut self.epochs {
            own.wanted |= own.epoch.token < mark;
        }
    }
}
