//! The end of epochs: with each renewal an instance publishes which of them it uses, and it cedes
//! those that another one waits for.

use super::memory::idle;
use crate::bounds::{Bounds, Mutant};
use crate::state::{LIVES, Life, OWN, Publication, Rows, State, bit, rows};

/// A publication is composed, in one critical section, and sent.
pub fn publish(b: &Bounds, s: &mut State, at: usize, _: usize) -> Option<()> {
    let publication = Publication {
        below: s.own(at) & s.known(),
        left: left(b, s, at),
    };
    let sent = Some((s.proxies[at].life, publication));
    let places = &mut s.proxies[at].publications;
    let full = places.iter().flatten().count() >= b.publications;
    if !b.publishes(at) || full || places.contains(&sent) {
        return None;
    }
    *places.iter_mut().find(|place| place.is_none())? = sent;
    Some(())
}

fn left(b: &Bounds, s: &State, at: usize) -> Rows {
    let (used, held) = (s.used(at), s.held(at));
    match b.mutant {
        Some(Mutant::UnansweredNotPublished) => held,
        Some(Mutant::NotClosingWhenPublished) => {
            used & !rows(held, |row| idle(&s.proxies[at], row % OWN))
        }
        Some(Mutant::LeftOpenCut) => used & used.wrapping_sub(1),
        _ => used,
    }
}

/// It is recorded, however late, where its instance is alive.
pub fn record(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let (life, mut publication) = s.proxies[at].publications[slot].take()?;
    let instance = at * LIVES + usize::from(life);
    if s.store.lives[instance] == Life::Alive {
        match b.mutant {
            Some(Mutant::FieldsMixed) => publication.below |= s.store.published[instance].below,
            Some(Mutant::ComposedInTwoSteps) => publication.below = s.own(at) & s.known(),
            _ => {}
        }
        s.store.published[instance] = publication;
    }
    Some(())
}

/// It is lost on its way.
pub fn vanish(_: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    s.proxies[at].publications[slot].take().map(|_| ())
}

/// An epoch that is out of use here leaves the row, at any moment from then on, and whatever the
/// mark is.
pub fn cede(b: &Bounds, s: &mut State, at: usize, row: usize) -> Option<()> {
    let used = match b.mutant {
        Some(Mutant::UnansweredCeded) => s.held(at),
        Some(Mutant::NotClosingWhenCeded) if idle(&s.proxies[at], row % OWN) => 0,
        _ => s.used(at),
    };
    let unused = s.own(at) & !used & bit(row) > 0;
    (unused && std::mem::take(&mut s.store.rows[row]) > 0).then_some(())
}
