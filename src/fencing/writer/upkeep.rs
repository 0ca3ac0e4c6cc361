//! The writer's upkeep: unused tokens given back, drained epochs deleted, own rows judged, losses
//! noted. It runs between batches, on the writer, so that no statement of this instance is unanswered
//! while its rows are judged (but for those beside the writer, which are known by their openings).

use std::time::Duration;

use tokio::time::Instant;

use super::bounds::TICK;
use super::state::Writer;
use crate::routing::{ResourceKey, Token};
use crate::store::{Cursor, EpochRow, Opening, StoreError};

/// How long after a doubt, and how often, openings are looked for that were committed late.
const MOST_LATE: Duration = Duration::from_mins(10);
const BETWEEN_LATE: Duration = Duration::from_mins(1);
/// How many rows one deletion goes through at the end of the run, when no request waits any more.
const AT_THE_STOP: u32 = 20_000;
/// The most rows that one deletion names then.
const NAMED_AT_THE_STOP: usize = 4096;

impl Writer {
    pub(super) async fn give_back(&mut self) {
        if self.gives.is_empty() {
            return;
        }
        let (spends, replies): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.gives).into_iter().unzip();
        for (resource, _, name) in &spends {
            // Before it is sent: whatever becomes of the statement, from now on the token may be found given back.
            self.epoch_table.give_up_spent(resource, name);
        }
        let done = match self.store.give_back(&spends).await {
            Ok(()) => true,
            Err(error) => {
                self.meters.failed(&error);
                if let Some(left_out) = self.said.kept.say_of(error.kind(), Instant::now()) {
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

    /// Deletes some of the rows that nobody uses any more, if it is their turn. What fails stays: a row that
    /// was deleted after all is deleted again, by its opening, which nobody else can have.
    pub(super) async fn close_some(&mut self) {
        let began = Instant::now();
        let Some(chunk) = self.closes.chunk(self.batch, began) else {
            return;
        };
        let done = if chunk.wanted {
            self.store.close_wanted(&chunk.rows).await
        } else {
            self.store.close(&chunk.rows).await
        };
        if let Err(error) = done {
            self.meters.failed(&error);
            self.closes.failed(Instant::now());
            tracing::debug!(%error, "ended epochs could not be closed yet");
            return;
        }
        self.meters.answered();
        let now = Instant::now();
        self.closes.gone(&chunk, now - began, now);
    }

    /// Of these rows of this instance's, those go that nobody uses: not registered here, and of no statement
    /// without an answer. They may have been read a while ago, on another connection. That does no harm: a row
    /// of an opening that is neither registered nor unanswered now never will be, since only the answer to its
    /// statement registers it; and if it is deleted already, it is deleted again.
    pub(super) fn disown(&mut self, rows: Vec<EpochRow>) {
        let now = Instant::now();
        for row in rows {
            if !self.epoch_table.holds(&row) && !self.unanswered.contains(&row.opening) {
                self.closes.push(row, true, now);
            }
        }
    }

    /// These rows were registered here, and then not on record. Those that are registered still have not
    /// been deleted by this instance, so they are lost; unless its lease has lapsed since: then others may have
    /// deleted them.
    pub(super) fn miss(&mut self, rows: &[EpochRow], generation: u64) {
        for row in rows {
            if self.epoch_table.keeps(row) && self.lease.holds(generation) {
                self.epoch_lost(&row.resource);
            }
        }
    }

    /// At the end nothing of this instance's stays on record but what is unknown: registered here still, with
    /// something in flight or settling, or of a statement without an answer. What else there is goes range by
    /// range: drained epochs, and openings whose answer was lost and that were committed late. Left behind, they
    /// would be waited for like a dead one's.
    pub(super) async fn close_all(&mut self) {
        let mut kept = self.epoch_table.finish();
        kept.extend(self.unanswered.iter().copied());
        while let Ok(drained) = self.drained.try_recv() {
            self.drain(drained);
        }
        let mut after = None;
        let mut done = self.close_ranges(&kept, &mut after).await;
        if let Err(error) = &done {
            tracing::debug!(%error, "ended epochs could not be deleted yet");
            tokio::time::sleep(TICK).await;
            done = self.close_ranges(&kept, &mut after).await;
        }
        if let Err(error) = done {
            self.meters.failed(&error);
            tracing::warn!(%error, "ended epochs could not be deleted at the stop");
        }
    }

    /// Deletes this instance's rows behind `after` but those `kept`, and all that goes by name.
    async fn close_ranges(
        &mut self,
        kept: &[Opening],
        after: &mut Option<Cursor>,
    ) -> Result<(), StoreError> {
        let me = self.lease.identity().instance;
        loop {
            let next = self.store.close_own(&me, after.as_ref(), AT_THE_STOP, kept);
            *after = next.await?;
            if after.is_none() {
                break;
            }
        }
        // What is left of the instances that this one was before it had to rejoin.
        let mut named = self.closes.of_others(&me);
        // And what has settled meanwhile.
        while let Ok(drained) = self.drained.try_recv() {
            named.push(drained.row);
        }
        for rows in named.chunks(NAMED_AT_THE_STOP) {
            self.store.close(rows).await?;
        }
        Ok(())
    }

    /// An opening whose answer was lost may be committed long after its row was deleted unseen (a standby that was
    /// away, say). Nobody waits for it until it is superseded, but it stands in the way of an override. So it is
    /// looked for among the own rows, for a while after each doubt.
    pub(super) fn look_for_late_openings(&mut self, now: Instant) {
        if self
            .doubted
            .is_some_and(|at| now.duration_since(at) >= MOST_LATE)
        {
            self.doubted = None;
        }
        if self.doubted.is_some() && now.duration_since(self.reconciled) >= BETWEEN_LATE {
            self.reconciled = now;
            self.own.reconcile();
        }
    }

    pub(super) fn lost(&mut self, key: &ResourceKey, known: Option<Token>, found: Option<Token>) {
        let text = |token: Option<Token>| token.map_or("none".into(), |token| token.to_string());
        if let Some(left_out) = self.said.lost.say(Instant::now()) {
            tracing::error!(resource = %key, known = text(known), found = text(found), left_out,
                "the store has lost a mark; the higher one is written back and the resource refused until that is done and has settled");
        }
        self.meters.regressions.inc();
        self.epoch_table.bar(key);
        self.repairs.insert(key.clone());
        self.repair = true;
    }

    /// The mark is there, and the token that was spent is not.
    pub(super) fn spending_lost(&mut self, key: &ResourceKey, found: Option<&str>) {
        if let Some(left_out) = self.said.lost.say(Instant::now()) {
            tracing::error!(resource = %key, found = found.unwrap_or("none"), left_out,
                "the store has lost that a token is spent; that is written back and the resource refused until it is done and has settled");
        }
        self.meters.regressions.inc();
        self.epoch_table.bar(key);
        self.repairs.insert(key.clone());
        self.repair = true;
    }

    pub(super) fn epoch_lost(&mut self, key: &ResourceKey) {
        if let Some(left_out) = self.said.lost.say(Instant::now()) {
            tracing::error!(resource = %key, left_out,
                "an open epoch is not on record any more; the resource is refused until it is repaired and has settled");
        }
        self.epoch_table.bar(key);
        self.repairs.insert(key.clone());
        self.repair = true;
    }
}
