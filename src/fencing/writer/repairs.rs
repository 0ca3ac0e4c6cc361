//! Repairs: what the store has lost is written back, the mark as this instance knows it and the epochs that
//! are open here.
//!
//! A failover can lose very many at once, so each statement takes as many of them as a batch of requests
//! does. One that runs into a row lock is taken apart. After one that the store refuses, or has no time for, the
//! next takes half as many, down to a single resource, so that no other is kept waiting by it. Each success adds a
//! few again.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::bounds::{MOST_REPAIRS, TROUBLE};
use super::state::Writer;
use crate::fencing::epochs::Spend;
use crate::fencing::lease::Identity;
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::{Ask, EpochRow, Era, StoreError};

/// A resource to repair, with its mark as it was known before anything was sent.
type Loss = (ResourceKey, Option<(Token, Era)>);

/// Whether a single row may be the cause, so that others are better tried without it.
fn of_a_row(error: &StoreError) -> bool {
    matches!(error, StoreError::LockTimeout(_) | StoreError::Statement(_))
}

impl Writer {
    /// Writes back what was lost.
    ///
    /// Only under a lease that held after the mark was read: who was declared dead may have missed an override of it,
    /// and would write the mark of before back. One that was done while the epochs were off the record, or that comes
    /// later, has a later era than the one the mark was learned in, in which it is asked for.
    pub(super) async fn repair(&mut self) {
        let by = self.lease.identity();
        let now = Instant::now();
        let locked = |key: &&ResourceKey| self.trouble.get(*key).is_some_and(|until| *until > now);
        let next = self.repairs.iter().filter(|key| !locked(key));
        let most = self.most_repairs;
        let mut next: Vec<ResourceKey> = next.take(most + 1).cloned().collect();
        let more = next.len() > most;
        next.truncate(most);
        if next.is_empty() {
            return;
        }
        next.sort();
        match self.repair_these(&next, &by).await {
            // The others with the next turn: requests for other resources wait meanwhile.
            Err(StoreError::LockTimeout(_)) if next.len() > 1 => self.repair |= more,
            done => {
                match &done {
                    Ok(true) => {
                        self.repair |= more;
                        self.most_repairs = MOST_REPAIRS.min(most + most / 8 + 1);
                    }
                    Err(StoreError::Timeout(_) | StoreError::Statement(_)) => {
                        self.most_repairs = (next.len() / 2).max(1);
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
                    self.epoch_table.repaired(key);
                    self.repairs.remove(key);
                }
            }
            // Not begun: the lease does not hold.
            Ok(false) => {}
            Err(error) => {
                self.meters.failed(&error);
                // Their epochs may be recorded late.
                self.doubted = Some(now);
                let one_refused = keys.len() == 1 && of_a_row(&error);
                if one_refused || matches!(error, StoreError::LockTimeout(_)) {
                    let until = now + TROUBLE;
                    let locked = keys.iter().map(|key| (key.clone(), until));
                    self.trouble.extend(locked);
                }
            }
        }
    }

    /// Writes all of it back, or leaves it to be tried again. `false`: the lease does not hold.
    async fn repair_these(
        &mut self,
        keys: &[ResourceKey],
        by: &Identity,
    ) -> Result<bool, StoreError> {
        let losses = keys.iter();
        let losses: Vec<Loss> = losses
            .map(|key| (key.clone(), self.epoch_table.known_in(key)))
            .collect();
        if !self.lease.holds(by.generation) {
            return Ok(false);
        }
        // The epochs first: from then on the mark cannot be overridden.
        let rows = keys.iter().flat_map(|key| self.epoch_table.rows_of(key));
        let rows: Vec<EpochRow> = rows.collect();
        if !rows.is_empty() {
            self.store.reopen(&rows).await?;
        }
        self.write_back(losses, by).await?;
        Ok(true)
    }

    /// Writes the marks back as they are known, and that their tokens are spent if that is known, too: those of one
    /// era in one statement.
    async fn write_back(&mut self, losses: Vec<Loss>, by: &Identity) -> Result<(), StoreError> {
        // In this order: a spending that is read now was known in this era.
        let now = self.epoch_table.era();
        let mut asks: BTreeMap<Era, Vec<(Ask, Option<Spend>)>> = BTreeMap::new();
        for (resource, known) in losses {
            let spent = self.epoch_table.spent(&resource);
            // One that is older than the mark, or of an era before the mark's, is nothing to write back.
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
            let found = self.store.advance(&by.instance, era, &asks).await?;
            for ((ask, spent), found) in asks.iter().zip(spends).zip(found) {
                let key = &ask.resource;
                if found.era > era {
                    self.epoch_table.adopt(found.era);
                    self.epoch_table.overruled(key);
                    continue;
                }
                if found.before < Some(ask.token) {
                    self.meters.regressions.inc();
                }
                if let Some(spent) = spent {
                    // What stands there now counts, be it another name: it is held against the store from here on.
                    self.epoch_table.forget_spent(key);
                    let own = Some(&*spent.by).filter(|_| spent.own);
                    self.epoch_table
                        .learn_spent(key, ask.token, &found, now, own);
                }
            }
        }
        Ok(())
    }
}
