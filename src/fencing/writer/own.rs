//! This instance's own rows, read back from the store: rows that newer marks supersede, rows that
//! are unknown here, and rows that are missing.
//!
//! A notification tells of another instance's newer mark, and notifications may be lost. An opening
//! whose answer was lost is known only to the store. So a task walks through the rows, in pages, on
//! a connection of its own: there are as many rows as open epochs, and nothing that grows with them
//! may delay requests. The regular walk is slow. An instance that waits for an epoch of this one
//! notifies it repeatedly, and then that one resource is read. A store that is not shared is not
//! walked: only this instance raises its marks. It learns of each from the answer, or knows which
//! opening to delete if the answer was lost.
//!
//! A row is out of date by the time it is used. The only conclusion drawn here is that a mark is
//! durable. The writer judges the rows, between two of its own statements (`Writer::disown`,
//! `Writer::miss`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::closes::keys_of;
use super::command::WriterCommand;
use super::context::WriterContext;
use super::walk_requests::WalkMailbox;
use crate::fencing::epochs::EpochTable;
use crate::fencing::lease::Lease;
use crate::metrics::StoreMetrics;
use crate::routing::{ResourceKey, stale_by};
use crate::store::{Cursor, EpochRow, Era, MarkStore, OwnRow, StoreError};

/// How many rows one page holds.
const PAGE: u32 = 1024;
/// The most resources that one statement asks about.
const MAX_HINTS: usize = 1024;
/// From the beginning of a walk to the beginning of the next one: so long a lost notification costs.
const REGULAR: Duration = Duration::from_secs(5);
/// The shortest time between two walks, however often one is requested.
const BETWEEN: Duration = Duration::from_millis(100);
/// The pause after a page, as a multiple of what the page took: in a regular walk, and in one that
/// is asked for.
const PAUSES: (u32, u32) = (9, 1);
/// After a failed statement.
const RETRY: Duration = Duration::from_millis(250);

/// The walker. [`OwnRows::run`] is its task.
pub(super) struct OwnRows {
    store: Arc<dyn MarkStore>,
    epoch_table: Arc<EpochTable>,
    lease: Arc<Lease>,
    metrics: Arc<StoreMetrics>,
    tx: mpsc::WeakUnboundedSender<WriterCommand>,
    mailbox: Arc<WalkMailbox>,
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
    /// The walk is slow, because nothing in it is urgent.
    slow: bool,
    /// When its next page is read.
    next: Instant,
}

