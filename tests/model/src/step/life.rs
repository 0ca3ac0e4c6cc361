//! Leases, death and settling.

use super::exchange::abandon;
use super::{memory, transit};
use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{
    Bytes, Failover, INSTANCES, LIVES, Life, OPENINGS, PROXIES, Proxy, Publication, Stage, State,
    of,
};

/// The lease runs out on the owner's clock, whatever the owner does.
pub fn lapse(_: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let proxy = &mut s.proxies[at];
    std::mem::take(&mut proxy.lease).then_some(())
}

/// A renewal is answered: alive, and in this era.
pub fn renew(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let changes = b.can(Features::LEASE) || b.can(Features::OVERRIDE);
    if !changes || !s.proxies[at].running || s.store.lives[s.instance(at)] != Life::Alive {
        return None;
    }
    s.proxies[at].lease = true;
    let (era, life) = (s.store.era, s.proxies[at].life);
    memory::adopt(s, at, era, life);
    Some(())
}

/// A renewal is answered: dead. The proxy goes on under a new id, with its permits still counted.
pub fn rejoin(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let dead = matches!(s.store.lives[s.instance(at)], Life::Dead | Life::Gone);
    if !s.proxies[at].running || !dead {
        return None;
    }
    next_life(b, s, at)?;
    let life = s.proxies[at].life;
    for epoch in &mut s.proxies[at].epochs[..usize::from(life) * OPENINGS] {
        epoch.closing |= epoch.token > 0;
    }
    memory::drained(b, s, at);
    let era = s.store.era;
    memory::adopt(s, at, era, life);
    memory::forget(s, at, life);
    Some(())
}

fn next_life(b: &Bounds, s: &mut State, at: usize) -> Option<()> {
    let proxy = &mut s.proxies[at];
    if usize::from(proxy.life) + 1 >= b.lives {
        return None;
    }
    proxy.life += 1;
    proxy.running = true;
    proxy.lease = true;
    let instance = s.instance(at);
    s.store.lives[instance] = Life::Alive;
    Some(())
}

/// kill -9. Its requests go on at the upstream, and its statements at the store.
pub fn crash(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    // After a loss only those can notice it who live on: see the `loss` module.
    if !s.proxies[at].running || s.failover == Failover::Done {
        return None;
    }
    vanish(b, s, at);
    Some(())
}

fn vanish(b: &Bounds, s: &mut State, at: usize) {
    abandon(b, s, at);
    let old = s.proxies[at];
    let mut statements = old.statements;
    for place in &mut statements {
        *place = place.filter(|statement| statement.stage < Stage::Committed);
        if let Some(statement) = place {
            statement.late = true;
        }
    }
    s.proxies[at] = Proxy {
        life: old.life,
        lease: old.lease,
        publications: old.publications,
        exchanges: old.exchanges,
        statements,
        ..Proxy::default()
    };
    s.proxies[at].exchanges.sort_unstable();
}

/// Another run of the same proxy: another instance, that remembers nothing.
pub fn restart(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    if s.proxies[at].running {
        return None;
    }
    next_life(b, s, at)?;
    s.proxies[at].era = s.store.era;
    Some(())
}

/// SIGTERM: nothing more is written. One publication ends all epochs but those in flight. With none
/// in flight the instance has settled; else it is dead, and settles from now.
pub fn leave(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    if !s.proxies[at].running {
        return None;
    }
    s.proxies[at].lease = false;
    for exchange in &mut s.proxies[at].exchanges {
        *exchange = exchange.filter(|e| e.bytes != Bytes::Kept);
    }
    for epoch in &mut s.proxies[at].epochs {
        epoch.closing |= epoch.token > 0;
    }
    memory::drained(b, s, at);
    let instance = s.instance(at);
    let (below, mut left) = (s.own(at), s.held(at));
    if b.is(Mutant::StopClosesAll) {
        left = 0;
    }
    if s.store.lives[instance] == Life::Alive {
        s.store.lives[instance] = if left > 0 { Life::Dead } else { Life::Gone };
        s.store.published[instance] = Publication { below, left };
    }
    vanish(b, s, at);
    Some(())
}

/// A watcher has seen the counter unmoved for a whole lease, and the compare-and-set finds it so.
/// By then the owner's lease has lapsed: it runs from before the renewal was sent, the watcher's
/// count from after it was read.
pub fn declare_dead(b: &Bounds, s: &mut State, instance: usize, _: usize) -> Option<()> {
    let owner = instance / LIVES;
    let lapsed = s.instance(owner) != instance || !s.proxies[owner].lease;
    let alive = s.store.lives[instance] == Life::Alive;
    if !alive || !(lapsed || b.is(Mutant::DeclaredTooSoon)) || !watched(s, instance) {
        return None;
    }
    s.store.lives[instance] = Life::Dead;
    Some(())
}

/// The user timeout and then `settle` have passed since a watcher knew it dead: it is recorded as
/// settled, and its epochs are over. Bytes in transit have arrived or were given up by then, and
/// what had arrived is over. An id that is not on record, and whose epochs are met, has its lease
/// waited for too; then it is recorded as settled, unless its owner has recorded itself again.
pub fn settle(b: &Bounds, s: &mut State, instance: usize, _: usize) -> Option<()> {
    let owner = instance / LIVES;
    let current = s.instance(owner) == instance;
    let open = s.present() & of(instance) > 0;
    let life = s.store.lives[instance];
    let dead = match life {
        Life::Dead => true,
        Life::Unborn => open && !(current && s.proxies[owner].lease),
        Life::Gone => false,
        Life::Alive => b.is(Mutant::SettledWithoutLook) && open,
    };
    let settled = !transit::counts(b, s, instance) || b.is(Mutant::SettledAtOnce);
    if !dead || !settled || !watched(s, instance) {
        return None;
    }
    if b.is(Mutant::SettledInAnotherTable) {
        let bit = 1 << instance;
        if s.store.settled & bit > 0 {
            return None;
        }
        s.store.settled |= bit;
    } else {
        s.store.lives[instance] = Life::Gone;
    }
    Some(())
}

/// Its row is not on record any more: the owner inserts it again, and nobody else has.
pub fn record_again(_: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let instance = s.instance(at);
    if !s.proxies[at].running || s.store.lives[instance] != Life::Unborn {
        return None;
    }
    s.store.lives[instance] = Life::Alive;
    s.proxies[at].lease = true;
    Some(())
}

/// Returns whether somebody is there to watch this instance.
fn watched(s: &State, instance: usize) -> bool {
    debug_assert!(instance < INSTANCES);
    (0..PROXIES).any(|at| s.proxies[at].running && s.instance(at) != instance)
}
