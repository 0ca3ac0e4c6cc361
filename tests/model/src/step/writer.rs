//! The writer (`src/fencing/writer`): asks, enters what was answered, gives up, closes, polls and
//! looks.

use super::memory;
use super::statement::{self, mark, opened};
use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{
    Epoch, OPENINGS, OWN, Phase, Purpose, Stage, State, Statement, Token, bit, instance_of,
};

/// A request of this token has come, and memory cannot tell: its statement is sent.
pub fn ask(b: &Bounds, s: &mut State, at: usize, token: Token) -> Option<()> {
    let proxy = &s.proxies[at];
    // Not the bar: a request that was let on before it may still be in the writer's queue.
    let refused = proxy.known > token || memory::usable(proxy, token) || !proxy.lease;
    let open = proxy.statements.iter().flatten();
    let waits = open.filter(|s| !s.late && s.purpose == Purpose::Open);
    if !proxy.running || refused || waits.count() >= b.lanes() {
        return None;
    }
    let row = s.fresh(at, b)?;
    let mut statement = new(b, s, at, token, row, Purpose::Open);
    if b.is(Mutant::EpochsInOwnStatement) {
        statement.older = s.older(s.instance(at), token);
    }
    place(b, s, at, statement)?;
    if b.is(Mutant::ForwardBeforeCommit) {
        register(b, s, at, row, token, 0);
    }
    Some(())
}

/// A statement as it is sent.
#[must_use]
pub fn new(
    b: &Bounds,
    s: &State,
    at: usize,
    token: Token,
    row: usize,
    purpose: Purpose,
) -> Statement {
    let proxy = &s.proxies[at];
    Statement {
        stage: Stage::Sent,
        purpose,
        late: false,
        token,
        row: u8::try_from(row).unwrap_or(u8::MAX),
        era: proxy.era,
        overrides: s.overrides,
        known: if b.loses() { proxy.known } else { 0 },
        name: 0,
        before: 0,
        row_era: 0,
        won: false,
        there: false,
        older: 0,
    }
}

/// Puts a statement where there is room.
pub fn place(b: &Bounds, s: &mut State, at: usize, statement: Statement) -> Option<()> {
    let room = b.lanes() + b.late;
    let taken = s.proxies[at].statements.iter().flatten().count();
    let slot = s.proxies[at].statements.iter().position(Option::is_none)?;
    if taken >= room {
        return None;
    }
    s.proxies[at].statements[slot] = Some(statement);
    Some(())
}

/// `Writer::enter_one`: an answer goes into memory, in one critical section of the writer.
pub fn enter(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = s.proxies[at].statements[slot].filter(|statement| !statement.late)?;
    if statement.stage == Stage::Committed && opened(&statement) && !b.reads_apart() {
        statement::answer(b, s, &mut statement);
    }
    let complete = match statement.stage {
        Stage::Committed => !opened(&statement),
        Stage::Answered => true,
        _ => false,
    };
    if !complete || statement.purpose == Purpose::GiveBack {
        return None;
    }
    s.proxies[at].statements[slot] = None;
    let row = usize::from(statement.row);
    let life = instance_of(row) % crate::state::LIVES;
    let life = u8::try_from(life).unwrap_or(u8::MAX);
    if statement.row_era > statement.era {
        memory::adopt(s, at, statement.row_era, life);
        super::exchange::spend_again(s, at, &statement);
        return Some(());
    }
    let same_era = s.proxies[at].era == statement.era;
    let lost = statement.before < statement.known && same_era;
    if lost {
        super::loss::bar(b, s, at);
    }
    if lost && !b.is(Mutant::LossWithoutBar) {
        if statement.purpose == Purpose::Open {
            s.proxies[at].closes |= bit(row);
        }
        super::exchange::spend_in_doubt(b, s, at, &statement);
        return Some(());
    }
    super::exchange::spend_answered(b, s, at, &statement);
    if opened(&statement) {
        if life != s.proxies[at].life {
            // It has rejoined meanwhile.
            s.proxies[at].closes |= bit(row);
        } else if !statement.there {
            if s.holds(at, row) {
                super::loss::bar(b, s, at);
            }
            s.proxies[at].closes |= bit(row);
        } else if !b.is(Mutant::ForwardBeforeCommit) {
            register(b, s, at, row, statement.token, statement.older);
        }
    }
    if s.proxies[at].era == statement.era {
        memory::learn(b, s, at, mark(&statement));
    }
    Some(())
}

