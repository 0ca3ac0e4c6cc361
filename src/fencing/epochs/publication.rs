//! The publication in each heartbeat: which epochs of this instance are over.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::EpochTable;
use super::entry::{EpochEntry, Quarantine, Statement};
use crate::locked::locked;
use crate::store::{InstanceId, Opening, Publication};

/// An epoch without a permit for this long is over: a crash makes only what is in use wait. Equal
/// tokens that come further apart ask the store each time.
const IDLE: Duration = Duration::from_secs(5);
/// The same while more resources are active than may be remembered. Not zero: the request that
/// opened an epoch must reach the barrier first.
const CROWDED_IDLE: Duration = Duration::from_secs(1);
/// The most openings that a publication leaves open by name.
const MOST_LEFT: usize = 4096;

impl EpochTable {
    /// Closes the epochs that are idle, and composes what is over now: every opening of `instance`
    /// that has been given out and is not in use.
    pub fn publish(&self, instance: InstanceId, now: Instant) -> Publication {
        let active = self.shards.iter().map(|shard| locked(shard).active.len());
        let crowded = active.sum::<usize>() > self.setup.capacity;
        let idle = if crowded { CROWDED_IDLE } else { IDLE };
        // First: an opening that is given out from now on is not below it. One that was given out
        // before stands in its entry as sent, or as an epoch, or is out of use for ever.
        let below = self.opening.load(Ordering::Acquire);
        let mut left = Vec::new();
        self.every(|_, entry| {
            entry.close_idle(idle, now);
            left.extend(entry.openings(instance));
        });
        left.retain(|opening| *opening < below);
        name_some(below, left)
    }

    /// Ends the run: closes every epoch. All are over but those that have something in flight or
    /// settling.
    pub fn finish(&self, instance: InstanceId) -> Publication {
        let mut left = Vec::new();
        self.every(|_, entry| {
            entry.close(|_| true);
            left.extend(entry.used_by(instance));
            entry.ring();
        });
        // No lane runs: what was sent and not answered is never registered.
        name_some(self.opening.load(Ordering::Acquire), left)
    }
}

/// With more in use than a publication can name, it ends at the first that it does not.
fn name_some(below: Opening, mut left: Vec<Opening>) -> Publication {
    if left.len() <= MOST_LEFT {
        return Publication { below, left };
    }
    let (_, below, _) = left.select_nth_unstable(MOST_LEFT);
    let below = *below;
    left.truncate(MOST_LEFT);
    Publication { below, left }
}

impl EpochEntry {
    fn close_idle(&mut self, idle: Duration, now: Instant) {
        if let Some(Quarantine::Until(end)) = self.quarantine
            && end <= now
        {
            self.lift();
        }
        if self.waiting == 0 {
            self.close(|own| own.idle() && now.saturating_duration_since(own.used) >= idle);
        }
    }

    /// The openings of this instance that are in use, with the one that has no answer yet.
    fn openings(&self, instance: InstanceId) -> impl Iterator<Item = Opening> {
        let sent = match self.statement {
            Statement::Sent(opening) => opening,
            Statement::None | Statement::Due => None,
        };
        self.used_by(instance).chain(sent)
    }
}
