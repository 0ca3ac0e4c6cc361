//! The properties that must hold in every state, and those that must be reached, so that the search
//! is known not to be empty.

use stateright::Property;

use super::state::{Attempt, Broken, Found, Life, Phase, Progress, State, Statement};
use super::{Bounds, Outcome};

/// The properties that must hold in every state.
pub(super) fn guarantees() -> Vec<Property<Outcome>> {
    vec![
        Property::always("outcome: it takes effect once", |_, s| {
            unbroken(s, Broken::TWICE)
        }),
        Property::always("outcome: one attempt at a time is in flight", |_, s| {
            unbroken(s, Broken::TOGETHER)
        }),
        Property::always("outcome: a replayed answer is the operation's", |_, s| {
            unbroken(s, Broken::FOREIGN)
        }),
        Property::always(
            "outcome: not sent again while its answer is recorded",
            |_, s| unbroken(s, Broken::OVERTAKEN),
        ),
        Property::always("outcome: none that may have been is forgotten", |_, s| {
            unbroken(s, Broken::FORGOTTEN)
        }),
    ]
}

fn unbroken(s: &State, what: u8) -> bool {
    s.broken.0 & what == 0
}

pub(super) fn of(b: &Bounds) -> Vec<Property<Outcome>> {
    if b.mutant.is_some() {
        return vec![Property::always("unbroken", |_, s: &State| s.broken.0 == 0)];
    }
    let tables = [
        (true, ALWAYS),
        (b.look_up, LOOKS_UP),
        (b.look_up || b.forward, RETAKES),
        (b.death, DIES),
    ];
    let reached = tables
        .into_iter()
        .filter(|(needs, _)| *needs)
        .flat_map(|(_, table)| table);
    let reached = reached.map(|(name, condition)| Property::sometimes(name, *condition));
    guarantees().into_iter().chain(reached).collect()
}

/// The properties that must be reached.
type Reached = (&'static str, fn(&Outcome, &State) -> bool);

const ALWAYS: &[Reached] = &[
    ("an answer is replayed", |_, s| {
        attempt(s, |a| a.phase == Phase::Replayed)
    }),
    ("what was not sent is sent by another request", |_, s| {
        attempt(s, |a| a.phase == Phase::Ended && !a.sent) && attempt(s, |a| a.effect)
    }),
    (
        "what has not been done is sent by another request",
        |_, s| {
            attempt(s, |a| a.phase == Phase::Ended && a.sent && !a.effect)
                && attempt(s, |a| a.effect && a.phase == Phase::Sent)
        },
    ),
    ("an attempt is on record that will never be sent", |_, s| {
        on_record(s, |a, progress| {
            a.phase == Phase::Ended && !a.sent && progress == Progress::Sent
        })
    }),
    ("an outcome is unknown, and has settled", |_, s| {
        on_record(s, |a, progress| a.effect && progress == Progress::Settled)
    }),
];

const LOOKS_UP: &[Reached] = &[("an answer that was looked up is on record", |_, s| {
    let learned = Phase::Calls(Statement::Learn, Some(Found::Known(None)));
    attempt(s, |a| a.phase == learned)
})];

const RETAKES: &[Reached] = &[("it is sent in the place of an unknown attempt", |_, s| {
    attempt(s, |a| a.from.is_some() && a.sent)
})];

const DIES: &[Reached] = &[
    ("an instance settles with the outcome unknown", |_, s| {
        on_record(s, |a, _| {
            a.instance == 0 && a.effect && a.phase == Phase::Gone
        }) && s.life == Life::Settled
    }),
    ("a request outlives its permit", |_, s| {
        attempt(s, |a| {
            a.instance == 0 && matches!(a.phase, Phase::Calls(..)) && !a.permit
        })
    }),
];

fn attempt(s: &State, which: impl Fn(&Attempt) -> bool) -> bool {
    s.attempts.iter().any(which)
}

fn on_record(s: &State, which: impl Fn(&Attempt, Progress) -> bool) -> bool {
    let row = s.row.as_ref();
    row.is_some_and(|row| which(&s.attempts[row.attempt], row.progress))
}
