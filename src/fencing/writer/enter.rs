//! Enters the answers of a statement in the epoch table, and answers the waiting requests.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::batch::{Group, Outcome};
use super::closes::keys_of;
use super::judge::mark_after;
use super::request::WriterError;
use super::state::Writer;
use crate::fencing::epochs::{Drained, Reread, Spend};
use crate::fencing::lease::Identity;
use crate::fencing::refused::Refused;
use crate::routing::{ResourceKey, Token};
use crate::store::{Ask, EpochRow, Era, Found, Notification, StoreError};

impl Writer {
    /// Enters a batch's answers in the epoch table and answers the waiting requests. Returns the
    /// notifications to send.
    pub(super) fn enter(&mut self, outcome: Outcome) -> Vec<Notification> {
        let Outcome {
            groups,
            riders,
            era,
            by,
            result,
            epochs,
            lost,
            told,
            rereads,
        } = outcome;
        self.give_places_back(&groups, &result);
        let mut notifications = Vec::new();
        let now = Instant::now();
        match &result {
            Ok(_) => {
                self.closes.ridden(&riders, now);
                notifications.extend(closed(&riders.rows[..riders.wanted]));
            }
            // These rows may be the cause, so the next batch goes without them.
            Err(_) if !riders.rows.is_empty() => self.closes.failed(now),
            Err(_) => {}
        }
        self.enter_rereads(&rereads, &epochs, (era, &by), &mut notifications);
        match result {
            Ok(found) => {
                let mut waits = Vec::new();
                for (group, found) in groups.into_iter().zip(found) {
                    self.locks.passed(&group.ask.resource);
                    let rows = rows_of(&epochs, &lost, &group.ask.resource);
                    self.enter_one(group, &found, era, &by, rows, &mut waits);
                }
                if !told {
                    notifications.extend(waits);
                }
            }
            // The server has rolled it back, unless only the second read met a lock. Then the walk of
            // the own rows finds what it has opened.
            Err(StoreError::LockTimeout(message)) => {
                if let Some(left_out) = self.throttles.locked.say(Instant::now()) {
                    tracing::warn!(
                        error = message,
                        resources = groups.len(),
                        left_out,
                        "a batch ran into a row lock and is sent again without the rows that are locked"
                    );
                }
                for Group { ask, waiters, .. } in groups {
                    let is_cause = self.locks.suspect(&ask.resource);
                    let waiters = waiters.into_iter();
                    let waiters = waiters.map(|waiter| (ask.resource.clone(), waiter));
                    if is_cause {
                        self.locks.park(waiters);
                    } else {
                        self.queue.waiting.extend(waiters);
                    }
                }
            }
            Err(error) => {
                if let Some(left_out) = self.throttles.refused.say_of(error.kind(), Instant::now())
                {
                    tracing::warn!(%error, kind = error.kind(), left_out,
                        "the store did not take a batch");
                }
                let error = WriterError::new(&error);
                for group in groups {
                    self.doubt(&group.ask, &by);
                    for waiter in group.waiters {
                        waiter.reply.send(Err(error.clone().into()));
                    }
                }
            }
        }
        self.queue.answers.deliver();
        notifications
    }

    /// Enters the rows of resources that were read again.
    fn enter_rereads(
        &mut self,
        rereads: &[ResourceKey],
        epochs: &Result<HashMap<ResourceKey, Vec<EpochRow>>, StoreError>,
        (era, by): (Era, &Identity),
        notifications: &mut Vec<Notification>,
    ) {
        for key in rereads {
            // Removed even if the read has failed.
            let quiet = self.rereads.was_quiet(key);
            let Ok(rows) = epochs else { continue };
            let rows = rows.get(key).map_or(&[][..], Vec::as_slice);
            match self.context.epoch_table.reread(key, rows, by.incarnation) {
                Reread::Left(_) if quiet => {}
                Reread::Left(left) => {
                    for (older, token) in left {
                        self.context.notify_owner(notifications, &older, token, era);
                    }
                }
                // Under a lapsed lease, others may have declared this instance dead and deleted
                // them.
                Reread::Lost if self.context.lease.holds(by.incarnation) => self.epoch_lost(key),
                Reread::Lost => {}
            }
        }
    }

