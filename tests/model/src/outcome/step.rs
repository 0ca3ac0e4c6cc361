//! The events, a function for each that is more than a line. `None`: not now.

use super::state::{Attempt, Broken, Found, Life, Phase, Progress, Row, State, Statement};
use super::{Bounds, Mutant};
use crate::check::{Action, Steps};

/// A step of a request, by its number; those of the first instance and of operators have none.
type Step = fn(&Bounds, &mut State, usize) -> Option<()>;
type Table = &'static [(&'static str, Step)];

const OF_REQUESTS: Table = &[
    ("Admit", admit),
    ("Execute", execute_call),
    ("Read", read),
    ("GiveUp", give_up),
    ("Resume", resume),
    ("Send", send),
    ("NotSent", not_sent),
    ("Effect", effect),
    ("Answer", answer),
    ("NotDone", not_done),
    ("Break", break_off),
    ("Settle", settle),
];
const OF_THE_FIRST_INSTANCE: Table = &[
    ("Lapse", |_, s, _| s.lives(Life::Alive, Life::Lapsed)),
    ("Renew", |_, s, _| {
        s.lives(Life::Lapsed, Life::Alive).filter(|()| !s.crashed)
    }),
    ("Crash", |_, s, _| crash(s)),
    ("DeclareDead", |_, s, _| s.lives(Life::Lapsed, Life::Dead)),
    ("SettleInstance", |_, s, _| settle_instance(s)),
    ("Rejoin", |_, s, _| rejoin(s)),
];

/// Takes each step that can be taken.
pub fn all<F: FnMut(Action, State)>(from: &mut Steps<'_, Bounds, F>) {
    let b = from.model;
    for r in 0..b.requests.len() {
        for (name, step) in OF_REQUESTS {
            from.take((*name, r, 0), |s| step(b, s, r));
        }
        for statement in Statement::ALL {
            from.take(("Late", r, statement as usize), |s| {
                late(b, s, r, statement)
            });
        }
    }
    if b.death {
        for (name, step) in OF_THE_FIRST_INSTANCE {
            from.take((*name, 0, 0), |s| step(b, s, 0));
        }
    }
    if b.overrides {
        from.take(("Override", 0, 0), |s| override_mark(b, s));
    }
    if b.resolves {
        from.take(("LookAtUnknown", 0, 0), look_at_unknown);
        from.take(("Resolve", 0, 0), |s| resolve(b, s));
    }
    if b.is(Mutant::UnknownExpires) {
        from.take(("Expire", 0, 0), expire);
    }
}

impl Attempt {
    fn goes(&mut self, from: Phase, to: Phase) -> Option<()> {
        let was = std::mem::replace(&mut self.phase, to);
        (was == from).then_some(())
    }

    /// It is over here, and so is its permit.
    fn ends(&mut self, phase: Phase) {
        self.phase = phase;
        self.permit = false;
    }
}

impl State {
    fn lives(&mut self, from: Life, to: Life) -> Option<()> {
        let was = std::mem::replace(&mut self.life, to);
        (was == from).then_some(())
    }

    fn record(&mut self, progress: Progress) {
        self.row.as_mut().expect("it was found").progress = progress;
    }
}

/// Gives a permit, if nothing with another token has one.
fn admit(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let asked = b.requests[r];
    s.attempts[r].instance = match asked.mortal {
        true if s.rejoined => 1,
        true => 0,
        false => 2,
    };
    let older = asked.token < s.mark;
    if older || !s.holds(r) || s.other(r, |q, a| a.permit && b.requests[q].token != asked.token) {
        return None;
    }
    s.mark = asked.token;
    s.attempts[r].permit = true;
    s.attempts[r].goes(Phase::Idle, Phase::Calls(Statement::Begin, None))
}

/// The statement of a request is executed.
fn execute_call(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let Phase::Calls(statement, None) = s.attempts[r].phase else {
        return None;
    };
    let found = execute(b, s, r, statement);
    s.attempts[r].phase = Phase::Calls(statement, Some(found));
    Some(())
}

/// The work of the store, under the row's lock.
fn execute(b: &Bounds, s: &mut State, r: usize, statement: Statement) -> Found {
    let (own, from) = (Some(r), s.attempts[r].from);
    // Returns whether the row is this attempt's and unknown.
    let is = |s: &State, name: Option<usize>, any: Mutant| {
        let row = s.row.filter(|row| Some(row.attempt) == name || b.is(any));
        row.is_some_and(|row| !matches!(row.progress, Progress::Known(_)))
    };
    let begun = Row {
        attempt: r,
        progress: Progress::Sent,
    };
    match statement {
        Statement::Begin => match s.row {
            Some(row) => return judge(b, s, r, row),
            None => s.row = Some(begun),
        },
        Statement::Retake if is(s, from, Mutant::RetakeWithoutName) => s.row = Some(begun),
        Statement::Learn if is(s, from, Mutant::KnownWithoutName) => {
            s.record(Progress::Known(None));
            return Found::Known(None);
        }
        Statement::Know if is(s, own, Mutant::KnownWithoutName) => s.record(Progress::Known(own)),
        Statement::GiveBack if is(s, own, Mutant::GiveBackWithoutName) => give_back(b, s, r),
        Statement::Settle if is(s, own, Mutant::SettledWithoutName) => s.record(Progress::Settled),
        _ => return Found::UnderWay,
    }
    Found::Own
}

