//! Enters the answers of a statement in the epoch table, and answers those who wait.

use std::collections::HashMap;

use tokio::time::Instant;

use super::batch::{Group, Outcome};
use super::bounds::TROUBLE;
use super::closes::keys_of;
use super::judge::mark_after;
use super::request::WriterError;
use super::state::Writer;
use crate::fencing::epochs::{Drained, Looked, Spend};
use crate::fencing::lease::Identity;
use crate::routing::{ResourceKey, Token};
use crate::store::{Ask, EpochRow, Era, Found, Notification, StoreError};

impl Writer {
    /// Enters a batch's answers in the epoch table and answers those who wait. Returns whom to tell.
    pub(super) fn enter(&mut self, outcome: Outcome, aside: bool) -> Vec<Notification> {
        let Outcome {
            groups,
            riders,
            era,
            by,
            result,
            epochs,
            lost,
            told,
            looks,
        } = outcome;
        for opening in groups.iter().filter_map(|group| group.ask.opening) {
            self.unanswered.remove(&opening);
        }
        self.give_places_back(&groups, &result);
        let mut news = Vec::new();
        let now = Instant::now();
        match &result {
            Ok(_) => {
                self.closes.ridden(&riders, now);
                news.extend(closed(&riders.rows[..riders.wanted]));
            }
            // Maybe by these rows, so that the next batch goes without.
            Err(_) if !riders.rows.is_empty() => self.closes.failed(now),
            Err(_) => {}
        }
        for key in &looks {
            let quiet = self.quiet.remove(key);
            if let Ok(rows) = &epochs {
                let rows = rows.get(key).map_or(&[][..], Vec::as_slice);
                match self.epoch_table.looked(key, rows, by.generation) {
                    Looked::Left(_) if quiet => {}
                    Looked::Left(left) => {
                        for (older, token) in left {
                            self.tell(&mut news, &older, token, era);
                        }
                    }
                    // Under a lapsed lease they may have been deleted by those who hold this instance dead.
                    Looked::Lost if self.lease.holds(by.generation) => self.epoch_lost(key),
                    Looked::Lost => {}
                }
            }
        }
        match result {
            Ok(found) => {
                let mut waits = Vec::new();
                for (group, found) in groups.into_iter().zip(found) {
                    let rows = rows_of(&epochs, &lost, &group.ask.resource);
                    self.enter_one(group, &found, era, &by, rows, &mut waits);
                }
                if !told {
                    news.extend(waits);
                }
            }
            Err(StoreError::LockTimeout(message)) if !aside => {
                if let Some(left_out) = self.said.locked.say(Instant::now()) {
                    tracing::warn!(
                        error = message,
                        resources = groups.len(),
                        left_out,
                        "a batch ran into a row lock and is taken apart"
                    );
                }
                for group in groups {
                    self.set_aside(&group.ask.resource, group.waiters);
                }
            }
            Err(error) => {
                if let Some(left_out) = self.said.refused.say_of(error.kind(), Instant::now()) {
                    tracing::warn!(%error, kind = error.kind(), left_out,
                        "the store did not take a batch");
                }
                if matches!(error, StoreError::LockTimeout(_)) {
                    let until = Instant::now() + TROUBLE;
                    let keys = groups.iter().map(|group| group.ask.resource.clone());
                    self.trouble.extend(keys.map(|key| (key, until)));
                }
                let error = WriterError::new(&error);
                for group in groups {
                    self.doubt(&group.ask, &by);
                    for waiter in group.waiters {
                        waiter.reply.send(Err(error.clone()));
                    }
                }
            }
        }
        self.answers.deliver();
        news
    }