    fn enter_one(
        &mut self,
        group: Group,
        found: &Found,
        era: Era,
        by: &Identity,
        rows: Result<Option<&[EpochRow]>, &StoreError>,
        notifications: &mut Vec<Notification>,
    ) {
        let epoch_table = Arc::clone(&self.context.epoch_table);
        let mark = mark_after(&group, found);
        let Group {
            ask,
            waiters,
            known,
            spent,
            room,
        } = group;
        if found.era > era {
            epoch_table.adopt(found.era);
            self.queue.send_back(&ask.resource, waiters);
            return;
        }
        if self.finds_loss(&ask, found, era, known, spent) {
            self.doubt(&ask, by);
            let error = Refused::from(lost_error());
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
                Ok(_) if self.context.lease.incarnation() != by.incarnation => {
                    doubt = Some(rejoined_error());
                    self.close_drained(Drained { row, wanted: false });
                }
                // It was committed a moment ago and is not there: another server has answered the
                // second statement.
                Ok(None) => {
                    if self.context.lease.holds(by.incarnation) {
                        self.epoch_lost(&ask.resource);
                    }
                    doubt = Some(lost_error());
                    self.close_drained(Drained { row, wanted: false });
                }
                Ok(Some(rows)) => {
                    let others = rows.iter().filter(|other| other.instance != by.instance);
                    let older: Vec<EpochRow> = others
                        .filter(|other| other.token < ask.token)
                        .cloned()
                        .collect();
                    for older in &older {
                        self.context
                            .notify_owner(notifications, older, ask.token, era);
                    }
                    // It looks at the incarnation again, under the lock: a rejoin may come in
                    // between.
                    if !epoch_table.opened(row.clone(), (by.incarnation, era), older) {
                        doubt = Some(rejoined_error());
                        self.close_drained(Drained { row, wanted: false });
                    }
                }
                Err(error) => {
                    doubt = Some(WriterError::new(error));
                    self.doubt(&ask, by);
                }
            }
        }
        if let Some(mark) = mark {
            epoch_table.learn(&ask.resource, mark, era, false);
            if found.before.is_none() {
                self.context.metrics.series.new_resources.inc();
            }
        }
        if mark == Some(ask.token) {
            let own = ask.spend.as_deref();
            epoch_table.learn_spent(&ask.resource, ask.token, found, era, own);
        }
        self.answer(&ask, waiters, (found, mark, room), doubt.as_ref());
    }

    /// Compares what a statement of era `era` found with what was known here before it was sent.
    /// Returns whether something was lost. Then it must be repaired.
    fn finds_loss(
        &mut self,
        ask: &Ask,
        found: &Found,
        era: Era,
        known: Option<(Token, Era)>,
        spent: Option<Spend>,
    ) -> bool {
        if known.is_some_and(|(_, learned)| found.era > learned) {
            // The mark was overridden since. If epochs are open here, they were missing from the
            // store then.
            self.context.epoch_table.overruled(&ask.resource);
        }
        if self.context.epoch_table.era() != era {
            return false;
        }
        let known = known.filter(|(_, learned)| found.era <= *learned);
        let lost = known.is_some_and(|(known, _)| found.before < Some(known));
        if lost {
            self.lost(&ask.resource, known.map(|(known, _)| known), found.before);
            return true;
        }
        // A spending that is being given back is no longer known here.
        let spent = spent
            .filter(|spend| self.context.epoch_table.spent(&ask.resource).as_ref() == Some(spend));
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

/// Notifies the instances that wait for these rows that the rows are deleted.
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
