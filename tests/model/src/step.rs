//! The steps: a table for each thing that takes them, and a function for each. `None`: not now.

pub mod exchange;
pub mod lane;
pub mod life;
pub mod loss;
pub mod memory;
pub mod operators;
pub mod publication;
pub mod statement;
pub mod transit;

use crate::bounds::{Bounds, Features};
use crate::check::{Action, Steps};
use crate::state::{Broken, INSTANCES, OWN, State};

/// A step of a proxy and of a place among its statements, publications, exchanges or rows, or of a
/// token.
type Step = fn(&Bounds, &mut State, usize, usize) -> Option<()>;
/// The steps, with what has to be switched on for each.
type Table = &'static [(Features, &'static str, Step)];

const OF_STATEMENTS: Table = &[
    (Features::NONE, "Select", statement::select),
    (Features::NONE, "Commit", statement::commit),
    (Features::NONE, "Enter", lane::enter),
    (Features::NONE, "GiveUp", lane::give_up),
    (Features::NONE, "Fail", lane::fail),
];
const OF_PUBLICATIONS: Table = &[
    (Features::PUBLISH, "Record", publication::record),
    (Features::PUBLISH, "Vanish", publication::vanish),
];
const OF_EXCHANGES: Table = &[
    (Features::SPEND, "Spend", exchange::spend),
    (Features::NONE, "Send", exchange::send),
    (Features::BODY, "SendRest", exchange::send_rest),
    (Features::NONE, "NotSent", exchange::not_sent),
    (Features::TRANSIT, "Write", transit::write),
    (Features::TRICKLE, "ArriveInPart", transit::arrive_in_part),
    (Features::TRANSIT, "Arrive", transit::arrive),
    (Features::NONE, "Break", exchange::break_off),
    (Features::NONE, "End", exchange::end),
];
const OF_TOKENS: Table = &[
    (Features::NONE, "Learn", lane::learn),
    (Features::NONE, "Ask", lane::ask),
];
const OF_ROWS: Table = &[
    (Features::NONE, "Permit", exchange::permit),
    (Features::NONE, "CloseIdle", lane::close_idle),
    (Features::NONE, "Cede", publication::cede),
];
const OF_THE_RUNNING: Table = &[
    (Features::PUBLISH, "Publish", publication::publish),
    (Features::NONE, "Look", lane::look),
    (Features::LOOK, "ReadLook", lane::read_look),
    (Features::LOOK, "EnterLook", lane::enter_look),
    (Features::NONE, "Renew", life::renew),
    (Features::NONE, "RecordAgain", life::record_again),
];
const AFTER_A_LOSS: Table = &[
    (Features::NONE, "Reconcile", loss::reconcile),
    (Features::NONE, "Repair", loss::repair),
    (Features::NONE, "LiftBar", loss::lift_bar),
];
const OF_THE_MORTAL: Table = &[
    (Features::LEASE, "Lapse", life::lapse),
    (Features::LEASE, "Rejoin", life::rejoin),
    (Features::CRASH, "Crash", life::crash),
    (Features::LEAVE, "Leave", life::leave),
    (Features::NONE, "Restart", life::restart),
];
const OF_INSTANCES: Table = &[
    (Features::LEASE, "DeclareDead", life::declare_dead),
    (Features::LEASE, "Settle", life::settle),
];
const OF_OPERATORS: Table = &[
    (Features::OVERRIDE, "RaiseEra", operators::raise_era),
    (Features::PRUNE, "Prune", operators::prune),
];
const OF_LOWER_TOKENS: Table = &[(Features::OVERRIDE, "Override", operators::override_mark)];
const OF_THE_STORE: Table = &[
    (Features::NONE, "FallBehind", loss::fall_behind),
    (Features::NONE, "FailOver", loss::fail_over),
];

/// Takes each step that can be taken.
pub fn all<F: FnMut(Action, State)>(from: &mut Steps<'_, Bounds, F>) {
    let (b, s) = (from.model, from.state);
    let mut each = |table: Table, at: usize, places: &mut dyn Iterator<Item = usize>| {
        let table = table.iter().filter(|(needs, ..)| b.can(*needs));
        for place in places {
            for (_, name, step) in table.clone() {
                from.take((*name, at, place), |s| step(b, s, at, place));
            }
        }
    };
    for at in 0..b.proxies {
        let proxy = &s.proxies[at];
        each(OF_STATEMENTS, at, &mut taken(&proxy.statements));
        each(OF_PUBLICATIONS, at, &mut taken(&proxy.publications));
        each(OF_EXCHANGES, at, &mut taken(&proxy.exchanges));
        if proxy.running {
            each(OF_TOKENS, at, &mut (1..=usize::from(b.tokens)));
            let known = |row: &usize| proxy.epochs[row % OWN].token > 0 || s.store.rows[*row] > 0;
            each(OF_ROWS, at, &mut (at * OWN..(at + 1) * OWN).filter(known));
            each(OF_THE_RUNNING, at, &mut (0..1));
            each(AFTER_A_LOSS, at, &mut (0..usize::from(b.loses())));
        }
        each(OF_THE_MORTAL, at, &mut (0..usize::from(at < b.mortal)));
    }
    for instance in 0..INSTANCES {
        each(OF_INSTANCES, instance, &mut (0..1));
    }
    each(OF_OPERATORS, 0, &mut (0..1));
    each(OF_LOWER_TOKENS, 0, &mut (1..usize::from(s.store.mark)));
    each(OF_THE_STORE, 0, &mut (0..usize::from(b.fails_over())));
}

/// The places that are not empty.
fn taken<T>(places: &[Option<T>]) -> impl Iterator<Item = usize> {
    (0..places.len()).filter(|place| places[*place].is_some())
}

/// The state that a step leads to, under its canonical name.
pub fn after(b: &Bounds, mut s: State) -> State {
    if !b.loses() && remembers(&s) {
        s.broken.0 |= Broken::REMEMBERED;
    }
    s.broken.0 &= b.judged;
    s.canonical(b)
}

/// Returns whether a proxy that knows the era and has its lease remembers a mark above the store's.
/// Its era may be the store's and its lease be lapsed: it forgets when it rejoins, and refuses
/// until then.
fn remembers(s: &State) -> bool {
    let mut proxies = s.proxies.iter();
    proxies.any(|p| p.running && p.lease && p.era == s.store.era && p.known > s.store.mark)
}
