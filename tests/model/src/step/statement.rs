//! What the store does with a statement (`src/store/postgres/advance.rs`,
//! `src/store/postgres/marks.rs`).

use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{
    Broken, OPENINGS, OWN, Purpose, Stage, State, Statement, Token, bit, instance_of,
};

fn at_stage(s: &State, at: usize, slot: usize, stage: Stage) -> Option<Statement> {
    s.proxies[at].statements[slot].filter(|statement| statement.stage == stage)
}

/// The mutant that reads the mark first.
pub fn select(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = at_stage(s, at, slot, Stage::Sent)?;
    if !b.is(Mutant::SelectThenUpdate) || statement.purpose != Purpose::Open {
        return None;
    }
    statement.before = s.store.mark;
    statement.stage = Stage::Selected;
    s.proxies[at].statements[slot] = Some(statement);
    Some(())
}

/// The row lock is held. Without [`Features::LOCKS`] this is part of the commit: nobody can come in
/// between.
pub fn lock(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = at_stage(s, at, slot, Stage::Sent)?;
    if !b.can(Features::LOCKS) || s.locked() {
        return None;
    }
    statement.stage = Stage::Locked;
    s.proxies[at].statements[slot] = Some(statement);
    Some(())
}

/// Executed under the lock, and committed. A statement that nobody waits for any more does the
/// same.
pub fn commit(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let stage = if b.can(Features::LOCKS) {
        Stage::Locked
    } else if b.is(Mutant::SelectThenUpdate) {
        Stage::Selected
    } else {
        Stage::Sent
    };
    let mut statement = at_stage(s, at, slot, stage)
        .or_else(|| at_stage(s, at, slot, Stage::Sent).filter(|s| s.purpose != Purpose::Open))?;
    if b.can(Features::LOCKS) {
        if statement.stage != Stage::Locked {
            return None;
        }
    } else if s.locked() {
        return None;
    }
    let was = s.store;
    match statement.purpose {
        Purpose::Open | Purpose::Spend => execute(b, s, at, &mut statement),
        Purpose::GiveBack => {
            let mine = s.store.spent == statement.name || b.is(Mutant::GiveBackWithoutName);
            if s.store.mark == statement.token && mine {
                s.given_back |= s.store.spent > 0;
                s.store.spent = 0;
            }
        }
    }
    let changed = (was.mark, was.spent) != (s.store.mark, s.store.spent);
    if changed && statement.overrides < s.overrides {
        s.broken.0 |= Broken::UNDONE;
    }
    if s.store.mark < was.mark {
        s.broken.0 |= Broken::FELL;
    }
    statement.stage = Stage::Committed;
    let over = statement.late || statement.purpose == Purpose::GiveBack;
    s.proxies[at].statements[slot] = (!over).then_some(statement);
    Some(())
}

fn execute(b: &Bounds, s: &mut State, at: usize, statement: &mut Statement) {
    let blind = b.is(Mutant::SelectThenUpdate) && statement.purpose == Purpose::Open;
    if !blind {
        statement.before = s.store.mark;
    }
    statement.row_era = s.store.row_era;
    let (token, before) = (statement.token, statement.before);
    if s.store.row_era > statement.era || (blind && before > token) {
        return;
    }
    let opens = statement.purpose == Purpose::Open;
    let spends = statement.purpose == Purpose::Spend;
    if token > before || blind {
        s.store.mark = token;
        s.store.spent = if spends { statement.name } else { 0 };
    } else if token == before && spends && s.store.spent == 0 {
        s.store.spent = statement.name;
    }
    statement.won = spends && token >= before && s.store.spent == statement.name;
    if opens && token >= before {
        let row = usize::from(statement.row);
        s.store.rows[row] = token;
        if b.is(Mutant::CloseWithAdvance) {
            let first = at * OWN;
            for older in first..first + OWN {
                if instance_of(older) == instance_of(row) && s.store.rows[older] < token {
                    s.store.rows[older] = 0;
                }
            }
        }
    }
}

/// The second statement, with a snapshot of its own.
pub fn read_epochs(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = at_stage(s, at, slot, Stage::Committed)?;
    if statement.late || !opened(&statement) || !b.reads_apart() {
        return None;
    }
    answer(b, s, &mut statement);
    s.proxies[at].statements[slot] = Some(statement);
    Some(())
}

/// What the second statement says now.
pub fn answer(b: &Bounds, s: &State, statement: &mut Statement) {
    let row = usize::from(statement.row);
    statement.there = s.present() & bit(row) > 0;
    if !b.is(Mutant::EpochsInOwnStatement) {
        statement.older = s.older(row / OPENINGS, statement.token);
    }
    statement.stage = Stage::Answered;
}

/// Returns whether this statement has opened its epoch, by its answer.
#[must_use]
pub fn opened(statement: &Statement) -> bool {
    statement.purpose == Purpose::Open
        && statement.row_era <= statement.era
        && statement.before <= statement.token
}

/// A statement that nobody waits for ends without a trace: its connection was found dead, or the
/// store was restarted.
pub fn vanish(s: &mut State, at: usize, slot: usize) -> Option<()> {
    s.proxies[at].statements[slot].filter(|statement| statement.late)?;
    s.proxies[at].statements[slot] = None;
    Some(())
}

/// The mark that an answer tells of.
#[must_use]
pub fn mark(statement: &Statement) -> Token {
    statement.before.max(statement.token)
}
