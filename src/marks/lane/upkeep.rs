//! The lane's upkeep: unused tokens given back, drained epochs deleted, own rows looked after, lost marks
//! repaired. It runs between batches, on the lane, so that no statement of this instance is unanswered
//! while its rows are judged (but for those beside the lane, which are known by their openings).

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::keys_of;
use super::task::{Lane, TICK, TROUBLE};
use crate::fence::{ResourceKey, Token};
use crate::marks::lease::Identity;
use crate::marks::ledger::Drained;
use crate::marks::store::{Ask, EpochRow, Era, News, StoreError};

/// How long the deletion of drained epochs may be put off while requests keep the lane busy.
const PUT_OFF_CLOSES: Duration = Duration::from_millis(50);
/// How long after a doubt, and how often, openings are looked for that were committed late.
const MOST_LATE: Duration = Duration::from_mins(10);
const BETWEEN_LATE: Duration = Duration::from_mins(1);
/// The most resources that are repaired before requests have a turn again.
const MOST_REPAIRS: usize = 32;
/// The most rows that one deletion names.
const MOST_PER_CLOSE: usize = 4096;

impl Lane {
    pub(super) async fn give_back(&mut self) {
        if self.gives.is_empty() {
            return;
        }
        let (spends, replies): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.gives).into_iter().unzip();
        for (resource, _, name) in &spends {
            // Before it is sent: whatever becomes of the statement, from now on the token may be found given back.
            self.ledger.give_up_spent(resource, name);
        }
        let done = match self.store.give_back(&spends).await {
            Ok(()) => true,
            Err(error) => {
                self.meters.failed(&error);
                tracing::warn!(%error, "unused tokens could not be given back and count as spent");
                false
            }
        };
        for reply in replies {
            let _ = reply.send(done);
        }
    }

    pub(super) fn closes_due(&self, upkeep: bool) -> bool {
        let Some(since) = self.closes_since else {
            return false;
        };
        if since > Instant::now() {
            // The last try has failed: not again at once, lest a store that does not answer stalls the lane.
            return false;
        }
        upkeep
            || self.closes.iter().any(|drained| drained.wanted)
            || (self.waiting.is_empty() && self.rx.is_empty())
            || since.elapsed() >= PUT_OFF_CLOSES
    }

    /// Deletes the rows of drained epochs. What fails stays on the list: a row that was deleted after all
    /// is deleted again, by its opening, which nobody else can have.
    pub(super) async fn close_now(&mut self) {
        while !self.closes.is_empty() {
            let count = self.closes.len().min(MOST_PER_CLOSE);
            let rows: Vec<EpochRow> = self.closes[..count]
                .iter()
                .map(|drained| drained.row.clone())
                .collect();
            if let Err(error) = self.store.close(&rows).await {
                self.meters.failed(&error);
                for drained in &mut self.closes {
                    // Tried again with the next tick, not at once.
                    drained.wanted = false;
                }
                self.closes_since = Some(Instant::now() + TICK);
                tracing::debug!(%error, "drained epochs could not be closed yet");
                return;
            }
            self.meters.answered();
            let closed = self.closes.drain(..count);
            let wanted = closed.filter(|drained| drained.wanted);
            let wanted: Vec<EpochRow> = wanted.map(|drained| drained.row).collect();
            let news = keys_of(&wanted)
                .into_iter()
                .map(|resource| News::Closed { resource })
                .collect();
            self.announce(news).await;
        }
        self.closes_since = None;
    }

    /// Reads this instance's own rows below their mark. One that is registered here is asked to close;
    /// one that is not, and whose statement is not unanswered, is an opening whose answer was lost.
    pub(super) async fn poll_own(&mut self) {
        let era = self.ledger.era();
        let by = self.lease.identity();
        let rows = match self.store.superseded(&by.instance).await {
            Ok(rows) => rows,
            Err(error) => {
                self.meters.failed(&error);
                return;
            }
        };
        self.meters.answered();
        for (row, mark) in &rows {
            self.ledger.learn(&row.resource, *mark, era, true);
        }
        self.disown(rows.into_iter().map(|(row, _)| row));
        self.drain_all();
        self.close_now().await;
    }

    /// Of these rows of this instance's, those go that nobody uses: not registered here, and of no statement
    /// without an answer.
    fn disown(&mut self, rows: impl Iterator<Item = EpochRow>) {
        let closing = self.closes.iter().map(|drained| drained.row.clone());
        let closing: HashSet<EpochRow> = closing.collect();
        for row in rows {
            let mine = self.ledger.holds(&row) || self.unanswered.contains(&row.opening);
            if !mine && !closing.contains(&row) {
                self.drain(Drained { row, wanted: true });
            }
        }
    }

    /// At the end, a row of this instance's that nobody uses is an opening whose answer was lost and that was
    /// committed late; left behind, it would be waited for like a dead one's. What is registered here still is
    /// unknown, and stays.
    pub(super) async fn close_strays(&mut self) {
        let by = self.lease.identity();
        let rows = match self.store.own(&by.instance).await {
            Ok(rows) => rows,
            Err(error) => {
                self.meters.failed(&error);
                tracing::debug!(%error, "what was committed late could not be looked for");
                return;
            }
        };
        self.disown(rows.into_iter());
        self.close_now().await;
    }

    /// An opening whose answer was lost may be committed long after its row was deleted unseen (a standby that was
    /// away, say), and the poll finds it only once it is superseded. Until then nobody waits for it, but it stands
    /// in the way of an override: so it is looked for, for a while after each doubt.
    pub(super) fn look_for_late_openings(&mut self, now: Instant) {
        if self
            .doubted
            .is_some_and(|at| now.duration_since(at) >= MOST_LATE)
        {
            self.doubted = None;
        }
        if self.doubted.is_some() && now.duration_since(self.reconciled) >= BETWEEN_LATE {
            self.reconcile = true;
        }
    }

    /// The epochs registered here and the rows on record must be the same. What is here and not there was lost with
    /// the marks (a failover to a replica that was behind, an old backup): it is what holds the others back. But
    /// not under a lapsed lease: it may have been deleted then, and its mark overridden. What is there and not here has
    /// come back, its deletion lost in the same way, or has come late; nobody else would ever delete it.
    pub(super) async fn reconcile_own(&mut self) {
        self.reconciled = Instant::now();
        let by = self.lease.identity();
        let open = self.ledger.open_rows(by.generation);
        match self.store.own(&by.instance).await {
            Ok(rows) => {
                let rows: HashSet<EpochRow> = rows.into_iter().collect();
                if self.lease.holds(by.generation) {
                    for row in open.into_iter().filter(|row| !rows.contains(row)) {
                        self.epoch_lost(&row.resource);
                    }
                }
                self.disown(rows.into_iter());
                self.drain_all();
                self.close_now().await;
                self.repair().await;
            }
            Err(error) => {
                self.meters.failed(&error);
                self.reconcile = true;
            }
        }
    }

    pub(super) fn lost(&mut self, key: &ResourceKey, known: Option<Token>, found: Option<Token>) {
        let text = |token: Option<Token>| token.map_or("none".into(), |token| token.to_string());
        tracing::error!(resource = %key, known = text(known), found = text(found),
            "the store has lost a mark; the higher one is written back and the resource refused until that is done and has settled");
        self.meters.regressions.inc();
        self.ledger.bar(key);
        self.repairs.insert(key.clone());
        self.repair = true;
    }

    /// The mark is there, and the token that was spent is not.
    pub(super) fn spending_lost(&mut self, key: &ResourceKey, found: Option<&str>) {
        tracing::error!(resource = %key, found = found.unwrap_or("none"),
            "the store has lost that a token is spent; that is written back and the resource refused until it is done and has settled");
        self.meters.regressions.inc();
        self.ledger.bar(key);
        self.repairs.insert(key.clone());
        self.repair = true;
    }

    pub(super) fn epoch_lost(&mut self, key: &ResourceKey) {
        tracing::error!(resource = %key,
            "an open epoch is not on record any more; the resource is refused until it is repaired and has settled");
        self.ledger.bar(key);
        self.repairs.insert(key.clone());
        self.repair = true;
    }

    /// Writes back what was lost: the mark, as this instance knows it, and the epochs that are open here.
    ///
    /// Only under a lease that held after the mark was read: who was declared dead may have missed an override of it,
    /// and would write the mark of before back. One that was done while the epochs were off the record, or that comes
    /// later, has a later era than the one the mark was learned in, in which it is asked for.
    pub(super) async fn repair(&mut self) {
        let by = self.lease.identity();
        let now = Instant::now();
        let mut done = 0;
        for key in self.repairs.clone() {
            if self.trouble.get(&key).is_some_and(|until| *until > now) {
                continue;
            }
            if done == MOST_REPAIRS {
                // The others with the next turn: requests for other resources wait meanwhile.
                self.repair = true;
                return;
            }
            done += 1;
            let known = self.ledger.known_in(&key);
            if !self.lease.holds(by.generation) {
                return;
            }
            // The epochs first: from then on the mark cannot be overridden.
            let rows = self.ledger.rows_of(&key);
            let mut repaired = Ok(());
            if !rows.is_empty() {
                repaired = self.store.reopen(&rows).await;
            }
            if repaired.is_ok() {
                repaired = self.write_back(&key, known, &by).await;
            }
            match repaired {
                Ok(()) => {
                    self.ledger.repaired(&key);
                    self.repairs.remove(&key);
                }
                Err(error) => {
                    self.meters.failed(&error);
                    // Its epochs may be recorded late.
                    self.doubted = Some(now);
                    if !matches!(error, StoreError::LockTimeout(_)) {
                        return;
                    }
                    self.trouble.insert(key, now + TROUBLE);
                }
            }
        }
    }

    /// Writes the mark back as it is `known`, and that its token is spent if that is known, too.
    async fn write_back(
        &mut self,
        key: &ResourceKey,
        known: Option<(Token, Era)>,
        by: &Identity,
    ) -> Result<(), StoreError> {
        // In this order: a spending that is read now was known in this era.
        let now = self.ledger.era();
        let spent = self.ledger.spent(key);
        // One that is older than the mark, or of an era before the mark's, is nothing to write back.
        let spent = spent.filter(|spent| known <= Some((spent.token, spent.era)));
        let spent = spent.filter(|spent| known.is_none_or(|(_, era)| era <= spent.era));
        let Some((token, era)) = spent
            .as_ref()
            .map(|spent| (spent.token, spent.era))
            .or(known)
        else {
            return Ok(());
        };
        let ask = Ask {
            resource: key.clone(),
            token,
            opening: None,
            spend: spent.as_ref().map(|spent| spent.by.to_string()),
        };
        let found = self.store.advance(&by.instance, era, &[ask]).await?;
        let Some(found) = found.first() else {
            return Ok(());
        };
        if found.era > era {
            self.ledger.adopt(found.era);
            self.ledger.overruled(key);
            return Ok(());
        }
        if found.before < Some(token) {
            self.meters.regressions.inc();
        }
        if let Some(spent) = spent {
            // What stands there now counts, be it another name: it is held against the store from here on.
            self.ledger.forget_spent(key);
            let own = Some(&*spent.by).filter(|_| spent.own);
            self.ledger.learn_spent(key, token, found, now, own);
        }
        Ok(())
    }
}
