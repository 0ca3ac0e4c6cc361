//! Leases, death and reaping (`src/fencing/membership.rs`, `src/fencing/failure_detector.rs`,
//! `src/store/postgres/instances.rs`).

use super::exchange::{abandon, rows_of};
use super::{memory, transit};
use crate::bounds::{Bounds, Mutant};
use crate::state::{
    Bytes, Failover, INSTANCES, LIVES, Life, OPENINGS, OWN, PROXIES, Proxy, Stage, State,
};

/// The lease runs out on the owner's clock, whatever the owner does.
pub fn lapse(s: &mut State, at: usize) -> Option<()> {
    let proxy = &mut s.proxies[at];
    std::mem::take(&mut proxy.lease).then_some(())
}

/// A renewal is answered: alive, and in this era.
pub fn renew(_: &Bounds, s: &mut State, at: usize) -> Option<()> {
    if !s.proxies[at].running || s.store.lives[s.instance(at)] != Life::Alive {
        return None;
    }
    s.proxies[at].lease = true;
    let (era, life) = (s.store.era, s.proxies[at].life);
    memory::adopt(s, at, era, life);
    Some(())
}

/// A renewal is answered: dead. The proxy goes on under a new id, with its permits still counted.
pub fn rejoin(b: &Bounds, s: &mut State, at: usize) -> Option<()> {
    let dead = matches!(s.store.lives[s.instance(at)], Life::Dead | Life::Gone);
    if !s.proxies[at].running || !dead {
        return None;
    }
    next_life(b, s, at)?;
    let life = s.proxies[at].life;
    let first = usize::from(life) * OPENINGS;
    for epoch in &mut s.proxies[at].epochs[..first] {
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
    proxy.silent = false;
    let instance = s.instance(at);
    s.store.lives[instance] = Life::Alive;
    Some(())
}

/// kill -9. Its requests go on at the upstream, and its statements at the store.
pub fn crash(b: &Bounds, s: &mut State, at: usize) -> Option<()> {
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
        *place = place.filter(|statement| statement.stage <= Stage::Locked);
        if let Some(statement) = place {
            statement.late = true;
        }
    }
    s.proxies[at] = Proxy {
        life: old.life,
        lease: old.lease,
        silent: old.silent,
        exchanges: old.exchanges,
        statements,
        ..Proxy::default()
    };
    s.proxies[at].exchanges.sort_unstable();
}

/// Another run of the same proxy: another instance, that remembers nothing.
pub fn restart(b: &Bounds, s: &mut State, at: usize) -> Option<()> {
    if s.proxies[at].running {
        return None;
    }
    next_life(b, s, at)?;
    s.proxies[at].era = s.store.era;
    Some(())
}

/// SIGTERM: nothing more is written; what has drained is deleted; what has not stays, and settles
/// from now.
pub fn leave(b: &Bounds, s: &mut State, at: usize) -> Option<()> {
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
    for own in 0..OWN {
        let row = at * OWN + own;
        if s.proxies[at].closes & crate::state::bit(row) > 0 {
            s.store.rows[row] = 0;
        }
    }
    let instance = s.instance(at);
    let left = s.store.rows[rows_of(instance)].iter().any(|row| *row > 0);
    s.store.lives[instance] = if left { Life::Dead } else { Life::Gone };
    vanish(b, s, at);
    Some(())
}

/// For one mutant: a watcher has found the counter unmoved, once.
pub fn find_silent(s: &mut State, at: usize) -> Option<()> {
    let alive = s.store.lives[s.instance(at)] == Life::Alive;
    let proxy = &mut s.proxies[at];
    (alive && !proxy.lease && !std::mem::replace(&mut proxy.silent, true)).then_some(())
}

/// A watcher has seen the counter unmoved for a whole lease, and the compare-and-set finds it so.
/// By then the owner's lease has lapsed: it runs from before the renewal was sent, the watcher's
/// count from after it was read.
pub fn declare_dead(b: &Bounds, s: &mut State, instance: usize) -> Option<()> {
    let owner = instance / LIVES;
    let lapsed = s.instance(owner) != instance || !s.proxies[owner].lease;
    let alive = s.store.lives[instance] == Life::Alive;
    if !alive || !(lapsed || b.is(Mutant::DeclaredTooSoon)) || !watched(s, instance) {
        return None;
    }
    s.store.lives[instance] = Life::Dead;
    Some(())
}

/// The user timeout and then `settle` have passed since a watcher knew it dead: its epochs are
/// deleted. Bytes in transit have arrived or were given up by then, and what had arrived is over.
pub fn bury(b: &Bounds, s: &mut State, instance: usize) -> Option<()> {
    let rows = rows_of(instance);
    let left = s.store.rows[rows.clone()].iter().any(|row| *row > 0);
    let life = s.store.lives[instance];
    let dead = match life {
        Life::Dead => true,
        Life::Unborn | Life::Gone => left,
        Life::Alive => {
            let owner = instance / LIVES;
            let silent = s.proxies[owner].silent && s.instance(owner) == instance;
            b.is(Mutant::BuryWithoutLook) && silent && left
        }
    };
    let settled = !transit::counts(b, s, instance) || b.is(Mutant::BuryWithoutSettle);
    if !dead || !settled || !watched(s, instance) {
        return None;
    }
    s.store.rows[rows].fill(0);
    if life == Life::Dead {
        s.store.lives[instance] = Life::Gone;
    }
    Some(())
}

/// Returns whether somebody is there to watch this instance.
fn watched(s: &State, instance: usize) -> bool {
    debug_assert!(instance < INSTANCES);
    (0..PROXIES).any(|at| s.proxies[at].running && s.instance(at) != instance)
}