impl OwnRows {
    pub(super) fn new(context: &WriterContext, mailbox: Arc<WalkMailbox>) -> Self {
        Self {
            store: Arc::clone(&context.store),
            epoch_table: Arc::clone(&context.epoch_table),
            lease: Arc::clone(&context.lease),
            metrics: Arc::clone(&context.metrics),
            tx: context.tx.clone(),
            mailbox,
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
                    NextPage::Now => self.page().await,
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
                    self.metrics.failed(&error);
                    tracing::debug!(%error, "own rows could not be read yet");
                    tokio::time::sleep(RETRY).await;
                }
                Err(Left::Writer) => return,
            }
        }
    }

    /// Waits for the next wish, or until `at`.
    async fn wait(&self, at: Option<Instant>) {
        let check = self.mailbox.lock().check.then_some(self.checks_from);
        let at = at.into_iter().chain(check).min();
        tokio::select! {
            () = self.mailbox.bell.notified() => {}
            () = tokio::time::sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {}
        }
    }

    fn next_hints(&self) -> Vec<ResourceKey> {
        let mut requests = self.mailbox.lock();
        let next: Vec<ResourceKey> = requests.hints.iter().take(MAX_HINTS).cloned().collect();
        for key in &next {
            requests.hints.remove(key);
        }
        next
    }

    fn next_shard(&mut self) -> Option<usize> {
        if let Some(check) = &self.check {
            // A check that is asked for meanwhile is another one: this one has passed the first
            // shards already.
            return Some(check.shard);
        }
        let mut requests = self.mailbox.lock();
        let began = Instant::now();
        if !requests.check || self.checks_from > began {
            return None;
        }
        requests.check = false;
        self.check = Some(Check { shard: 0, began });
        Some(0)
    }

    fn next_page(&mut self) -> NextPage {
        let mut requests = self.mailbox.lock();
        if let Some(walk) = &mut self.walk {
            // The reason for the haste may be a row that the walk has passed already: another walk
            // follows.
            walk.slow &= !requests.walk;
            if !walk.slow {
                walk.next = walk.next.min(Instant::now() + RETRY);
            }
            return NextPage::of(walk.next);
        }
        let due = if requests.walk {
            self.began + BETWEEN
        } else if requests.regular {
            self.began + REGULAR
        } else {
            return NextPage::Never;
        };
        if let NextPage::At(at) = NextPage::of(due) {
            return NextPage::At(at);
        }
        self.began = Instant::now();
        let asked = std::mem::take(&mut requests.walk);
        self.walk = Some(Walk {
            after: None,
            slow: !asked,
            next: self.began,
        });
        NextPage::Now
    }

    /// Notifications say that newer tokens wait for these resources.
    async fn hinted(&mut self, keys: Vec<ResourceKey>) -> Result<(), Left> {
        let (by, era) = (self.lease.identity(), self.epoch_table.era());
        match self.store.own_of(&by.instance, &keys).await {
            Ok(rows) => {
                self.metrics.answered();
                self.taken(rows, era).await
            }
            Err(error) => {
                // Not tried again: a request that still waits notifies again.
                self.mailbox.lock().walk = true;
                Err(Left::Store(error))
            }
        }
    }

    /// Reads the next page of the walk.
    async fn page(&mut self) -> Result<(), Left> {
        let Some(walk) = &mut self.walk else {
            return Ok(());
        };
        let (by, era) = (self.lease.identity(), self.epoch_table.era());
        let began = Instant::now();
        let page = self.store.own(&by.instance, walk.after.as_ref(), PAGE);
        let rows = page.await.map_err(Left::Store)?;
        self.metrics.answered();
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

    /// Handles rows that are in the store, or were a moment ago.
    async fn taken(&self, rows: Vec<OwnRow>, era: Era) -> Result<(), Left> {
        let mut unclaimed = Vec::new();
        for (row, mark) in rows {
            if let Some(mark) = stale_by(mark, row.token) {
                self.epoch_table.learn(&row.resource, mark, era, true);
            }
            if !self.epoch_table.holds(&row) {
                unclaimed.push(row);
            }
        }
        if unclaimed.is_empty() {
            return Ok(());
        }
        self.judge(|judged| WriterCommand::Unclaimed(unclaimed, judged))
            .await
    }

    /// Checks that the epochs of one shard are in the store. An epoch that is missing was lost with
    /// the marks (a failover to a replica that was behind, an old backup), and then it no longer
    /// holds other instances back. (The walk finds the opposite, rows in the store that are not
    /// open here. The deletion of such a row was lost in the same way, or the row came late. Only
    /// this instance deletes it.)
    async fn check(&mut self, shard: usize) -> Result<(), Left> {
        let by = self.lease.identity();
        // Before the read: an epoch that is registered by now has been committed before.
        let open = self.epoch_table.open_rows(shard, by.incarnation);
        for rows in open.chunks(MAX_HINTS) {
            let keys: Vec<ResourceKey> = keys_of(rows);
            let found = self.store.own_of(&by.instance, &keys).await;
            let found: HashSet<EpochRow> = found
                .map_err(Left::Store)?
                .into_iter()
                .map(|(row, _)| row)
                .collect();
            self.metrics.answered();
            let missing = rows.iter().filter(|row| !found.contains(row));
            let missing: Vec<EpochRow> = missing.cloned().collect();
            if !missing.is_empty() {
                let incarnation = by.incarnation;
                self.judge(|judged| WriterCommand::Missing(missing, incarnation, judged))
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

    /// Has the writer judge rows, and waits for it, so that no more is read than the writer can
    /// handle.
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

/// Why a step was not completed.
enum Left {
    Store(StoreError),
    /// The writer has ended.
    Writer,
}

/// When the next page is read.
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