    fn enter_one(
        &mut self,
        group: Group,
        found: &Found,
        era: Era,
        by: &Identity,
        rows: Result<Option<&[EpochRow]>, &StoreError>,
        news: &mut Vec<Notification>,
    ) {
        let mark = mark_after(&group, found);
        let Group {
            ask,
            waiters,
            known,
            spent,
            room,
        } = group;
        if found.era > era {
            self.epoch_table.adopt(found.era);
            self.send_back(&ask.resource, waiters);
            return;
        }
        if self.finds_loss(&ask, found, era, known, spent) {
            self.doubt(&ask, by);
            let error = lost_error();
            for waiter in waiters {
                waiter.reply.send(Err(error.clone()));
            }
            return;
        }
        let mut doubt = None;
        if let Some(opening) = ask.opening.filter(|_| mark == Some(ask.token)) {
            let row = EpochRow {
                resource: ask.resource.clone(),
                instance: by.instance.clone(),
                opening,
                token: ask.token,
            };
            match rows {
                Ok(_) if self.lease.generation() != by.generation => {
                    doubt = Some(rejoined_error());
                    self.drain(Drained { row, wanted: false });
                }
                // Committed a moment ago, and not there any more: another server has answered the second statement.
                Ok(None) => {
                    if self.lease.holds(by.generation) {
                        self.epoch_lost(&ask.resource);
                    }
                    doubt = Some(lost_error());
                    self.drain(Drained { row, wanted: false });
                }
                Ok(Some(rows)) => {
                    let others = rows.iter().filter(|other| other.instance != by.instance);
                    let older: Vec<EpochRow> = others
                        .filter(|other| other.token < ask.token)
                        .cloned()
                        .collect();
                    for older in &older {
                        self.tell(news, older, ask.token, era);
                    }
                    // It looks at the generation again, under the lock: a rejoin may come in between.
                    if !self
                        .epoch_table
                        .opened(row.clone(), (by.generation, era), older)
                    {
                        doubt = Some(rejoined_error());
                        self.drain(Drained { row, wanted: false });
                    }
                }
                Err(error) => {
                    doubt = Some(WriterError::new(error));
                    self.doubt(&ask, by);
                }
            }
        }
        if let Some(mark) = mark {
            self.epoch_table.learn(&ask.resource, mark, era, false);
            if found.before.is_none() {
                self.meters.new_resources.inc();
            }
        }
        if mark == Some(ask.token) {
            let own = ask.spend.as_deref();
            self.epoch_table
                .learn_spent(&ask.resource, ask.token, found, era, own);
        }
        self.answer(&ask, waiters, (found, mark, room), doubt.as_ref());
    }

    /// Holds what a statement of era `era` found against what was known here before it was sent. Says whether
    /// something was lost; then that is to be repaired.
    fn finds_loss(
        &mut self,
        ask: &Ask,
        found: &Found,
        era: Era,
        known: Option<(Token, Era)>,
        spent: Option<Spend>,
    ) -> bool {
        if known.is_some_and(|(_, learned)| found.era > learned) {
            // Overridden since, and its epochs, if any are open here, were off the record then.
            self.epoch_table.overruled(&ask.resource);
        }
        if self.epoch_table.era() != era {
            return false;
        }
        let known = known.filter(|(_, learned)| found.era <= *learned);
        let lost = known.is_some_and(|(known, _)| found.before < Some(known));
        if lost {
            self.lost(&ask.resource, known.map(|(known, _)| known), found.before);
            return true;
        }
        // What was begun to be given back since is known no more.
        let spent =
            spent.filter(|spend| self.epoch_table.spent(&ask.resource).as_ref() == Some(spend));
        let unspent = spent.is_some_and(|spend| spend.is_missing(ask.token, found));
        if unspent {
            self.spending_lost(&ask.resource, found.spent_by.as_deref());
        }
        unspent
    }
}

/// The rows of one resource in the second read. `None`: the epoch that was opened there is gone.
fn rows_of<'a>(
    epochs: &'a Result<HashMap<ResourceKey, Vec<EpochRow>>, StoreError>,
    lost: &[ResourceKey],
    resource: &ResourceKey,
) -> Result<Option<&'a [EpochRow]>, &'a StoreError> {
    if epochs.is_ok() && lost.contains(resource) {
        return Ok(None);
    }
    let rows = epochs.as_ref()?.get(resource);
    Ok(Some(rows.map_or(&[][..], Vec::as_slice)))
}

/// Tells those who wait for these rows that they are gone.
fn closed(rows: &[EpochRow]) -> impl Iterator<Item = Notification> {
    let keys = keys_of(rows).into_iter();
    keys.map(|resource| Notification::Closed { resource })
}

fn rejoined_error() -> WriterError {
    WriterError::other("rejoined", "this proxy has rejoined the store meanwhile")
}

fn lost_error() -> WriterError {
    WriterError::other("lost", "the store has lost marks of this resource")
}
