//! Answers the requests that share a statement. One statement asks for one token of a resource, and
//! other requests may wait with it: older tokens, newer ones that are not believed yet, and new
//! resources without room.

use super::batch::{Group, MarkRoom};
use super::request::{Want, WriterError};
use super::state::Writer;
use super::waiter::Waiter;
use crate::fencing::refused::Refused;
use crate::metrics::DecidedBy;
use crate::routing::{self, Decision, Token};
use crate::store::{Ask, Found, StoreError};

/// The meaning of a statement's answer for one of the requests that share it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The mark is its token, by this statement or before it.
    Current,
    Refused(Refused),
    /// This statement does not decide about its token, so it is asked for once more.
    Again,
}

/// The mark after a statement with this answer, if it is known to be in the store.
pub(super) fn mark_after(group: &Group, found: &Found) -> Option<Token> {
    if group.ask.needs.met_by(found.before) {
        found.before.max(Some(group.ask.token))
    } else {
        found.before
    }
}

/// `mark`: see [`mark_after`].
pub(super) fn judge(
    waiter: &Waiter,
    asked: Token,
    mark: Option<Token>,
    room: MarkRoom,
) -> Judgement {
    let believed = waiter.needs().met_by(mark);
    match (routing::judge(mark, waiter.token), room) {
        (Decision::Stale { mark }, _) => Judgement::Refused(Refused::stale(mark, DecidedBy::Store)),
        _ if !believed => Judgement::Refused(Refused::Implausible { mark }),
        (_, MarkRoom::Full) if mark.is_none() => Judgement::Refused(Refused::TooManyNew),
        (Decision::Current, _) if waiter.token == asked => Judgement::Current,
        _ => Judgement::Again,
    }
}

impl Writer {
    /// Answers the requests that share a statement. `doubt`: why its epoch cannot be used.
    pub(super) fn answer(
        &mut self,
        ask: &Ask,
        waiters: Vec<Waiter>,
        (found, mark, room): (&Found, Option<Token>, MarkRoom),
        doubt: Option<&WriterError>,
    ) {
        let mut advanced = found.before < mark;
        let mut again = Vec::new();
        for waiter in waiters {
            let answer = match judge(&waiter, ask.token, mark, room) {
                // Permissions that were given back since its statement may be enough.
                Judgement::Refused(Refused::TooManyNew)
                    if waiter.tries == 0 && self.context.growth.has_room() =>
                {
                    again.push(waiter);
                    continue;
                }
                Judgement::Refused(refused) => Err(refused),
                Judgement::Again => {
                    again.push(waiter);
                    continue;
                }
                Judgement::Current => match (&waiter.want, doubt) {
                    (Want::Spend(name), _) if found.spent_by.as_ref() != Some(name) => {
                        Err(Refused::Spent)
                    }
                    (Want::Open, Some(doubt)) => Err(doubt.clone().into()),
                    (Want::Open | Want::Raise | Want::Spend(_), _) => {
                        Ok(std::mem::take(&mut advanced))
                    }
                },
            };
            self.queue.answers.push(waiter.reply, answer);
        }
        self.queue.send_back(&ask.resource, again);
    }

    /// Gives back the permission for a new mark of every resource that turned out not to need one,
    /// or whose result is unknown.
    pub(super) fn give_places_back(
        &self,
        groups: &[Group],
        result: &Result<Vec<Found>, StoreError>,
    ) {
        for (index, group) in groups.iter().enumerate() {
            let made = match result {
                Ok(found) => found.get(index).is_some_and(|found| found.before.is_none()),
                Err(_) => false,
            };
            if group.room == MarkRoom::Taken && !made {
                self.context.growth.give_back();
            }
        }
    }
}