/// The attempt has had no effect. The one whose place it took may have had (`forward`).
fn give_back(b: &Bounds, s: &mut State, r: usize) {
    let again = b.forward && s.attempts[r].from.is_some();
    if again && !b.is(Mutant::GiveBackForgets) {
        return s.record(Progress::Settled);
    }
    s.row = None;
    if s.attempts.iter().any(|a| a.effect || a.in_flight) {
        s.broken.0 |= Broken::FORGOTTEN;
    }
}

/// Judges an operation by the row of another attempt.
fn judge(b: &Bounds, s: &State, r: usize, row: Row) -> Found {
    let other = row.attempt;
    let (own, found) = (b.requests[r], b.requests[other]);
    let settled = match row.progress {
        _ if found.digest != own.digest && !b.is(Mutant::AnyDigest) => return Found::Mismatch,
        Progress::Known(by) => return Found::Known(by),
        Progress::Settled => true,
        Progress::Sent => {
            s.life_of(other) == Life::Settled
                || b.is(Mutant::DeadIsSettled) && s.life_of(other) == Life::Dead
                || b.is(Mutant::EqualIsSettled) && found.token == own.token
                || b.is(Mutant::NewerIsSettled) && found.token > own.token
                || b.is(Mutant::LookUpTooSoon) && b.look_up
        }
    };
    match settled {
        true => Found::Settled(other),
        false if found.token < own.token => Found::Older(other),
        false => Found::UnderWay,
    }
}

fn read(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let Phase::Calls(statement, Some(found)) = s.attempts[r].phase else {
        return None;
    };
    let valid = s.holds(r) || b.is(Mutant::OlderWithoutLease);
    let own = matches!(statement, Statement::Know | Statement::GiveBack);
    let attempt = &mut s.attempts[r];
    match found {
        _ if own => attempt.ends(Phase::Ended),
        Found::Own => attempt.phase = Phase::Own,
        Found::Older(name) if valid => attempt.phase = Phase::Unknown(name),
        Found::Settled(name) => attempt.phase = Phase::Unknown(name),
        Found::Mismatch | Found::UnderWay | Found::Older(_) => attempt.ends(Phase::Refused),
        Found::Known(by) => {
            attempt.ends(Phase::Replayed);
            if !s.is_answer_to(b, r, by) {
                s.broken.0 |= Broken::FOREIGN;
            }
        }
    }
    Some(())
}

/// The statement is executed later, or never; or it was, and its answer is lost.
fn give_up(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let attempt = &mut s.attempts[r];
    let statement = match attempt.phase {
        Phase::Calls(statement, answer) => {
            attempt.late |= answer.map_or(statement.bit(), |_| 0);
            statement
        }
        Phase::Unknown(_) => {
            attempt.ends(Phase::Refused);
            return Some(());
        }
        _ => return None,
    };
    match statement {
        Statement::Begin if b.is(Mutant::SendWithoutAnswer) => {
            attempt.phase = Phase::Own;
            return Some(());
        }
        Statement::Learn => {
            attempt.ends(Phase::Refused);
            return Some(());
        }
        // A row that it may have made is given back until that succeeds.
        Statement::Begin | Statement::Retake | Statement::GiveBack => {
            attempt.late |= Statement::GiveBack.bit();
        }
        Statement::Know | Statement::Settle => attempt.late |= Statement::Settle.bit(),
    }
    attempt.ends(Phase::Ended);
    Some(())
}

fn late(b: &Bounds, s: &mut State, r: usize, statement: Statement) -> Option<()> {
    if s.attempts[r].late & statement.bit() == 0 {
        return None;
    }
    let changed = execute(b, s, r, statement) != Found::UnderWay;
    // A row that comes into being later is given back all the same.
    if changed || statement != Statement::GiveBack {
        s.attempts[r].late &= !statement.bit();
    }
    Some(())
}

fn resume(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let Phase::Unknown(from) = s.attempts[r].phase else {
        return None;
    };
    let statement = match s.done() {
        true if b.look_up => Statement::Learn,
        _ if b.look_up || b.forward => Statement::Retake,
        _ => return None,
    };
    s.attempts[r].from = Some(from);
    s.attempts[r].phase = Phase::Calls(statement, None);
    Some(())
}

