//! The properties that must hold in every state, and those that must be reached, so that the search
//! is known not to be empty.

use super::state::{Attempt, Broken, Found, Life, Phase, Progress, State, Statement};
use super::{Bounds, step};
use crate::check::{Action, Reached, Run, Steps};

impl Run for Bounds {
    type State = State;

    const GUARANTEES: &'static [(&'static str, u16)] = &[
        ("outcome: it takes effect once", Broken::TWICE),
        (
            "outcome: one attempt at a time is in flight",
            Broken::TOGETHER,
        ),
        (
            "outcome: a replayed answer is the operation's",
            Broken::FOREIGN,
        ),
        (
            "outcome: not sent again while its answer is recorded",
            Broken::OVERTAKEN,
        ),
        (
            "outcome: none that may have been is forgotten",
            Broken::FORGOTTEN,
        ),
    ];

    fn name(&self) -> String {
        self.mutant
            .map_or(self.name.to_owned(), |mutant| format!("{mutant:?}"))
    }

    fn first(&self) -> State {
        State::default()
    }

    fn steps<F: FnMut(Action, State)>(&self, from: &mut Steps<'_, Self, F>) {
        step::all(from);
    }

    fn after(&self, mut state: State) -> State {
        state.broken.0 &= self.judged;
        state
    }

    fn broken(state: &State) -> u16 {
        state.broken.0
    }

    fn reached(&self) -> Vec<Reached<Self>> {
        let tables = [
            (true, ALWAYS),
            (self.look_up, LOOKS_UP),
            (self.look_up || self.forward, RETAKES),
            (self.death, DIES),
        ];
        let here = tables.into_iter().filter(|(needs, _)| *needs);
        here.flat_map(|(_, table)| table).copied().collect()
    }
}

const ALWAYS: &[Reached<Bounds>] = &[
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

const LOOKS_UP: &[Reached<Bounds>] = &[("an answer that was looked up is on record", |_, s| {
    let learned = Phase::Calls(Statement::Learn, Some(Found::Known(None)));
    attempt(s, |a| a.phase == learned)
})];

const RETAKES: &[Reached<Bounds>] = &[("it is sent in the place of an unknown attempt", |_, s| {
    attempt(s, |a| a.from.is_some() && a.sent)
})];

const DIES: &[Reached<Bounds>] = &[
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
