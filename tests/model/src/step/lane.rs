//! The lane: asks, enters what was answered, gives up, looks, and closes what is idle.

use super::memory;
use super::statement::{mark, opened};
use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{
    ALL, Epoch, LIVES, OWN, Phase, Proxy, Purpose, Rows, Stage, State, Statement, Token, bit, each,
    instance_of, rows, small,
};

/// A request of this token has come, and memory cannot tell: its statement is sent. It removes own
/// epochs that are out of use.
pub fn ask(b: &Bounds, s: &mut State, at: usize, token: usize) -> Option<()> {
    let (proxy, token) = (&s.proxies[at], small(token));
    // Not the bar: a request that was let on before it may still be in the lane's queue.
    let open = memory::usable(proxy, token) && !b.can(Features::REFRESH);
    if !proxy.running || proxy.known > token || open || !proxy.lease || busy(b, proxy) {
        return None;
    }
    let row = s.fresh(at, b)?;
    let mut statement = new(b, s, at, token, row, Purpose::Open);
    if b.is(Mutant::EpochsOfTheStart) {
        statement.older = s.older(s.instance(at), token);
    }
    place(b, s, at, statement)?;
    if b.is(Mutant::ForwardBeforeCommit) {
        register(b, s, at, row, token, 0);
    }
    Some(())
}

/// Returns whether a statement about this resource is on its way, which was not given up.
pub fn busy(b: &Bounds, proxy: &Proxy) -> bool {
    let waits = proxy.statements.iter().flatten();
    let waits = waits.filter(|s| !s.late && s.purpose != Purpose::GiveBack);
    waits.count() >= b.lanes()
}

/// A statement as it is sent.
pub fn new(
    b: &Bounds,
    s: &State,
    at: usize,
    token: Token,
    row: usize,
    purpose: Purpose,
) -> Statement {
    let proxy = &s.proxies[at];
    let kept = match b.mutant {
        Some(Mutant::KeepsNone) => 0,
        Some(Mutant::UnansweredNotKept) => s.held(at),
        Some(Mutant::NotClosingWhenSent) => rows(s.used(at), |row| !memory::idle(proxy, row % OWN)),
        Some(Mutant::RefreshedNotKept) => {
            rows(s.used(at), |row| proxy.epochs[row % OWN].token != token)
        }
        _ => s.used(at),
    };
    let earlier = b.either(Mutant::RemovesLater, ALL, s.known());
    Statement {
        stage: Stage::Sent,
        purpose,
        late: false,
        token,
        row: small(row),
        era: proxy.era,
        overrides: s.overrides,
        known: if b.loses() { proxy.known } else { 0 },
        name: 0,
        before: 0,
        row_era: 0,
        won: false,
        drops: s.own(at) & earlier & !kept & !bit(row),
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

/// An answer goes into memory, in one critical section of the lane.
pub fn enter(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let statement = s.proxies[at].statements[slot]
        .filter(|statement| !statement.late || b.is(Mutant::LateAnswerUsed))?;
    if statement.stage != Stage::Committed || statement.purpose == Purpose::GiveBack {
        return None;
    }
    s.proxies[at].statements[slot] = None;
    let row = usize::from(statement.row);
    let life = small(instance_of(row) % LIVES);
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
        super::exchange::spent(b, s, at, &statement, None);
        return Some(());
    }
    let won = statement.won.then_some(Phase::Spent);
    super::exchange::spent(b, s, at, &statement, won);
    // It may have rejoined meanwhile.
    let own = life == s.proxies[at].life;
    let entered = own || b.is(Mutant::EnteredAfterRejoin);
    if opened(&statement) && entered && !b.is(Mutant::ForwardBeforeCommit) {
        let row = if own { row } else { s.fresh(at, b)? };
        register(b, s, at, row, statement.token, statement.older);
    }
    if s.proxies[at].era == statement.era {
        memory::learn(b, s, at, mark(&statement));
    }
    Some(())
}

/// An epoch is registered, and others may hear of its token. Another epoch of the same token gives
/// no permit from now on.
fn register(b: &Bounds, s: &mut State, at: usize, row: usize, token: Token, foreign: Rows) {
    for epoch in &mut s.proxies[at].epochs {
        epoch.closing |= epoch.token == token;
    }
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
/// dropped, the opening is out of use, and the statement may commit whenever it likes.
pub fn give_up(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut statement = s.proxies[at].statements[slot].filter(|statement| !statement.late)?;
    let pending = statement.stage < Stage::Committed;
    let late = s.proxies[at].statements.iter().flatten();
    if pending && late.filter(|s| s.late).count() >= b.late {
        return None;
    }
    super::exchange::spent(b, s, at, &statement, None);
    statement.late = true;
    statement.known = 0;
    let stays = pending || b.is(Mutant::LateAnswerUsed);
    s.proxies[at].statements[slot] = stays.then_some(statement);
    Some(())
}

/// A statement ends and has done nothing: it timed out waiting for the row's lock, which is no
/// doubt. Of one that was given up nobody hears.
pub fn fail(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let statement = s.proxies[at].statements[slot]?;
    if statement.stage == Stage::Committed {
        return None;
    }
    s.proxies[at].statements[slot] = None;
    if !statement.late {
        super::exchange::spent(b, s, at, &statement, None);
    }
    Some(())
}

/// A newer mark is heard of (news, whenever they come), or read with one's own rows. (It is read
/// here even where there are none: more is learned than the program does.)
pub fn learn(b: &Bounds, s: &mut State, at: usize, token: usize) -> Option<()> {
    let (proxy, token) = (&s.proxies[at], small(token));
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

/// A look at the row is sent. An earlier one without an answer is lost.
pub fn look(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let of_use = s.held(at) > 0 || b.is(Mutant::LookFreesLater);
    if !s.proxies[at].running || !of_use {
        return None;
    }
    s.proxies[at].look = Some((s.held(at), None));
    if b.can(Features::LOOK) {
        return Some(());
    }
    read_look(b, s, at, 0)?;
    enter_look(b, s, at, 0)
}

/// It reads the row, without what is over.
pub fn read_look(_: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let open = s.open();
    let (_, found) = s.proxies[at].look.as_mut()?;
    found.replace(open).is_none().then_some(())
}

/// Its answer is entered. It counts for the epochs of this instance that were registered before it
/// was sent, and still are. Those of them that it has not found are lost, if the lease runs, and
/// then nothing else is concluded. Epochs of others that it has not found hold none of them back
/// any more.
pub fn enter_look(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let (sent, found) = s.proxies[at].look.take()?;
    let found = found?;
    let counts = match b.mutant {
        Some(Mutant::LookLosesLater) => s.held(at),
        Some(Mutant::LookLosesFormer) => s.own(at) & sent,
        _ => s.held(at) & sent,
    };
    let lost = counts & !found > 0;
    let judges = s.proxies[at].lease || b.is(Mutant::LookLosesSettled);
    if lost && judges && !b.is(Mutant::ForwardBeforeCommit) {
        super::loss::bar(b, s, at);
    }
    if lost && !b.is(Mutant::LossWithoutBar) {
        return Some(());
    }
    for row in each(b.either(Mutant::LookFreesLater, s.held(at), counts)) {
        s.proxies[at].epochs[row % OWN].foreign &= found;
    }
    Some(())
}

/// An epoch that nobody uses is closed, and is out of use: after a while, before an override, or as
/// a statement, a publication or a ceding is composed.
pub fn close_idle(b: &Bounds, s: &mut State, at: usize, row: usize) -> Option<()> {
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
