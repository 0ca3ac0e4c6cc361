//! One resource in the epoch table: its known mark, the epochs this instance has open for it, and
//! the waiting requests.
//!
//! Everything here runs under the lock of the resource's shard.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::verdicts::{Drained, ResourceActivity, UnknownOutcome};
use crate::routing::{Decision, Token, judge, stale_by};
use crate::store::{EpochRow, Era, InstanceId, Opening};

#[derive(Clone, Debug)]
pub(super) struct UnknownPermit {
    pub(super) number: u64,
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) struct OwnEpoch {
    pub(super) row: EpochRow,
    pub(super) incarnation: u64,
    pub(super) permits: usize,
    pub(super) unknown: Vec<UnknownPermit>,
    /// Asked to close: never gives another permit.
    pub(super) closing: bool,
    /// Another instance waits for it.
    pub(super) wanted: bool,
    /// Its row is being ceded: the store deletes the row if the mark is above its token. The epoch
    /// gives no permit until the result is known.
    pub(super) ceding: bool,
    /// Older epochs that are open elsewhere. None of them can be opened again, so an empty list
    /// stays empty.
    pub(super) foreign: Vec<EpochRow>,
    pub(super) superseded: Arc<CancellationToken>,
    pub(super) used: Instant,
}

impl OwnEpoch {
    pub(super) fn idle(&self) -> bool {
        self.permits == 0 && self.unknown.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Quarantine {
    Repairing,
    Until(Instant),
}

#[derive(Debug, Default)]
pub(super) struct EpochEntry {
    pub(super) known: Option<Token>,
    /// The era in which the mark was last learned. An override in a later era invalidates it.
    pub(super) known_in: Era,
    pub(super) epochs: Vec<OwnEpoch>,
    pub(super) waiting: usize,
    /// The newest token that waits, and how many wait with it. The others are about to leave.
    pub(super) newest: Option<(Token, usize)>,
    pub(super) bell: Option<Arc<Notify>>,
    pub(super) quarantine: Option<Quarantine>,
}

impl EpochEntry {
    /// For operators.
    pub(super) fn activity(&self) -> ResourceActivity {
        let now = Instant::now();
        let unknown = self.epochs.iter().flat_map(|epoch| {
            epoch.unknown.iter().map(|unknown| UnknownOutcome {
                number: unknown.number,
                token: epoch.row.token,
                instance: epoch.row.instance.clone(),
                settles_in: unknown.until.saturating_duration_since(now),
            })
        });
        ResourceActivity {
            in_flight: self.epochs.iter().map(|epoch| epoch.permits).sum(),
            waiting: self.waiting,
            unknown: unknown.collect(),
        }
    }

    pub(super) fn idle(&self) -> bool {
        self.epochs.is_empty() && self.waiting == 0 && self.quarantine.is_none()
    }

    /// How many requests have a permit here or wait for one.
    pub(super) fn held(&self) -> usize {
        let permits = self.epochs.iter().map(|epoch| epoch.permits);
        self.waiting + permits.sum::<usize>()
    }

    /// Whether an epoch of this other instance is in the way here.
    pub(super) fn is_behind(&self, instance: &InstanceId) -> bool {
        let mut foreign = self.epochs.iter().flat_map(|epoch| &epoch.foreign);
        foreign.any(|row| row.instance == *instance)
    }

    /// The epoch that can give a permit for this token.
    pub(super) fn usable(&self, token: Token, incarnation: u64) -> Option<usize> {
        self.epochs.iter().position(|epoch| {
            let gives = !epoch.closing && !epoch.ceding;
            gives && epoch.row.token == token && epoch.incarnation == incarnation
        })
    }

    pub(super) fn epoch(
        &mut self,
        instance: &InstanceId,
        opening: Opening,
    ) -> Option<&mut OwnEpoch> {
        self.epochs
            .iter_mut()
            .find(|epoch| epoch.row.opening == opening && epoch.row.instance == *instance)
    }

    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.notify_waiters();
        }
    }

    pub(super) fn quarantined(&mut self, repair_left: Duration) -> Option<Duration> {
        match self.quarantine? {
            Quarantine::Repairing => Some(repair_left),
            Quarantine::Until(end) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    self.lift();
                    return None;
                }
                Some(left)
            }
        }
    }

    /// The repair has settled. Epochs from before are asked to close. The older epochs elsewhere
    /// were read when they were opened, but others may have been opened behind the lost mark since
    /// then, or recorded again.
    pub(super) fn lift(&mut self) {
        self.quarantine = None;
        for epoch in &mut self.epochs {
            epoch.closing = true;
        }
    }

    /// Raises the known mark and asks every older epoch to close.
    pub(super) fn learn(&mut self, mark: Token, era: Era) {
        match judge(self.known, mark) {
            Decision::Advanced => {
                self.known = Some(mark);
                self.known_in = era;
            }
            Decision::Current => self.known_in = self.known_in.max(era),
            Decision::Stale { .. } => {}
        }
        let known = self.known;
        let mut changed = false;
        for epoch in &mut self.epochs {
            let superseded = stale_by(known, epoch.row.token).is_some();
            if superseded && !epoch.superseded.is_cancelled() {
                epoch.closing = true;
                epoch.superseded.cancel();
                changed = true;
            }
        }
        if changed {
            self.ring();
        }
    }

    /// Takes out the epochs that were asked to close and have nothing in flight any more.
    pub(super) fn drained(&mut self, out: &mut Vec<Drained>) {
        let before = self.epochs.len();
        self.epochs.retain(|epoch| {
            if epoch.closing && epoch.idle() && !epoch.ceding {
                out.push(Drained {
                    row: epoch.row.clone(),
                    wanted: epoch.wanted,
                });
                return false;
            }
            true
        });
        if self.epochs.len() != before {
            self.ring();
        }
    }
}
