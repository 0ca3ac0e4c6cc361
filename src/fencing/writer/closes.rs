//! The rows that wait for their deletion, and when the next few of them go.
//!
//! A row whose epoch has drained goes with the next batch of requests, in its transaction: a token then
//! costs one commit. Only what no batch takes along soon, and what another instance waits for, gets a
//! deletion of its own.
//!
//! A wave of them (everything that was in use a minute ago, say) must not hold up requests: one small
//! chunk goes at a time, then requests have a turn. Rows that another instance waits for go first. The
//! others go in the order of their keys: neighbours lie on the same pages, and a chunk costs the store
//! a few of them instead of hundreds.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use super::bounds::TICK;
use crate::routing::{ResourceKey, Token};
use crate::store::{EpochRow, InstanceId, Opening};

/// The most rows that one deletion names. It may name as many as the batch before it had requests, so that
/// rows never come faster than they go.
const CHUNK: usize = 256;
/// The most rows that a batch of requests takes along, besides two for each of its requests. A wave
/// must not make the batch long.
const RIDERS: usize = 8;
/// How long rows wait for a batch that takes them along, before a deletion of their own.
const GATHER: Duration = Duration::from_millis(50);
/// While requests come, the pause after a deletion is so many times what that took: deletions have a
/// fifth of the writer's time.
const PAUSE: u32 = 4;
/// So many rows wait no longer than a turn, lest they become ever more.
const MANY: usize = 16_384;
/// The writer is idle when no request has come for so long.
const IDLE: Duration = Duration::from_millis(20);
/// How many openings whose answer was lost are deleted unseen. The walk over the own rows finds the others.
const MOST_DOUBTFUL: usize = 8192;

/// What is known of a row besides its key.
#[derive(Clone, Copy, Debug)]
struct ClosableRow {
    token: Token,
    /// Whether it is on record at all is not known.
    doubtful: bool,
}

type RowKey = (ResourceKey, InstanceId, Opening);

/// See the module's page.
#[derive(Debug)]
pub(super) struct Closes {
    wanted: BTreeMap<RowKey, ClosableRow>,
    others: BTreeMap<RowKey, ClosableRow>,
    doubtful: usize,
    /// Where the last chunk of the others ended.
    after: Option<RowKey>,
    /// Nothing goes before this moment, wanted or not: the last deletion has failed.
    failed: Option<Instant>,
    /// The others do not go before this moment.
    next: Instant,
    /// Nor do they before this one because the writer is idle: a batch may still come and take them along.
    gathered: Instant,
    /// When requests last came.
    asked: Instant,
    /// The last chunk was of rows that somebody waited for: the others have the next turn.
    alternate: bool,
}

/// The rows that go with a batch of requests, in its transaction.
#[derive(Debug, Default)]
pub(super) struct Riders {
    pub rows: Vec<EpochRow>,
    /// So many of them, the first ones, somebody waits for.
    pub wanted: usize,
}

/// The rows of one deletion.
#[derive(Debug)]
pub(super) struct Chunk {
    pub rows: Vec<EpochRow>,
    /// Somebody waits for them.
    pub wanted: bool,
}

