//! [`Action`]: each thing that can happen next.

use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{EXCHANGES, INSTANCES, OWN, PUBLICATIONS, STATEMENTS, State, Token};

/// One step. `at` is a proxy, `slot` a place among its statements or exchanges, `row` one of its
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    // The lane.
    Ask { at: usize, token: Token },
    Select { at: usize, slot: usize },
    Commit { at: usize, slot: usize },
    Enter { at: usize, slot: usize },
    GiveUp { at: usize, slot: usize },
    Fail { at: usize, slot: usize },
    Cede { at: usize, row: usize },
    Publish { at: usize },
    Publication { at: usize, slot: usize },
    NoPublication { at: usize, slot: usize },
    Learn { at: usize, token: Token },
    Look { at: usize },
    ReadLook { at: usize },
    EnterLook { at: usize },
    CloseIdle { at: usize, row: usize },
    // Exchanges.
    Permit { at: usize, row: usize },
    Spend { at: usize, slot: usize },
    Send { at: usize, slot: usize },
    SendRest { at: usize, slot: usize },
    NotSent { at: usize, slot: usize },
    Write { at: usize, slot: usize },
    ArriveInPart { at: usize, slot: usize },
    Arrive { at: usize, slot: usize },
    Break { at: usize, slot: usize },
    End { at: usize, slot: usize },
    // Life and death.
    Lapse { at: usize },
    Renew { at: usize },
    Rejoin { at: usize },
    Crash { at: usize },
    Restart { at: usize },
    Leave { at: usize },
    DeclareDead { instance: usize },
    Settle { instance: usize },
    // Operators.
    Override { token: Token },
    OverrideAnother,
    Prune,
    // Loss.
    FallBehind,
    FailOver,
    RecordAgain { at: usize },
    Reconcile { at: usize },
    Repair { at: usize },
    LiftBar { at: usize },
}

/// All that is worth trying; what cannot happen is sorted out by the step itself.
pub fn candidates(bounds: &Bounds, state: &State, out: &mut Vec<Action>) {
    if state.broken.0 > 0 {
        return;
    }
    for at in 0..bounds.proxies {
        lane(bounds, state, at, out);
        exchanges(bounds, state, at, out);
        life(bounds, state, at, out);
    }
    if bounds.can(Features::LEASE) {
        for instance in 0..INSTANCES {
            out.extend([
                Action::DeclareDead { instance },
                Action::Settle { instance },
            ]);
        }
    }
    if bounds.can(Features::OVERRIDE) {
        out.push(Action::OverrideAnother);
        out.extend((1..state.store.mark).map(|token| Action::Override { token }));
    }
    if bounds.can(Features::PRUNE) {
        out.push(Action::Prune);
    }
    if bounds.fails_over() {
        out.extend([Action::FallBehind, Action::FailOver]);
    }
}

fn lane(bounds: &Bounds, state: &State, at: usize, out: &mut Vec<Action>) {
    let proxy = &state.proxies[at];
    for slot in 0..STATEMENTS {
        if proxy.statements[slot].is_none() {
            continue;
        }
        out.extend([
            Action::Commit { at, slot },
            Action::Enter { at, slot },
            Action::GiveUp { at, slot },
            Action::Fail { at, slot },
        ]);
        if bounds.is(Mutant::SelectThenUpdate) {
            out.push(Action::Select { at, slot });
        }
    }
    for slot in 0..PUBLICATIONS {
        if proxy.publications[slot].is_some() {
            out.extend([
                Action::Publication { at, slot },
                Action::NoPublication { at, slot },
            ]);
        }
    }
    if !proxy.running {
        return;
    }
    for token in 1..=bounds.tokens {
        out.extend([Action::Learn { at, token }, Action::Ask { at, token }]);
    }
    out.extend([
        Action::Publish { at },
        Action::Look { at },
        Action::ReadLook { at },
        Action::EnterLook { at },
    ]);
    for row in at * OWN..(at + 1) * OWN {
        out.extend([
            Action::Permit { at, row },
            Action::CloseIdle { at, row },
            Action::Cede { at, row },
        ]);
    }
}

fn exchanges(bounds: &Bounds, state: &State, at: usize, out: &mut Vec<Action>) {
    for slot in 0..EXCHANGES {
        if state.proxies[at].exchanges[slot].is_none() {
            continue;
        }
        out.extend([
            Action::Send { at, slot },
            Action::NotSent { at, slot },
            Action::End { at, slot },
        ]);
        if bounds.can(Features::SPEND) {
            out.push(Action::Spend { at, slot });
        }
        if bounds.can(Features::BODY) {
            out.push(Action::SendRest { at, slot });
        }
        if bounds.can(Features::BREAK) || bounds.can(Features::TRANSIT) {
            out.push(Action::Break { at, slot });
        }
        if bounds.can(Features::TRANSIT) {
            out.extend([Action::Write { at, slot }, Action::Arrive { at, slot }]);
        }
        if bounds.can(Features::TRICKLE) {
            out.push(Action::ArriveInPart { at, slot });
        }
    }
}

fn life(bounds: &Bounds, state: &State, at: usize, out: &mut Vec<Action>) {
    if bounds.can(Features::LEASE) || bounds.can(Features::OVERRIDE) {
        out.push(Action::Renew { at });
    }
    out.push(Action::RecordAgain { at });
    if bounds.loses() && state.proxies[at].running {
        out.extend([
            Action::Reconcile { at },
            Action::Repair { at },
            Action::LiftBar { at },
        ]);
    }
    if at >= bounds.mortal {
        return;
    }
    if bounds.can(Features::CRASH) {
        out.extend([Action::Crash { at }, Action::Restart { at }]);
    }
    if bounds.can(Features::LEAVE) {
        out.extend([Action::Leave { at }, Action::Restart { at }]);
    }
    if bounds.can(Features::LEASE) {
        out.extend([Action::Lapse { at }, Action::Rejoin { at }]);
    }
}