/// `EpochTable::opened`, and the news of it. (Told only where older ones are open; more is heard
/// here than is printed.)
fn register(b: &Bounds, s: &mut State, at: usize, row: usize, token: Token, foreign: u32) {
    s.proxies[at].epochs[row % OWN] = Epoch {
        token,
        closing: false,
        foreign,
    };
    memory::learn(b, s, at, token);
    let era = usize::from(s.proxies[at].era);
    s.news[era] |= 1 << token;
}

/// No answer in time, or an error that says nothing: the caller gets a 503, the connection is
/// dropped, the row is to be deleted if it is there, and the statement may commit whenever it
/// likes.
pub fn give_up(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = s.proxies[at].statements[slot].filter(|statement| !statement.late)?;
    let pending = statement.stage <= Stage::Locked;
    let late = s.proxies[at].statements.iter().flatten();
    if pending && late.filter(|s| s.late).count() >= b.late {
        return None;
    }
    if statement.purpose == Purpose::Open {
        s.proxies[at].closes |= bit(usize::from(statement.row));
        if b.is(Mutant::LateAnswerUsed) {
            return Some(());
        }
    }
    super::exchange::spend_in_doubt(b, s, at, &statement);
    statement.late = true;
    s.proxies[at].statements[slot] = pending.then_some(statement);
    Some(())
}

/// The store timed out waiting for a row lock. That is no doubt: the statement has done
/// nothing.
pub fn lock_timeout(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let statement = s.proxies[at].statements[slot]?;
    if statement.stage != Stage::Sent || !s.locked() {
        return None;
    }
    s.proxies[at].statements[slot] = None;
    if !statement.late {
        super::exchange::spend_in_doubt(b, s, at, &statement);
    }
    Some(())
}

/// `Marks::close`: a drained row is deleted, by its opening.
pub fn close(s: &mut State, at: usize, row: usize) -> Option<()> {
    if s.proxies[at].closes & bit(row) == 0 {
        return None;
    }
    s.proxies[at].closes &= !bit(row);
    s.store.rows[row] = 0;
    Some(())
}

/// `OwnRows::page`: a row of this instance below its mark that nobody here knows is an opening
/// whose answer was lost. (What else a poll finds is learned in [`learn`].)
pub fn poll(s: &mut State, at: usize, row: usize) -> Option<()> {
    if s.nobodys(at) & bit(row) == 0 {
        return None;
    }
    s.proxies[at].closes |= bit(row);
    Some(())
}

/// A newer mark is heard of (news, whenever they come), or read with one's own rows. (It is read
/// here even where there are none: more is learned than the program does.)
pub fn learn(b: &Bounds, s: &mut State, at: usize, token: Token) -> Option<()> {
    let proxy = &s.proxies[at];
    if token <= proxy.known {
        return None;
    }
    let heard = s.news[usize::from(proxy.era)] & (1 << token) > 0;
    let polled = token == s.store.mark;
    if !heard && !polled {
        return None;
    }
    memory::learn(b, s, at, token);
    Some(())
}

/// `EpochTable::reread`: the epochs of others are read again. Nothing is concluded where one's own
/// are not on record.
pub fn look(b: &Bounds, s: &mut State, at: usize) -> Option<()> {
    let present = s.present();
    let first = s.instance(at) * OPENINGS;
    let mut own = first..first + OPENINGS;
    let lost = own.any(|row| s.proxies[at].epochs[row % OWN].token > 0 && present & bit(row) == 0);
    let waits = s.proxies[at].epochs.iter().any(|e| e.foreign > 0);
    if !waits {
        return None;
    }
    if lost && s.proxies[at].lease && !b.is(Mutant::ForwardBeforeCommit) {
        super::loss::bar(b, s, at);
    }
    if lost && !b.is(Mutant::LossWithoutBar) {
        return Some(());
    }
    for epoch in &mut s.proxies[at].epochs {
        epoch.foreign &= present;
    }
    Some(())
}

/// `EpochTable::sweep`, and `EpochTable::release` before an override: an epoch nobody uses is
/// closed.
pub fn idle_close(b: &Bounds, s: &mut State, at: usize, row: usize) -> Option<()> {
    if !b.can(Features::IDLE) && !b.can(Features::OVERRIDE) {
        return None;
    }
    let proxy = &mut s.proxies[at];
    let used = proxy.exchanges.iter().flatten();
    let used = used
        .filter(|e| e.phase != Phase::Orphan)
        .any(|e| usize::from(e.row) == row);
    let epoch = &mut proxy.epochs[row % OWN];
    if epoch.token == 0 || epoch.closing || used {
        return None;
    }
    epoch.closing = true;
    memory::drained(b, s, at);
    Some(())
}