impl Closes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            wanted: BTreeMap::new(),
            others: BTreeMap::new(),
            doubtful: 0,
            after: None,
            failed: None,
            next: now,
            gathered: now,
            asked: now,
            alternate: false,
        }
    }

    /// A row that nobody here uses any more. Twice the same is one.
    pub(super) fn push(&mut self, row: EpochRow, wanted: bool, now: Instant) {
        let (place, token) = place(row);
        let doubtful = false;
        if wanted {
            let before = self.others.remove(&place);
            self.forget(before);
            self.wanted.insert(place, ClosableRow { token, doubtful });
        } else if !self.wanted.contains_key(&place) {
            if self.others.is_empty() {
                self.gather(now);
            }
            let before = self.others.insert(place, ClosableRow { token, doubtful });
            self.forget(before);
        }
    }

    /// A row that may or may not be on record. Beyond a number of them they are left to be found there.
    pub(super) fn push_doubtful(&mut self, row: EpochRow) {
        let (place, token) = place(row);
        if self.doubtful < MOST_DOUBTFUL && !self.wanted.contains_key(&place) {
            let doubtful = true;
            let before = self.others.insert(place, ClosableRow { token, doubtful });
            self.forget(before);
            self.doubtful += 1;
        }
    }

    fn forget(&mut self, gone: Option<ClosableRow>) {
        if gone.is_some_and(|gone| gone.doubtful) {
            self.doubtful -= 1;
        }
    }

    /// Requests are about to be sent to the store.
    pub(super) fn asked(&mut self, now: Instant) {
        self.asked = now;
    }

    /// The rows that go with a batch of so many requests: each token leaves one behind, and so the next
    /// batches take them along. They stay here until they have [`Self::ridden`].
    pub(super) fn riders(&self, batch: usize, now: Instant) -> Riders {
        if batch == 0 || self.failed.is_some_and(|failed| failed > now) {
            return Riders::default();
        }
        let most = RIDERS + 2 * batch;
        let wanted = self.wanted.len().min(most);
        let all = self.wanted.iter().chain(&self.others);
        let rows = all.take(most).map(row).collect();
        Riders { rows, wanted }
    }

    /// These were deleted with a batch.
    pub(super) fn ridden(&mut self, riders: &Riders, now: Instant) {
        for row in &riders.rows {
            let (place, _) = place(row.clone());
            self.wanted.remove(&place);
            let gone = self.others.remove(&place);
            self.forget(gone);
        }
        self.failed = None;
        if self.others.is_empty() {
            self.gather(now);
        }
    }

    fn gather(&mut self, now: Instant) {
        self.gathered = now + GATHER;
        self.next = self.next.max(self.gathered);
    }

    /// When the next chunk may go; `None`: there is none.
    pub(super) fn due(&self) -> Option<Instant> {
        let at = if self.wanted.is_empty() {
            self.others_due()?
        } else {
            self.asked
        };
        Some(at.max(self.failed.unwrap_or(at)))
    }

    fn others_due(&self) -> Option<Instant> {
        if self.others.len() > MANY {
            return Some(self.asked);
        }
        let due = self.next.min(self.gathered.max(self.asked + IDLE));
        (!self.others.is_empty()).then_some(due)
    }

    /// The rows to delete now, if any; `batch`: how many resources the turn's batch had. They stay here
    /// until they are [`Self::gone`].
    pub(super) fn chunk(&self, batch: usize, now: Instant) -> Option<Chunk> {
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        let most = CHUNK.max(batch);
        let others = self.alternate && self.others_due().is_some_and(|due| due <= now);
        let wanted = !self.wanted.is_empty() && !others;
        let rows: Vec<EpochRow> = if wanted {
            self.wanted.iter().take(most).map(row).collect()
        } else {
            let after = self.after.as_ref();
            let after = after.map_or(Bound::Unbounded, Bound::Excluded);
            let behind = self.others.range((after, Bound::Unbounded));
            // Round to the first again, so that a full chunk goes wherever the last one ended.
            let round = behind.chain(&self.others);
            round.take(most.min(self.others.len())).map(row).collect()
        };
        Some(Chunk { rows, wanted })
    }

    /// These are deleted; that took so long.
    pub(super) fn gone(&mut self, chunk: &Chunk, took: Duration, now: Instant) {
        for row in &chunk.rows {
            let (place, _) = place(row.clone());
            if chunk.wanted {
                self.wanted.remove(&place);
            } else {
                let gone = self.others.remove(&place);
                self.forget(gone);
                self.after = Some(place);
            }
        }
        self.failed = None;
        self.alternate = chunk.wanted;
        if !chunk.wanted {
            self.next = now + took * PAUSE;
        }
    }

    /// The store did not answer: tried again with the next tick, not at once, lest it stalls requests.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed = Some(now + TICK);
    }

    /// How many rows wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.wanted.len() + self.others.len()
    }

    /// The rows of other instances than this one, which go by name at the end of the run.
    pub(super) fn of_others(&self, me: &InstanceId) -> Vec<EpochRow> {
        let all = self.wanted.iter().chain(&self.others);
        all.filter(|((_, instance, _), _)| instance != me)
            .map(row)
            .collect()
    }
}

fn place(row: EpochRow) -> (RowKey, Token) {
    ((row.resource, row.instance, row.opening), row.token)
}

fn row((place, waiting): (&RowKey, &ClosableRow)) -> EpochRow {
    EpochRow {
        resource: place.0.clone(),
        instance: place.1.clone(),
        opening: place.2,
        token: waiting.token,
    }
}

/// Rows in the order of their keys, each once.
pub(crate) fn keys_of(rows: &[EpochRow]) -> Vec<ResourceKey> {
    let mut keys: Vec<ResourceKey> = rows.iter().map(|row| row.resource.clone()).collect();
    keys.sort();
    keys.dedup();
    keys
}
