//! Operators (`src/store/postgres/administration.rs`): the override.

use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{Broken, ERAS, State, Token};

/// How often this resource's mark is lowered.
const OVERRIDES: u8 = 1;

/// The transaction locks the mark's row.
pub fn begin(b: &Bounds, s: &mut State) -> Option<()> {
    if !b.can(Features::LOCKS) || s.locked() || s.store.mark == 0 || s.overrides >= OVERRIDES {
        return None;
    }
    s.overriding = true;
    Some(())
}

/// Under the lock, in a statement of its own: no epoch is open. The mark is lowered, in a new era.
pub fn override_mark(b: &Bounds, s: &mut State, token: Token) -> Option<()> {
    let ready = if b.can(Features::LOCKS) {
        s.overriding
    } else {
        !s.locked()
    };
    let open = s.present() > 0 && !b.is(Mutant::OverrideWithoutLook);
    let eras = usize::from(s.store.era) + 1 < ERAS;
    if !ready || open || !eras || s.overrides >= OVERRIDES {
        return None;
    }
    s.overriding = false;
    s.overrides += 1;
    s.store.mark = token;
    s.store.spent = 0;
    if !b.is(Mutant::EraStays) {
        s.store.era += 1;
        s.store.row_era = s.store.era;
    }
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
    Some(())
}

/// Epochs are open: it is rolled back.
pub fn refuse(b: &Bounds, s: &mut State) -> Option<()> {
    let open = s.present() > 0 && !b.is(Mutant::OverrideWithoutLook);
    (open && std::mem::take(&mut s.overriding)).then_some(())
}

/// Another resource's mark is lowered: the namespace's era moves on, and this row's does not.
pub fn override_another(s: &mut State) -> Option<()> {
    if s.store.era > s.store.row_era || usize::from(s.store.era) + 1 >= ERAS {
        return None;
    }
    s.store.era += 1;
    Some(())
}