fn send(_: &Bounds, s: &mut State, r: usize) -> Option<()> {
    if !s.holds(r) {
        return None;
    }
    if s.other(r, |_, a| a.in_flight) {
        s.broken.0 |= Broken::TOGETHER;
    }
    let recorded = |q, a: &Attempt| {
        matches!(a.phase, Phase::Calls(Statement::Know, _)) && s.life_of(q) != Life::Settled
    };
    if s.other(r, recorded) {
        s.broken.0 |= Broken::OVERTAKEN;
    }
    let attempt = &mut s.attempts[r];
    (attempt.sent, attempt.in_flight) = (true, true);
    attempt.goes(Phase::Own, Phase::Sent)
}

fn effect(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    if !s.attempts[r].in_flight {
        return None;
    }
    if !b.forward && s.other(r, |_, a| a.effect) {
        s.broken.0 |= Broken::TWICE;
    }
    s.attempts[r].effect = true;
    Some(())
}

fn not_sent(_: &Bounds, s: &mut State, r: usize) -> Option<()> {
    s.attempts[r].goes(Phase::Own, Phase::Calls(Statement::GiveBack, None))
}

/// A whole answer.
fn answer(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let attempt = &mut s.attempts[r];
    attempt.in_flight = false;
    attempt.permit &= !b.is(Mutant::EndsBeforeRecord);
    attempt.goes(Phase::Sent, Phase::Calls(Statement::Know, None))
}

/// A whole answer, which says that the operation has not been done.
fn not_done(_: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let attempt = &mut s.attempts[r];
    attempt.in_flight = false;
    let goes = attempt.goes(Phase::Sent, Phase::Calls(Statement::GiveBack, None));
    goes.filter(|()| !attempt.effect)
}

fn break_off(b: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let attempt = &mut s.attempts[r];
    if b.is(Mutant::GiveBackOfSent) {
        attempt.late |= Statement::GiveBack.bit();
    }
    if b.is(Mutant::SettledAtOnce) {
        attempt.late |= Statement::Settle.bit();
    }
    attempt.goes(Phase::Sent, Phase::Broken)
}

fn settle(_: &Bounds, s: &mut State, r: usize) -> Option<()> {
    let attempt = &mut s.attempts[r];
    (attempt.in_flight, attempt.permit) = (false, false);
    attempt.late |= Statement::Settle.bit();
    attempt.goes(Phase::Broken, Phase::Ended)
}

/// The process dies. What it has sent goes on, statements too.
fn crash(s: &mut State) -> Option<()> {
    if s.crashed || s.rejoined {
        return None;
    }
    s.crashed = true;
    s.life = s.life.max(Life::Lapsed);
    for attempt in s.attempts.iter_mut().filter(|a| a.instance == 0) {
        if let Phase::Calls(statement, None) = attempt.phase {
            attempt.late |= statement.bit();
        }
        if attempt.phase != Phase::Idle {
            attempt.phase = Phase::Gone;
        }
    }
    Some(())
}

fn settle_instance(s: &mut State) -> Option<()> {
    for attempt in s.attempts.iter_mut().filter(|a| a.instance == 0) {
        (attempt.in_flight, attempt.permit) = (false, false);
    }
    s.lives(Life::Dead, Life::Settled)
}

fn rejoin(s: &mut State) -> Option<()> {
    let may = !s.rejoined && (s.crashed || s.life >= Life::Dead);
    s.rejoined = true;
    may.then_some(())
}

/// Lowers the mark to the lowest token, where nothing is in flight.
fn override_mark(b: &Bounds, s: &mut State) -> Option<()> {
    if s.attempts.iter().any(|attempt| attempt.permit) {
        return None;
    }
    s.mark = s.mark.min(b.requests.iter().map(|r| r.token).min()?);
    Some(())
}

/// An operator looks at an unknown outcome that has settled, and finds out what came of it.
fn look_at_unknown(s: &mut State) -> Option<()> {
    let row = s.row?;
    let settled = match row.progress {
        Progress::Sent => s.life_of(row.attempt) == Life::Settled,
        Progress::Settled => true,
        Progress::Known(_) => false,
    };
    s.looked = Some((row.attempt, s.done()));
    settled.then_some(())
}

fn resolve(b: &Bounds, s: &mut State) -> Option<()> {
    let (attempt, done) = s.looked.take()?;
    let row = s
        .row
        .filter(|row| row.attempt == attempt || b.is(Mutant::ResolveWithoutName));
    match row?.progress {
        Progress::Known(_) => {}
        _ if done => s.record(Progress::Known(None)),
        _ => s.row = None,
    }
    Some(())
}

/// For one mutant.
fn expire(s: &mut State) -> Option<()> {
    let row = s.row.take()?;
    (row.progress == Progress::Sent).then_some(())
}
