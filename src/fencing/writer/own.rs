//! This instance's own rows, read back from the store: which of them newer marks supersede, which nobody
//! here knows of, and which are missing.
//!
//! Another instance's newer mark is learned of by a notification, and those may be lost. An opening whose
//! answer was lost is on record only. So the rows are walked through, in pages, by a task and on a connection
//! of its own: their number is that of the open epochs, and nothing that grows with it may hold up
//! requests. While every notification arrives, a slow walk suffices: whoever waits for an epoch of this instance
//! tells it so, again and again, and then that one resource is looked at. While they may be lost, the walk is
//! quick. A store that is not shared is not walked: only this instance raises its marks, and learns of each
//! from the answer, or has lost the answer, and then knows which opening to delete.
//!
//! What is read here is out of date when it is used. Nothing is concluded here but that a mark is durable; rows
//! are judged by the writer, between two statements of its own ([`Writer::disown`], [`Writer::miss`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::closes::keys_of;
use super::command::WriterCommand;
use super::meters::Meters;
use super::state::Writer;
use super::wishes::Desk;
use crate::fencing::epochs::EpochTable;
use crate::fencing::lease::Lease;
use crate::routing::{ResourceKey, stale_by};
use crate::store::{Cursor, EpochRow, Era, MarkStore, OwnRow, StoreError};

/// How many rows one page holds.
const PAGE: u32 = 1024;
/// The most resources that one statement asks about.
const MOST_HINTS: usize = 1024;
/// From one walk's begin to the next one's, while notifications may be lost.
const QUICK: Duration = Duration::from_secs(1);
/// The same while they all arrive.
const SLOW: Duration = Duration::from_secs(30);
/// The least time between two walks, however often one is asked for.
const BETWEEN: Duration = Duration::from_millis(100);
/// The pause after a page is so many times what the page took: in a slow walk, and in any other.
const PAUSES: (u32, u32) = (9, 1);
/// After hints of which none proved true. Any login of the database can notify: a flood of forged ones costs a
/// bounded number of reads.
const AFTER_FALSE: Duration = Duration::from_millis(50);
/// After a failed statement.
const RETRY: Duration = Duration::from_millis(250);

/// The walker. [`OwnRows::run`] is its task.
pub(super) struct OwnRows {
    store: Arc<dyn MarkStore>,
    epoch_table: Arc<EpochTable>,
    lease: Arc<Lease>,
    meters: Meters,
    tx: mpsc::WeakUnboundedSender<WriterCommand>,
    desk: Arc<Desk>,
    /// Hints are not looked into before this moment.
    hints_from: Instant,
    /// When the last walk began.
    began: Instant,
    walk: Option<Walk>,
    /// The check that is under way, if any.
    check: Option<Check>,
    /// No check begins before this moment: they take no more than half of the time.
    checks_from: Instant,
}

/// A check that is under way.
struct Check {
    /// The shard of the epoch table that it has come to.
    shard: usize,
    began: Instant,
}

/// A walk that is under way.
struct Walk {
    after: Option<Cursor>,
    /// Nothing of it is urgent.
    slow: bool,
    /// When its next page is read.
    next: Instant,
}

impl OwnRows {
    pub(super) fn new(writer: &Writer) -> Self {
        Self {
            store: Arc::clone(&writer.store),
            epoch_table: Arc::clone(&writer.epoch_table),
            lease: Arc::clone(&writer.lease),
            meters: writer.meters.clone(),
            tx: writer.tx.clone(),
            desk: Arc::clone(&writer.own.0),
            hints_from: Instant::now(),
            began: Instant::now(),
            walk: None,
            check: None,
            checks_from: Instant::now(),
        }
    }

    /// Runs until it is dropped, or the writer has ended.
    pub(super) async fn run(mut self) {
        loop {
            let hints = self.next_hints();
            let done = if !hints.is_empty() {
                self.hinted(hints).await
            } else if let Some(shard) = self.next_shard() {
                self.check(shard).await
            } else {
                match self.next_page() {
                    NextPage::Now => self.page().await.map(drop),
                    NextPage::At(at) => {
                        self.wait(Some(at)).await;
                        continue;
                    }
                    NextPage::Never => {
                        self.wait(None).await;
                        continue;
                    }
                }
            };
            match done {
                Ok(()) => {}
                Err(Left::Store(error)) => {
                    self.meters.failed(&error);
                    tracing::debug!(%error, "own rows could not be read yet");
                    tokio::time::sleep(RETRY).await;
                }
                Err(Left::Writer) => return,
            }
        }
    }

    /// Waits for the next wish, or until `at`.
    async fn wait(&self, at: Option<Instant>) {
        let (hints, check) = {
            let wishes = self.desk.lock();
            let hints = (!wishes.hints.is_empty()).then_some(self.hints_from);
            (hints, wishes.check.then_some(self.checks_from))
        };
        let at = at.into_iter().chain(hints).chain(check).min();
        tokio::select! {
            () = self.desk.bell.notified() => {}
            () = tokio::time::sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {}
        }
    }

    fn next_hints(&self) -> Vec<ResourceKey> {
        if self.hints_from > Instant::now() {
            return Vec::new();
        }
        let mut wishes = self.desk.lock();
        let next: Vec<ResourceKey> = wishes.hints.iter().take(MOST_HINTS).cloned().collect();
        for key in &next {
            wishes.hints.remove(key);
        }
        next
    }

    fn next_shard(&mut self) -> Option<usize> {
        if let Some(check) = &self.check {
            // What is wished for meanwhile takes another one: this one has been at the first of them already.
            return Some(check.shard);
        }
        let mut wishes = self.desk.lock();
        let began = Instant::now();
        if !wishes.check || self.checks_from > began {
            return None;
        }
        wishes.check = false;
        self.check = Some(Check { shard: 0, began });
        Some(0)
    }

