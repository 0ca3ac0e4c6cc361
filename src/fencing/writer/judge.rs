//! Answers the requests that share a statement. One statement asks for one token of a resource, and
//! other requests may wait with it: older tokens, newer ones that are not believed yet, and new
//! resources without room.

use super::batch::{Group, MarkRoom, room_for};
use super::request::{Answer, Want, WriterError};
use super::state::Writer;
use super::waiter::Waiter;
use crate::fencing::growth::Full;
use crate::routing::{self, Decision, Token};
use crate::store::{Ask, Found, StoreError};

/// What becomes of one that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The mark is its token, by this statement or before it.
    Current,
    Stale(Token),
    Implausible(Option<Token>),
    Full(Full),
    /// This statement says nothing of its token: it is asked for once more.
    Again,
}

/// The mark after a statement that found this, as far as it is known to be there.
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
        (Decision::Stale { mark }, _) => Judgement::Stale(mark),
        _ if !believed => Judgement::Implausible(mark),
        (_, MarkRoom::Full(full)) if mark.is_none() => Judgement::Full(full),
        (Decision::Current, _) if waiter.token == asked => Judgement::Current,
        _ => Judgement::Again,
    }
}

impl Writer {
    /// Answers those who share a statement. `doubt`: why its epoch cannot be used.
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
                Judgement::Stale(mark) => Ok(Answer::Stale { mark }),
                Judgement::Implausible(mark) => Ok(Answer::Implausible { mark }),
                Judgement::Full(full) => match self.is_refused(&waiter) {
                    Some(own) => Ok(Answer::Full(own)),
                    None if waiter.caller.is_some() && waiter.tries > 0 => Ok(Answer::Full(full)),
                    None => {
                        again.push(waiter);
                        continue;
                    }
                },
                Judgement::Again => {
                    again.push(waiter);
                    continue;
                }
                Judgement::Current => match (&waiter.want, doubt) {
                    (Want::Spend(name), _) if found.spent_by.as_ref() != Some(name) => {
                        Ok(Answer::Spent)
                    }
                    (Want::Open, Some(doubt)) => Err(doubt.clone()),
                    (Want::Open | Want::Raise | Want::Spend(_), _) => Ok(Answer::Granted {
                        advanced: std::mem::take(&mut advanced),
                    }),
                },
            };
            self.answers.push(waiter.reply, answer);
        }
        self.send_back(&ask.resource, again);
    }

    /// Gives back the places of all that turned out not to be new, or not to be known.
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
            if let MarkRoom::Taken(origin) = group.room
                && !made
            {
                self.growth.give_back(origin);
            }
        }
    }

    /// Why there is no room for this one now. Places that were given back since its statement may
    /// have been all that was missing.
    fn is_refused(&self, waiter: &Waiter) -> Option<Full> {
        match room_for(&self.growth, waiter) {
            Err(full) => Some(full),
            Ok(MarkRoom::Taken(origin)) => {
                self.growth.give_back(origin);
                None
            }
            Ok(MarkRoom::Free | MarkRoom::Full(_)) => None,
        }
    }
}
