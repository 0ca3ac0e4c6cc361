//! The writer's upkeep: gives back unused tokens, deletes drained epochs, judges own rows, notes
//! losses. It runs between batches, on the writer. So no statement of this instance is unanswered
//! while its rows are judged.

use tokio::time::Instant;

use super::closes::TICK;
use super::state::Writer;
use crate::routing::{ResourceKey, Token};
use crate::store::{Cursor, EpochRow, Opening, StoreError};

/// How many rows one deletion covers at the end of the run, when no request waits.
const AT_THE_STOP: u32 = 20_000;
/// The most rows that one deletion names at the end of the run.
const NAMED_AT_THE_STOP: usize = 4096;

impl Writer {
    pub(super) async fn give_back(&mut self) {
        if self.gives.is_empty() {
            return;
        }
        let (spends, replies): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.gives).into_iter().unzip();
        for (resource, _, name) in &spends {
            // Before the statement is sent: from now on the token may be found given back, even if
            // no answer comes.
            self.context.epoch_table.give_up_spent(resource, name);
        }
        let done = match self.context.store.give_back(&spends).await {
            Ok(()) => true,
            Err(error) => {
                self.context.metrics.failed(&error);
                if let Some(left_out) = self.throttles.kept.say_of(error.kind(), Instant::now()) {
                    tracing::warn!(%error, left_out,
                        "unused tokens could not be given back and count as spent");
                }
                false
            }
        };
        for reply in replies {
            let _ = reply.send(done);
        }
    }

    /// Deletes some of the unused rows, if it is their turn. `batch`: how many resources the turn's
    /// batch had. After a failure the rows stay in the list. If a row was deleted nevertheless,
    /// deleting it again does no harm, because no other row can have its opening.
    pub(super) async fn close_some(&mut self, batch: usize) {
        let began = Instant::now();
        let Some(chunk) = self.closes.chunk(batch, began) else {
            return;
        };
        let done = if chunk.wanted {
            self.context.store.close_wanted(&chunk.rows).await
        } else {
            self.context.store.close(&chunk.rows).await
        };
        if let Err(error) = done {
            self.context.metrics.failed(&error);
            self.closes.failed(Instant::now());
            tracing::debug!(%error, "ended epochs could not be closed yet");
            return;
        }
        self.context.metrics.answered();
        let now = Instant::now();
        self.closes.gone(&chunk, now - began, now);
    }

    /// Deletes the unused ones among these rows of this instance: those that are not registered
    /// here. They may have been read a while ago, on another connection. That does no harm. Only the
    /// answer to its statement registers an opening, and no statement is unanswered now: one that
    /// is not registered will never be used. Deleting a row twice is safe.
    pub(super) fn disown(&mut self, rows: Vec<EpochRow>) {
        let now = Instant::now();
        for row in rows {
            if !self.context.epoch_table.holds(&row) {
                self.closes.push(row, true, now);
            }
        }
    }

    /// Handles rows that were registered here and then missing from the store. This instance has
    /// not deleted those that are still registered, so they are lost. The exception is a lease that
    /// has lapsed since: then others may have deleted them.
    pub(super) fn miss(&mut self, rows: &[EpochRow], incarnation: u64) {
        for row in rows {
            if self.context.epoch_table.keeps(row) && self.context.lease.holds(incarnation) {
                self.epoch_lost(&row.resource);
            }
        }
    }

    /// At the end of the run, only rows with an unknown fate stay in the store: epochs with
    /// something in flight or settling. The others are deleted range by range: drained epochs, and openings that were committed late after their
    /// answer was lost. Other instances would wait for any row that is left, as for a dead
    /// instance's.
    pub(super) async fn close_all(&mut self) {
        let kept = self.context.epoch_table.finish();
        while let Ok(drained) = self.drained.try_recv() {
            self.close_drained(drained);
        }
        let mut after = None;
        let mut done = self.close_ranges(&kept, &mut after).await;
        if let Err(error) = &done {
            tracing::debug!(%error, "ended epochs could not be deleted yet");
            tokio::time::sleep(TICK).await;
            done = self.close_ranges(&kept, &mut after).await;
        }
        if let Err(error) = done {
            self.context.metrics.failed(&error);
            tracing::warn!(%error, "ended epochs could not be deleted at the stop");
        }
    }

    /// Deletes this instance's rows behind `after`, except those `kept`, and all rows that are
    /// deleted by name.
    async fn close_ranges(
        &mut self,
        kept: &[Opening],
        after: &mut Option<Cursor>,
    ) -> Result<(), StoreError> {
        let me = self.context.lease.identity().instance;
        loop {
            let next = self
                .context
                .store
                .close_own(&me, after.as_ref(), AT_THE_STOP, kept);
            *after = next.await?;
            if after.is_none() {
                break;
            }
        }
        // Rows under the ids that this instance had before its rejoins.
        let mut named = self.closes.of_others(&me);
        // And the epochs that have settled meanwhile.
        while let Ok(drained) = self.drained.try_recv() {
            named.push(drained.row);
        }
        for rows in named.chunks(NAMED_AT_THE_STOP) {
            self.context.store.close(rows).await?;
        }
        Ok(())
    }

    /// Looks for late openings among the own rows, for a while after each doubt. An opening whose
    /// answer was lost may be committed long after its row was deleted unseen (by a standby that
    /// was away, for example). No request waits for it until it is superseded, but it blocks an
    /// override.
    pub(super) fn look_for_late_openings(&mut self, now: Instant) {
        if self.repairs.seeks_late_openings(now) {
            self.walk.reconcile();
        }
    }

    pub(super) fn lost(&mut self, key: &ResourceKey, known: Option<Token>, found: Option<Token>) {
        let text = |token: Option<Token>| token.map_or("none".into(), |token| token.to_string());
        if let Some(left_out) = self.throttles.lost.say(Instant::now()) {
            tracing::error!(resource = %key, known = text(known), found = text(found), left_out,
                "the store has lost a mark; the higher one is written back and the resource refused until that is done and has settled");
        }
        self.context.metrics.series.mark_regressions.inc();
        self.context.epoch_table.quarantine(key);
        self.repairs.push(key);
    }

    /// The mark is there, but the store has lost that its token was spent.
    pub(super) fn spending_lost(&mut self, key: &ResourceKey, found: Option<&str>) {
        if let Some(left_out) = self.throttles.lost.say(Instant::now()) {
            tracing::error!(resource = %key, found = found.unwrap_or("none"), left_out,
                "the store has lost that a token is spent; that is written back and the resource refused until it is done and has settled");
        }
        self.context.metrics.series.mark_regressions.inc();
        self.context.epoch_table.quarantine(key);
        self.repairs.push(key);
    }

    pub(super) fn epoch_lost(&mut self, key: &ResourceKey) {
        if let Some(left_out) = self.throttles.lost.say(Instant::now()) {
            tracing::error!(resource = %key, left_out,
                "an open epoch is not on record any more; the resource is refused until it is repaired and has settled");
        }
        self.context.epoch_table.quarantine(key);
        self.repairs.push(key);
    }
}
