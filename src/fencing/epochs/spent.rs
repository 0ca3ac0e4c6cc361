//! Spent tokens that this instance knows of (`reuse: once`). A failover may lose a spending alone:
//! the mark is there, and the token would pass once more.
//!
//! No request is refused because of these. Each is compared with what a statement finds, like a
//! known mark, and forgetting it is as safe.

use std::sync::atomic::Ordering;

use super::{EpochTable, SHARDS, Shard};
use crate::routing::{ResourceKey, Token};
use crate::store::{Era, Found};

/// A token that is known to be spent, durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spend {
    pub token: Token,
    /// The name that it is spent under.
    pub by: Box<str>,
    /// This instance has spent it, and has not begun to give it back. So no other instance can
    /// have.
    pub own: bool,
    /// How often tokens of the resource had been given back by then.
    pub given_back: i64,
    /// The era in which that was learned: an override in a later one has cleared it.
    pub era: Era,
}

impl Spend {
    /// Whether a statement's finding shows that this spending was lost. `token`: the one asked for.
    pub fn is_missing(&self, token: Token, found: &Found) -> bool {
        if found.era > self.era || found.before > Some(self.token) {
            return false;
        }
        if found.before < Some(self.token) {
            // The mark is lost, and the spending with it.
            return true;
        }
        token == self.token
            && found.spent_by.as_deref() != Some(&*self.by)
            && (self.own || found.given_back <= self.given_back)
    }
}

impl EpochTable {
    /// Learns whether the mark's token is spent, as a statement of era `era` has found it. `own`:
    /// the name that the statement asked to spend it under.
    pub(super) fn learn_spent_in(
        &self,
        shard: &mut Shard,
        key: &ResourceKey,
        token: Token,
        found: &Found,
        era: Era,
        own: Option<&str>,
    ) {
        if self.newest.load(Ordering::Acquire) != era {
            return;
        }
        let known = shard.spends.peek(key).filter(|spend| spend.token == token);
        let Some(by) = found.spent_by.as_deref() else {
            shard.spends.pop(key);
            return;
        };
        let own = own == Some(by) || known.is_some_and(|spend| spend.own && &*spend.by == by);
        let spend = Spend {
            token,
            by: by.into(),
            own,
            given_back: found.given_back,
            era,
        };
        shard.spends.put(key.clone(), spend);
        if shard.spends.len() > self.setup.capacity.div_ceil(SHARDS) {
            shard.spends.pop_lru();
        }
    }

    /// Forgets a spending that is about to be given back.
    pub fn give_up_spent(&self, key: &ResourceKey, name: &str) {
        let mut shard = self.shard(key);
        if shard
            .spends
            .peek(key)
            .is_some_and(|spend| &*spend.by == name)
        {
            shard.spends.pop(key);
        }
    }
}