    fn next_page(&mut self) -> NextPage {
        let mut wishes = self.desk.lock();
        if let Some(walk) = &mut self.walk {
            // Whatever made it urgent began before, and may need rows that lie behind the walk: another one follows.
            walk.slow &= !wishes.walk && wishes.whole != Some(false);
            if !walk.slow {
                walk.next = walk.next.min(Instant::now() + RETRY);
            }
            return NextPage::of(walk.next);
        }
        let due = if wishes.walk {
            self.began + BETWEEN
        } else {
            match wishes.whole {
                Some(true) => self.began + SLOW,
                Some(false) => self.began + QUICK,
                None => return NextPage::Never,
            }
        };
        if let NextPage::At(at) = NextPage::of(due) {
            return NextPage::At(at);
        }
        self.began = Instant::now();
        let asked = std::mem::take(&mut wishes.walk);
        self.walk = Some(Walk {
            after: None,
            slow: !asked && wishes.whole == Some(true),
            next: self.began,
        });
        NextPage::Now
    }

    /// Somebody says that newer tokens wait for these resources.
    async fn hinted(&mut self, keys: Vec<ResourceKey>) -> Result<(), Left> {
        let (by, era) = (self.lease.identity(), self.epoch_table.era());
        match self.store.own_of(&by.instance, &keys).await {
            Ok(rows) => {
                self.meters.answered();
                if !self.taken(rows, era).await? {
                    self.hints_from = Instant::now() + AFTER_FALSE;
                }
                Ok(())
            }
            Err(error) => {
                // Not again: what still waits is told again.
                self.desk.lock().walk = true;
                Err(Left::Store(error))
            }
        }
    }

    /// Reads the next page of the walk.
    async fn page(&mut self) -> Result<bool, Left> {
        let Some(walk) = &mut self.walk else {
            return Ok(false);
        };
        let (by, era) = (self.lease.identity(), self.epoch_table.era());
        let began = Instant::now();
        let page = self.store.own(&by.instance, walk.after.as_ref(), PAGE);
        let rows = page.await.map_err(Left::Store)?;
        self.meters.answered();
        let pause = if walk.slow { PAUSES.0 } else { PAUSES.1 };
        walk.next = Instant::now() + began.elapsed() * pause;
        let last = rows
            .last()
            .map(|(row, _)| (row.resource.clone(), row.opening));
        let full = u32::try_from(rows.len()).is_ok_and(|count| count >= PAGE);
        walk.after = last;
        if !full {
            self.walk = None;
        }
        self.taken(rows, era).await
    }

    /// These rows are on record, or were a moment ago. Returns whether any of them is to go.
    async fn taken(&self, rows: Vec<OwnRow>, era: Era) -> Result<bool, Left> {
        let (mut unclaimed, mut any) = (Vec::new(), false);
        for (row, mark) in rows {
            if let Some(mark) = stale_by(mark, row.token) {
                any |= self.epoch_table.learn(&row.resource, mark, era, true);
            }
            if !self.epoch_table.holds(&row) {
                unclaimed.push(row);
            }
        }
        if unclaimed.is_empty() {
            return Ok(any);
        }
        self.judge(|judged| WriterCommand::Unclaimed(unclaimed, judged))
            .await?;
        Ok(true)
    }

    /// What is open here and not there was lost with the marks (a failover to a replica that was behind, an old
    /// backup): it is what holds the others back. (What is there and not here, the walk finds. It has come
    /// back, its deletion lost in the same way, or has come late; nobody else would ever delete it.)
    async fn check(&mut self, shard: usize) -> Result<(), Left> {
        let by = self.lease.identity();
        // Before the read: what is registered by now has been committed before.
        let open = self.epoch_table.open_rows(shard, by.generation);
        for rows in open.chunks(MOST_HINTS) {
            let keys: Vec<ResourceKey> = keys_of(rows);
            let found = self.store.own_of(&by.instance, &keys).await;
            let found: HashSet<EpochRow> = found
                .map_err(Left::Store)?
                .into_iter()
                .map(|(row, _)| row)
                .collect();
            self.meters.answered();
            let missing = rows.iter().filter(|row| !found.contains(row));
            let missing: Vec<EpochRow> = missing.cloned().collect();
            if !missing.is_empty() {
                let generation = by.generation;
                self.judge(|judged| WriterCommand::Missing(missing, generation, judged))
                    .await?;
            }
        }
        if let Some(check) = &mut self.check {
            check.shard = shard + 1;
            if check.shard == self.epoch_table.shards() {
                self.checks_from = Instant::now() + check.began.elapsed();
                self.check = None;
            }
        }
        Ok(())
    }

    /// Has rows judged by the writer, and waits for that: no more is read than it keeps up with.
    async fn judge(
        &self,
        command: impl FnOnce(oneshot::Sender<()>) -> WriterCommand,
    ) -> Result<(), Left> {
        let (judged, done) = oneshot::channel();
        let tx = self.tx.upgrade().ok_or(Left::Writer)?;
        tx.send(command(judged)).map_err(|_| Left::Writer)?;
        drop(tx);
        done.await.map_err(|_| Left::Writer)
    }
}

/// Why something was left half done.
enum Left {
    Store(StoreError),
    /// The writer has ended.
    Writer,
}

/// When something is to be done.
enum NextPage {
    Now,
    At(Instant),
    Never,
}

impl NextPage {
    fn of(at: Instant) -> Self {
        if at <= Instant::now() {
            Self::Now
        } else {
            Self::At(at)
        }
    }
}
