//! Operators: the override, and the pruning.

use crate::bounds::{Bounds, Mutant};
use crate::state::{Broken, ERAS, State, small};

/// How often this resource's mark is lowered.
const OVERRIDES: u8 = 1;

/// One statement: where no epoch is open, the mark is lowered, in a new era.
pub fn override_mark(b: &Bounds, s: &mut State, _: usize, token: usize) -> Option<()> {
    let open = s.open() > 0 && !b.is(Mutant::OverrideWithoutLook);
    let eras = usize::from(s.store.era) + 1 < ERAS;
    if open || !eras || s.overrides >= OVERRIDES {
        return None;
    }
    s.overrides += 1;
    s.store.mark = small(token);
    s.store.spent = 0;
    if !b.is(Mutant::EraStays) {
        s.store.era += 1;
        s.store.row_era = s.store.era;
    }
    begin_anew(s);
    Some(())
}

/// What was sent so far belongs to the past, and none of it may be under way.
fn begin_anew(s: &mut State) {
    if s.exchanges().any(|(_, exchange)| exchange.up()) {
        s.broken.0 |= Broken::UNDER_WAY;
    }
    for proxy in &mut s.proxies {
        for exchange in proxy.exchanges.iter_mut().flatten() {
            exchange.outdated = true;
        }
    }
    s.highest = 0;
    s.used = 0;
}

/// `fencepost marks prune`: the row is deleted, with what is over in it. A proxy that remembers the
/// mark finds it lost, and writes it back.
pub fn prune(b: &Bounds, s: &mut State, _: usize, _: usize) -> Option<()> {
    let open = s.open() > 0 && !b.is(Mutant::PruneWithoutLook);
    if s.pruned || open || s.store.mark == 0 {
        return None;
    }
    s.pruned = true;
    s.store.mark = 0;
    s.store.spent = 0;
    s.store.row_era = 0;
    s.store.rows.fill(0);
    begin_anew(s);
    Some(())
}

/// Another resource's mark is lowered: the namespace's era moves on, and this row's does not.
pub fn raise_era(_: &Bounds, s: &mut State, _: usize, _: usize) -> Option<()> {
    if s.store.era > s.store.row_era || usize::from(s.store.era) + 1 >= ERAS {
        return None;
    }
    s.store.era += 1;
    Some(())
}
