//! One resource in the epoch table: its known mark, the epochs this instance has open for it, and
//! the requests that wait for the store or for older ones.
//!
//! Everything here runs under the lock of the resource's shard.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::request::Waiter;
use super::verdicts::{ResourceActivity, UnknownView};
use crate::routing::{Token, stale_by};
use crate::store::{Epoch, Era, InstanceId, Opening};

#[derive(Clone, Debug)]
pub(super) struct UnknownPermit {
    pub(super) number: u64,
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) struct OwnEpoch {
    pub(super) epoch: Epoch,
    pub(super) incarnation: u64,
    pub(super) permits: usize,
    pub(super) unknown: Vec<UnknownPermit>,
    /// Never gives another permit.
    pub(super) closing: bool,
    /// Another instance waits for it: it is ceded as soon as it is idle.
    pub(super) wanted: bool,
    /// Older epochs that are open elsewhere. None of them can be opened again, so an empty list
    /// stays empty.
    pub(super) foreign: Vec<Epoch>,
    pub(super) superseded: Arc<CancellationToken>,
    /// The server that was last seen to have it: see [`EpochTable::another_server`].
    ///
    /// [`EpochTable::another_server`]: super::EpochTable::another_server
    pub(super) server: u64,
    pub(super) used: Instant,
    /// When its row was last read, or queued to be read.
    pub(super) looked: Instant,
}

impl OwnEpoch {
    pub(super) fn idle(&self) -> bool {
        self.permits == 0 && self.unknown.is_empty()
    }

    fn drained(&self) -> bool {
        self.closing && self.idle()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Quarantine {
    Repairing,
    Until(Instant),
}

/// Whether a statement about the resource is on its way. There is never more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Statement {
    #[default]
    None,
    /// It is queued for the next one.
    Due,
    /// It may open an epoch under this number, which is in use until the answer is entered.
    Sent(Option<Opening>),
}

#[derive(Default)]
pub(super) struct EpochEntry {
    /// The known mark, and the era in which it was last learned. An override in a later era
    /// invalidates it.
    pub(super) known: Option<(Token, Era)>,
    pub(super) epochs: Vec<OwnEpoch>,
    /// Requests that wait for the store.
    pub(super) asking: Vec<Waiter>,
    pub(super) statement: Statement,
    /// How many requests wait for older ones.
    pub(super) waiting: usize,
    /// The newest token that waits, and how many wait with it. The others are about to leave.
    pub(super) newest: Option<(Token, usize)>,
    pub(super) bell: Option<Arc<Notify>>,
    pub(super) quarantine: Option<Quarantine>,
}

impl EpochEntry {
    /// The known mark.
    pub(super) fn mark(&self) -> Option<Token> {
        self.known.map(|(mark, _)| mark)
    }

    /// For operators.
    pub(super) fn activity(&self, now: Instant) -> ResourceActivity {
        let unknown = self.epochs.iter().flat_map(|own| {
            let instance = own.epoch.instance.to_string();
            own.unknown.iter().map(move |unknown| UnknownView {
                number: unknown.number,
                // The number alone would name something else at another proxy, or after a restart.
                id: format!("{instance}.{}", unknown.number),
                token: own.epoch.token,
                settles_in_seconds: Some(
                    unknown.until.saturating_duration_since(now).as_secs_f64(),
                ),
                instance: instance.clone(),
                inherited: false,
            })
        });
        ResourceActivity {
            in_flight: self.epochs.iter().map(|own| own.permits).sum(),
            waiting: self.waiting,
            unknown: unknown.collect(),
        }
    }

    pub(super) fn idle(&self) -> bool {
        let waited = self.waiting > 0 || self.statement != Statement::None;
        self.epochs.is_empty() && !waited && self.quarantine.is_none()
    }

    /// How many requests have a permit here or wait for one.
    pub(super) fn held(&self) -> usize {
        let permits = self.epochs.iter().map(|own| own.permits);
        self.waiting + permits.sum::<usize>()
    }

    /// The epochs of other instances that are in the way here, each with the token that is behind.
    pub(super) fn foreign(&self) -> impl Iterator<Item = (Epoch, Token)> {
        let of = |own: &OwnEpoch| {
            let token = own.epoch.token;
            let foreign = own.foreign.clone().into_iter();
            foreign.map(move |foreign| (foreign, token))
        };
        self.epochs.iter().flat_map(of)
    }

