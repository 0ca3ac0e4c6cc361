//! What a proxy's memory does in one critical section.

use crate::bounds::{Bounds, Mutant};
use crate::state::{Exchange, OWN, Phase, Proxy, State, Token};

/// Returns whether nothing of this epoch is in flight here.
pub fn idle(proxy: &Proxy, own: usize) -> bool {
    let mut exchanges = proxy.exchanges.iter().flatten();
    !exchanges.any(|e| usize::from(e.row) % OWN == own && e.phase != Phase::Orphan)
}

/// An epoch that was asked to close and has nothing in flight leaves the
/// memory: it is out of use.
pub fn drained(b: &Bounds, s: &mut State, at: usize) {
    for own in 0..OWN {
        let proxy = &s.proxies[at];
        let epoch = proxy.epochs[own];
        let over = idle(proxy, own) || b.is(Mutant::CloseBeforeDrained);
        if epoch.closing && over && !b.is(Mutant::NoSecondLook) {
            s.proxies[at].epochs[own] = crate::state::Epoch::default();
        }
    }
}

/// This has become of an exchange, and perhaps its epoch is over.
#[expect(clippy::unnecessary_wraps, reason = "it is the end of many a step")]
pub fn put(
    b: &Bounds,
    s: &mut State,
    at: usize,
    slot: usize,
    exchange: Option<Exchange>,
) -> Option<()> {
    s.proxies[at].exchanges[slot] = exchange;
    drained(b, s, at);
    Some(())
}

/// Raises the known mark, and asks every older epoch to close.
pub fn learn(b: &Bounds, s: &mut State, at: usize, mark: Token) {
    let proxy = &mut s.proxies[at];
    proxy.known = proxy.known.max(mark);
    for epoch in &mut proxy.epochs {
        epoch.closing |= epoch.token > 0 && epoch.token < proxy.known;
    }
    drained(b, s, at);
}

/// A later era makes what was refused from memory forgotten.
pub fn adopt(s: &mut State, at: usize, era: u8, life: u8) {
    if s.proxies[at].era < era {
        s.proxies[at].era = era;
        forget(s, at, life);
    }
}

/// Forgets the known mark, but not where an epoch of this instance is open.
pub fn forget(s: &mut State, at: usize, life: u8) {
    let proxy = &mut s.proxies[at];
    let first = usize::from(life) * crate::state::OPENINGS;
    let held = &proxy.epochs[first..first + crate::state::OPENINGS];
    if held.iter().all(|epoch| epoch.token == 0) {
        proxy.known = 0;
    }
}

/// Returns whether an epoch of this token can give permits.
pub fn usable(proxy: &Proxy, token: Token) -> bool {
    let first = usize::from(proxy.life) * crate::state::OPENINGS;
    let own = &proxy.epochs[first..first + crate::state::OPENINGS];
    own.iter()
        .any(|epoch| epoch.token == token && !epoch.closing)
}
