//! Repairs: writes back what the store has lost, the mark as this instance knows it and the epochs
//! that are open here.
//!
//! A failover can lose very many marks at once, so each statement writes as many as a batch of
//! requests has. A statement that meets a row lock is split. After one that the store refuses, or
//! does not answer in time, the next one has half as many, down to a single resource, so that no
//! other resource waits for that one. Each success adds a few again.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::repairs::MAX_TOGETHER;
use super::state::Writer;
use crate::fencing::epochs::Spend;
use crate::fencing::lease::Identity;
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::{Ask, EpochRow, Era, StoreError};

/// A resource to repair, with the mark that was known before anything was sent.
type Loss = (ResourceKey, Option<(Token, Era)>);

/// Whether a single row may be the cause, so that others are better tried without it.
fn of_a_row(error: &StoreError) -> bool {
    matches!(error, StoreError::LockTimeout(_) | StoreError::Statement(_))
}

impl Writer {
    /// Writes back what was lost.
    ///
    /// Only under a lease that held after the mark was read: an instance that was declared dead may
    /// have missed an override, and would write back the mark from before it. An override that was
    /// made while the epochs were missing from the store, or that comes later, has a later era than
    /// the mark that is written back.
    pub(super) async fn repair(&mut self) {
        let by = self.context.lease.identity();
        let now = Instant::now();
        let most = self.repairs.most;
        let mut next = self.repairs.next(most + 1, now);
        let more = next.len() > most;
        next.truncate(most);
        if next.is_empty() {
            return;
        }
        next.sort();
        match self.repair_these(&next, &by).await {
            // The others wait for the next turn, because requests for other resources wait
            // meanwhile.
            Err(StoreError::LockTimeout(_)) if next.len() > 1 => self.repairs.due |= more,
            done => {
                match &done {
                    Ok(true) => {
                        self.repairs.due |= more;
                        self.repairs.most = MAX_TOGETHER.min(most + most / 8 + 1);
                    }
                    Err(StoreError::Timeout(_) | StoreError::Statement(_)) => {
                        self.repairs.most = (next.len() / 2).max(1);
                    }
                    Ok(false) | Err(_) => {}
                }
                self.repaired(&next, done, now);
                return;
            }
        }
        for key in next {
            let key = std::slice::from_ref(&key);
            let done = self.repair_these(key, &by).await;
            let away = done.as_ref().is_err_and(|error| !of_a_row(error));
            self.repaired(key, done, now);
            if away {
                return;
            }
        }
    }

    fn repaired(&mut self, keys: &[ResourceKey], done: Result<bool, StoreError>, now: Instant) {
        match done {
            Ok(true) => {
                for key in keys {
                    self.context.epoch_table.repaired(key);
                    self.repairs.keys.remove(key);
                }
            }
            // Nothing was sent, because the lease does not hold.
            Ok(false) => {}
            Err(error) => {
                self.context.metrics.failed(&error);
                // Their epochs may be recorded late.
                self.repairs.doubted(now);
                let one_refused = keys.len() == 1 && of_a_row(&error);
                if one_refused || matches!(error, StoreError::LockTimeout(_)) {
                    self.repairs.postpone(keys, now);
                }
            }
        }
    }

    /// Writes all of these back, or leaves them to be tried again. `false`: the lease does not
    /// hold.
    async fn repair_these(
        &mut self,
        keys: &[ResourceKey],
        by: &Identity,
    ) -> Result<bool, StoreError> {
        let losses = keys.iter();
        let losses: Vec<Loss> = losses
            .map(|key| (key.clone(), self.context.epoch_table.known_in(key)))
            .collect();
        if !self.context.lease.holds(by.incarnation) {
            return Ok(false);
        }
        // The epochs first: from then on the mark cannot be overridden.
        let rows = keys
            .iter()
            .flat_map(|key| self.context.epoch_table.rows_of(key));
        let rows: Vec<EpochRow> = rows.collect();
        if !rows.is_empty() {
            self.context.store.reopen(&rows).await?;
        }
        self.write_back(losses, by).await?;
        Ok(true)
    }

    /// Writes back the known marks, and that their tokens are spent if that is known. The marks of
    /// one era go in one statement.
    async fn write_back(&mut self, losses: Vec<Loss>, by: &Identity) -> Result<(), StoreError> {
        // In this order, a spending that is read now was known in this era.
        let now = self.context.epoch_table.era();
        let mut asks: BTreeMap<Era, Vec<(Ask, Option<Spend>)>> = BTreeMap::new();
        for (resource, known) in losses {
            let spent = self.context.epoch_table.spent(&resource);
            // A spending of an older token than the mark, or of an earlier era, is not written
            // back.
            let spent = spent.filter(|spent| known <= Some((spent.token, spent.era)));
            let spent = spent.filter(|spent| known.is_none_or(|(_, era)| era <= spent.era));
            let last = spent.as_ref().map(|spent| (spent.token, spent.era));
            let Some((token, era)) = last.or(known) else {
                continue;
            };
            let ask = Ask {
                resource,
                token,
                opening: None,
                spend: spent.as_ref().map(|spent| spent.by.to_string()),
                needs: Needs::default(),
            };
            asks.entry(era).or_default().push((ask, spent));
        }
        for (era, asks) in asks {
            let (asks, spends): (Vec<Ask>, Vec<Option<Spend>>) = asks.into_iter().unzip();
            let found = self.context.store.advance(&by.instance, era, &asks).await?;
            for ((ask, spent), found) in asks.iter().zip(spends).zip(found) {
                let key = &ask.resource;
                if found.era > era {
                    self.context.epoch_table.adopt(found.era);
                    self.context.epoch_table.overruled(key);
                    continue;
                }
                if found.before < Some(ask.token) {
                    self.context.metrics.series.mark_regressions.inc();
                }
                if let Some(spent) = spent {
                    // The name that is now in the store counts, even if it is another one. Later
                    // answers are compared with it.
                    self.context.epoch_table.forget_spent(key);
                    let own = Some(&*spent.by).filter(|_| spent.own);
                    self.context
                        .epoch_table
                        .learn_spent(key, ask.token, &found, now, own);
                }
            }
        }
        Ok(())
    }
}
