//! What the store does with a statement. The row is locked from when a statement looks at it to the
//! commit, so that both are one step.

use crate::bounds::{Bounds, Mutant};
use crate::state::{Broken, Life, Purpose, Stage, State, Statement, Token, instance_of, rows};

/// The mutant that reads the mark first.
pub fn select(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mark = s.store.mark;
    let statement = s.proxies[at].statements[slot].as_mut()?;
    let selects = b.is(Mutant::SelectThenUpdate) && statement.purpose == Purpose::Open;
    if statement.stage != Stage::Sent || !selects {
        return None;
    }
    statement.before = mark;
    statement.stage = Stage::Selected;
    Some(())
}

/// Executed, and committed. A statement that nobody waits for any more does the same.
pub fn commit(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = s.proxies[at].statements[slot]?;
    let blind = b.is(Mutant::SelectThenUpdate) && statement.purpose == Purpose::Open;
    let ready = if blind { Stage::Selected } else { Stage::Sent };
    if statement.stage != ready {
        return None;
    }
    let was = s.store;
    match statement.purpose {
        Purpose::Open | Purpose::Spend => execute(b, s, &mut statement, blind),
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
    statement.drops = 0;
    let unheard = statement.late && !b.is(Mutant::LateAnswerUsed);
    let over = unheard || statement.purpose == Purpose::GiveBack;
    s.proxies[at].statements[slot] = (!over).then_some(statement);
    Some(())
}

fn execute(b: &Bounds, s: &mut State, statement: &mut Statement, blind: bool) {
    if !blind {
        statement.before = s.store.mark;
    }
    statement.row_era = s.store.row_era;
    let (token, before) = (statement.token, statement.before);
    let instance = instance_of(usize::from(statement.row));
    let dead = |row| s.store.lives[instance_of(row)] == Life::Dead;
    let mut older = s.older(instance, token);
    if b.is(Mutant::DeadIgnored) {
        older &= !rows(older, dead);
    }
    // Own epochs that were out of use when it was sent leave the row, and those that are over.
    let gone = rows(s.present(), |row| {
        s.over(row) || b.is(Mutant::DeadRemoved) && dead(row)
    });
    s.remove(gone | statement.drops);
    if statement.row_era > statement.era && !b.is(Mutant::EraIgnored) || (blind && before > token) {
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
        s.store.rows[usize::from(statement.row)] = token;
        if !b.is(Mutant::EpochsOfTheStart) {
            statement.older = older;
        }
    }
}

/// Returns whether this statement has opened its epoch, by its answer.
pub fn opened(statement: &Statement) -> bool {
    statement.purpose == Purpose::Open
        && statement.row_era <= statement.era
        && statement.before <= statement.token
}

/// The mark that an answer tells of.
pub fn mark(statement: &Statement) -> Token {
    statement.before.max(statement.token)
}
