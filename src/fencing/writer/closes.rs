//! The rows that wait for deletion, and when the next chunk of them is deleted.
//!
//! The row of a drained epoch is deleted with the next batch of requests, in its transaction, so
//! that a token costs one commit. Two kinds of rows get a deletion of their own: those that no
//! batch deletes soon, and those that another instance waits for.
//!
//! A wave of rows (everything that was in use a minute ago, for example) must not delay requests.
//! So one small chunk is deleted at a time, and then requests have a turn. Rows that another
//! instance waits for are first. The others follow in the order of their keys: neighbours are on
//! the same pages, so a chunk costs the store a few pages instead of hundreds.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use crate::routing::{ResourceKey, Token};
use crate::store::{EpochRow, InstanceId, Opening};

/// How often failed upkeep is tried again.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// How many rows one deletion may name. After a batch with more requests it may name as many as
/// those, so that rows never come faster than they are deleted.
const CHUNK: usize = 256;
/// The most rows that a batch of requests deletes, besides two for each of its requests. A wave
/// must not make the batch slow.
const RIDERS: usize = 8;
/// How long rows wait for a batch that deletes them, before they get a deletion of their own.
const GATHER: Duration = Duration::from_millis(50);
/// While requests come, the pause after a deletion is this multiple of its duration, so that
/// deletions have a fifth of the writer's time.
const PAUSE: u32 = 4;
/// Beyond this number, rows wait no longer than a turn, so that their number stays bounded.
const MANY: usize = 16_384;
/// The writer is idle when no request has come for this long.
const IDLE: Duration = Duration::from_millis(20);
/// How many openings whose answer was lost are deleted unseen. The walk over the own rows finds the
/// others.
const MAX_DOUBTFUL: usize = 8192;

/// A row without its key.
#[derive(Clone, Copy, Debug)]
struct ClosableRow {
    token: Token,
    /// It may not be in the store.
    doubtful: bool,
}

type RowKey = (ResourceKey, InstanceId, Opening);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Closes {
    wanted: BTreeMap<RowKey, ClosableRow>,
    others: BTreeMap<RowKey, ClosableRow>,
    doubtful: usize,
    /// Where the last chunk of the others ended.
    after: Option<RowKey>,
    /// No row is deleted before this moment, wanted or not: the last deletion has failed.
    failed: Option<Instant>,
    /// The others are not deleted before this moment.
    next: Instant,
    /// An idle writer does not delete them before this moment either: a batch may still come and
    /// delete them.
    gathered: Instant,
    /// When requests last came.
    asked: Instant,
    /// The last chunk had rows that other instances wait for, so the others have the next turn.
    alternate: bool,
}

/// The rows that are deleted with a batch of requests, in its transaction.
#[derive(Debug, Default)]
pub(super) struct Riders {
    pub rows: Vec<EpochRow>,
    /// Other instances wait for this many of them, the first ones.
    pub wanted: usize,
}

/// The rows of one deletion.
#[derive(Debug)]
pub(super) struct Chunk {
    pub rows: Vec<EpochRow>,
    /// Other instances wait for them.
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

    /// Adds a row that is no longer used here. A duplicate is ignored.
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

    /// Adds a row that may or may not be in the store. Beyond [`MAX_DOUBTFUL`] such rows are
    /// dropped, and the walk over the own rows finds them.
    pub(super) fn push_doubtful(&mut self, row: EpochRow) {
        let (place, token) = place(row);
        if self.doubtful < MAX_DOUBTFUL && !self.wanted.contains_key(&place) {
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

    /// The rows to delete with a batch of `batch` requests. Each token leaves a row behind, which a
    /// later batch deletes. The rows stay here until [`Self::ridden`].
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

    /// The rows to delete now, if any. `batch`: how many resources the turn's batch had. The rows
    /// stay here until [`Self::gone`].
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
            // Continues at the first row, so that the chunk is full wherever the last one ended.
            let round = behind.chain(&self.others);
            round.take(most.min(self.others.len())).map(row).collect()
        };
        Some(Chunk { rows, wanted })
    }

    /// These rows are deleted. The deletion took `took`.
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

    /// The store did not answer: tried again with the next tick, not at once, so that requests are
    /// not stalled.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed = Some(now + TICK);
    }

    /// How many rows wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.wanted.len() + self.others.len()
    }

    /// The rows of instances other than this one, which are deleted by name at the end of the run.
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
