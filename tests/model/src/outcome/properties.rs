//! The properties that must hold in every state, and those that must be reached, so that the search
//! is known not to be empty.

use super::state::{Attempt, Broken, Found, Life, Phase, Progress, State, Statement};
use super::{Bounds, step};
use crate::check::{Action, Conditions, Run, Steps, reached};

impl Run for Bounds {
    type State = State;

    const GUARANTEES: &'static [(&'static str, u16)] = &[
        ("outcome: it takes effect once", Broken::TWICE),
        ("outcome: one attempt at a time", Broken::TOGETHER),
        ("outcome: its own answer is replayed", Broken::FOREIGN),
        ("outcome: not sent while recorded", Broken::OVERTAKEN),
        ("outcome: what may have been is known", Broken::FORGOTTEN),
    ];

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

    reached! { |b, s|
        (true) {
            "an answer is replayed": attempt(s, |a| a.phase == Phase::Replayed);
            "what was not sent is sent by another request":
                attempt(s, |a| a.phase == Phase::Ended && !a.sent) && attempt(s, |a| a.effect);
            "what has not been done is sent by another request":
                attempt(s, |a| a.phase == Phase::Ended && a.sent && !a.effect)
                    && attempt(s, |a| a.effect && a.phase == Phase::Sent);
            "an attempt is on record that will never be sent": on_record(s, |a, progress| {
                a.phase == Phase::Ended && !a.sent && progress == Progress::Sent
            });
            "an outcome is unknown, and has settled":
                on_record(s, |a, progress| a.effect && progress == Progress::Settled);
        }
        (b.look_up) {
            "an answer that was looked up is on record": {
                let learned = Phase::Calls(Statement::Learn, Some(Found::Known(None)));
                attempt(s, |a| a.phase == learned)
            };
        }
        (b.look_up || b.forward) {
            "it is sent in the place of an unknown attempt":
                attempt(s, |a| a.from.is_some() && a.sent);
        }
        (b.death) {
            "an instance settles with the outcome unknown": s.life == Life::Settled
                && on_record(s, |a, _| a.instance == 0 && a.effect && a.phase == Phase::Gone);
            "a request outlives its permit": attempt(s, |a| {
                a.instance == 0 && matches!(a.phase, Phase::Calls(..)) && !a.permit
            });
        }
    }
}

fn attempt(s: &State, which: impl Fn(&Attempt) -> bool) -> bool {
    s.attempts.iter().any(which)
}

fn on_record(s: &State, which: impl Fn(&Attempt, Progress) -> bool) -> bool {
    let row = s.row.as_ref();
    row.is_some_and(|row| which(&s.attempts[row.attempt], row.progress))
}