    /// Whether the resource has just become due for a statement.
    pub(super) fn due(&mut self) -> bool {
        let due = self.statement == Statement::None;
        if due {
            self.statement = Statement::Due;
        }
        due
    }

    /// The epoch that can give a permit for this token.
    pub(super) fn usable(&self, token: Token, incarnation: u64, server: u64) -> Option<usize> {
        self.epochs.iter().position(|own| {
            let current = own.incarnation == incarnation && own.server == server;
            !own.closing && own.epoch.token == token && current
        })
    }

    pub(super) fn epoch(
        &mut self,
        instance: InstanceId,
        opening: Opening,
    ) -> Option<&mut OwnEpoch> {
        self.epochs
            .iter_mut()
            .find(|own| own.epoch.opening == opening && own.epoch.instance == instance)
    }

    /// The openings of this instance that are in use. Those that have drained are about to be let
    /// go.
    pub(super) fn used_by(&self, instance: InstanceId) -> impl Iterator<Item = Opening> {
        let used = self.epochs.iter().filter(|own| !own.drained());
        let used = used.filter(move |own| own.epoch.instance == instance);
        used.map(|own| own.epoch.opening)
    }

    /// Those of these epochs, which are open in the store, that this instance does not use: they give
    /// no permit any more, or never did.
    pub(super) fn unused(&self, me: InstanceId, open: &[Epoch]) -> impl Iterator<Item = Epoch> {
        open.iter().copied().filter(move |epoch| {
            let known = self.epochs.iter().any(|own| own.epoch == *epoch);
            let asked = self.statement == Statement::Sent(Some(epoch.opening));
            epoch.instance == me && !known && !asked
        })
    }

    /// Closes the epochs of which this is true: they give no further permit.
    pub(super) fn close(&mut self, which: impl Fn(&OwnEpoch) -> bool) {
        for own in &mut self.epochs {
            own.closing |= which(own);
        }
    }

    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.notify_waiters();
        }
    }

    pub(super) fn quarantined(&mut self, repair_left: Duration, now: Instant) -> Option<Duration> {
        match self.quarantine? {
            Quarantine::Repairing => Some(repair_left),
            Quarantine::Until(end) => {
                let left = end.saturating_duration_since(now);
                if left.is_zero() {
                    self.lift();
                    return None;
                }
                Some(left)
            }
        }
    }

    /// The repair has settled. Epochs from before close: the older epochs elsewhere were read when
    /// they were opened, but others may have been opened behind the lost mark since then, or
    /// recorded again.
    pub(super) fn lift(&mut self) {
        self.quarantine = None;
        self.close(|_| true);
    }

    /// Raises the known mark, and closes every older epoch.
    pub(super) fn learn(&mut self, mark: Token, era: Era) {
        // Of two that are equal, the one of the later era.
        self.known = self.known.max(Some((mark, era)));
        let known = self.mark();
        let mut changed = false;
        for own in &mut self.epochs {
            let superseded = stale_by(known, own.epoch.token).is_some();
            if superseded && !own.superseded.is_cancelled() {
                own.closing = true;
                own.superseded.cancel();
                changed = true;
            }
        }
        if changed {
            self.ring();
        }
    }

    /// The mark was overridden while its epochs were missing from the store. The known mark is of
    /// an era that is over, and those epochs give no further permit.
    pub(super) fn overruled(&mut self) {
        self.known = None;
        for own in &mut self.epochs {
            own.closing = true;
            own.superseded.cancel();
        }
        self.ring();
    }

    /// Lets go of the epochs that close and have nothing in flight any more: they are out of use,
    /// which the next publication says. Returns those that another instance waits for.
    pub(super) fn drained(&mut self) -> Vec<Epoch> {
        let before = self.epochs.len();
        let mut wanted = Vec::new();
        self.epochs.retain(|own| {
            let done = own.drained();
            if done && own.wanted {
                wanted.push(own.epoch);
            }
            !done
        });
        if self.epochs.len() != before {
            self.ring();
        }
        wanted
    }
}
