//! Judges the requests that share a statement. One statement asks for one token of a resource, and
//! other requests may wait with it: older tokens, newer ones that are not believed yet, and new
//! resources without room.

use super::compose::MarkRoom;
use super::request::Waiter;
use crate::fencing::refused::Refused;
use crate::metrics::{DecidedBy, Limit};
use crate::routing::{self, Decision, Token};
use crate::store::{Ask, Found};

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
pub(super) fn mark_after(ask: &Ask, found: &Found) -> Option<Token> {
    if ask.needs.met_by(found.before) {
        found.before.max(Some(ask.token))
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
        (_, MarkRoom::Full) if mark.is_none() => {
            Judgement::Refused(Refused::Limited(Limit::NewResources))
        }
        (Decision::Current, _) if waiter.token == asked => Judgement::Current,
        _ => Judgement::Again,
    }
}
