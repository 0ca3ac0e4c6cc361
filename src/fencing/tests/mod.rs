//! Shared by the tests of several modules: a store in memory, and an instance over it.

mod double;
mod double_administration;
mod double_instances;
mod double_marks;
mod rig;

use super::{Refused, Undecided};

pub(crate) use self::double::{CallPlan, Double, broken};
pub(crate) use self::rig::{
    DEATH, LOSS, ROOM, Rig, SETTLE, SILENCE, TERM, UNDELIVERED, assert_repairing, clock, key, token,
};

impl Refused {
    /// True if the store gave no answer.
    pub(crate) fn is_undecided(&self) -> bool {
        self.kind() != "decided"
    }

    /// The kind of the store's error; `decided`: the store gave an answer.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable {
                why: Undecided::NoAnswer(error),
                ..
            } => error.kind,
            _ => "decided",
        }
    }
}
