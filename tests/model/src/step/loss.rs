//! A failover that loses commits, and what those who notice do.
//!
//! What nobody alive remembers, nobody can notice; so the promise here is that of a proxy which has
//! noticed: what it sends from then on overtakes nothing. It rests on every living proxy's having
//! noticed, and recorded its epochs again, before `settle` has passed for any of them.

use super::memory;
use crate::bounds::{Bounds, Mutant};
use crate::state::{Bar, Broken, Failover, OWN, Phase, Stage, State};

/// From here on the replica stands still.
pub fn fall_behind(_: &Bounds, s: &mut State, _: usize, _: usize) -> Option<()> {
    if s.failover != Failover::None {
        return None;
    }
    s.failover = Failover::Behind(s.store);
    Some(())
}

/// The replica takes over. Statements under way have died with the primary; answers that were
/// received stand.
pub fn fail_over(b: &Bounds, s: &mut State, _: usize, _: usize) -> Option<()> {
    let Failover::Behind(replica) = s.failover else {
        return None;
    };
    s.failover = Failover::Done;
    s.store = replica;
    for proxy in &mut s.proxies {
        proxy.unaware = proxy.running && !b.is(Mutant::LostCommit);
        proxy.publications = Default::default();
        for place in &mut proxy.statements {
            *place = place.filter(|statement| statement.stage == Stage::Committed);
        }
    }
    Some(())
}

/// Something is lost: the resource is refused here until it is repaired and has settled.
pub fn bar(b: &Bounds, s: &mut State, at: usize) {
    s.proxies[at].warned = true;
    if s.failover != Failover::Done && !s.pruned {
        s.broken.0 |= Broken::ALARM;
    }
    if b.is(Mutant::LossWithoutBar) {
        write_back(s, at);
    } else {
        s.proxies[at].bar = Bar::Repairing;
    }
}

/// After the store was out of reach, or another server answers: are the epochs that are open here
/// on record?
pub fn reconcile(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let proxy = &s.proxies[at];
    let busy = proxy.statements.iter().flatten().any(|s| !s.late);
    if !proxy.running || !proxy.unaware || busy {
        return None;
    }
    let lost = s.held(at) & !s.present() > 0;
    s.proxies[at].unaware = false;
    if lost {
        bar(b, s, at);
    }
    Some(())
}

/// The mark is written back as it is known here, and the epochs that are open here are recorded
/// again.
pub fn repair(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    if !s.proxies[at].running || s.proxies[at].bar != Bar::Repairing {
        return None;
    }
    write_back(s, at);
    s.proxies[at].bar = Bar::Settling;
    if b.is(Mutant::LossWithoutSettle) {
        lift(b, s, at);
    }
    Some(())
}

fn write_back(s: &mut State, at: usize) {
    let proxy = s.proxies[at];
    if s.store.row_era <= proxy.era && s.store.mark < proxy.known {
        s.store.mark = proxy.known;
        s.store.spent = 0;
    }
    for (own, epoch) in proxy.epochs.iter().enumerate() {
        if epoch.token > 0 {
            s.store.rows[at * OWN + own] = epoch.token;
        }
    }
}

/// `settle` has passed since the repair. By then what proxies that died before the failover had
/// sent is over, and every other has recorded its epochs again.
pub fn lift_bar(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let orphans = s.exchanges().any(|(_, e)| e.phase == Phase::Orphan);
    let mut others = s.proxies.iter().filter(|proxy| proxy.running);
    let pending = others.any(|proxy| proxy.unaware || proxy.bar == Bar::Repairing);
    // Nor is a statement from before it still to be answered: `store.timeout` is shorter than
    // `settle`.
    let asked = s.proxies[at].statements.iter().flatten().any(|s| !s.late);
    let due = s.proxies[at].running && s.proxies[at].bar == Bar::Settling;
    if !due || orphans || pending || asked {
        return None;
    }
    lift(b, s, at);
    Some(())
}

/// Epochs from before are closed: what is older elsewhere was looked for when they were opened, and
/// epochs have been recorded again since.
fn lift(b: &Bounds, s: &mut State, at: usize) {
    s.proxies[at].bar = Bar::None;
    if b.is(Mutant::LossKeepsEpochs) {
        return;
    }
    for epoch in &mut s.proxies[at].epochs {
        epoch.closing |= epoch.token > 0;
    }
    memory::drained(b, s, at);
}
