//! The same state under one of all its names: most of what makes a search small enough to be
//! exhausted.
//!
//! Proxies are interchangeable, and so are the numbers of openings, statements and exchanges. What
//! comes at any moment and can only hold back by coming late comes at once.

use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{
    ALL, Epoch, LIVES, Life, OPENINGS, OWN, PROXIES, Publication, ROWS, Rows, State, Token, bit,
    each, instance_of, of, owner_of, rows,
};

/// What decides an order of openings.
type Signature = (Token, Epoch, u64);

impl State {
    /// The same state under one of all its names, and without what makes no difference.
    pub fn canonical(mut self, bounds: &Bounds) -> Self {
        self.tidy(bounds);
        if bounds.mutant.is_some() {
            // Its trace is for reading.
            return self;
        }
        if bounds.openings > 1 {
            let new = self.sorted();
            if !new.is_sorted() {
                self = self.renamed(&new);
            }
        }
        let orders: &[[usize; PROXIES]] = match bounds.proxies {
            _ if bounds.mortal < bounds.proxies => &[],
            1 => &[],
            2 => &[[1, 0, 2]],
            _ => &[[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        };
        orders.iter().fold(self, |least, order| {
            let new = std::array::from_fn(|row| order[owner_of(row)] * OWN + row % OWN);
            let mut rows = [0; ROWS];
            for (old, new) in new.iter().enumerate() {
                rows[*new] = self.store.rows[old];
            }
            // The fields before them, by which states are ordered, know no proxies.
            if rows > least.store.rows {
                return least;
            }
            least.min(self.renamed(&new))
        })
    }

    /// Cedings and looks that can come at any moment come at once: one that comes late only keeps
    /// others back. Not where rows can be lost, since there an epoch that is still there can be
    /// copied; and cedings not where publications are to end epochs, nor looks where they are two
    /// steps.
    fn tidy(&mut self, bounds: &Bounds) {
        for at in 0..bounds.proxies {
            if !self.proxies[at].running && self.store.lives[self.instance(at)] != Life::Alive {
                // Nobody asks any more.
                self.proxies[at].lease = false;
            }
            if self.proxies[at].running && !bounds.loses() && !bounds.publishes(at) {
                self.remove(self.own(at) & !self.used(at));
            }
        }
        self.tidy_publications(bounds);
        let at_once = !bounds.loses() && !bounds.can(Features::LOOK);
        let open = if at_once { self.open() } else { ALL };
        for at in 0..bounds.proxies {
            let held = self.held(at);
            let proxy = &mut self.proxies[at];
            for epoch in &mut proxy.epochs {
                epoch.foreign &= if epoch.closing { 0 } else { open };
            }
            for statement in proxy.statements.iter_mut().flatten() {
                statement.older &= open;
            }
            if let Some((sent, _)) = &mut proxy.look
                && !bounds.is(Mutant::LookLosesFormer)
            {
                *sent &= held;
            }
            let later = bounds.is(Mutant::LookLosesLater) || bounds.is(Mutant::LookFreesLater);
            proxy.look = proxy.look.filter(|(sent, _)| *sent > 0 || later);
        }
        self.forget_numbers(bounds);
        self.sort();
    }

    /// What is said of a number that nothing has is said of an id that nobody will meet.
    fn forget_numbers(&mut self, bounds: &Bounds) {
        let known = self.known();
        let lives = self.store.lives;
        self.published(|instance, one| {
            one.below &= if lives[instance] == Life::Gone {
                0
            } else {
                known
            };
            one.left &= one.below;
        });
        for proxy in &mut self.proxies {
            for statement in proxy.statements.iter_mut().flatten() {
                if !bounds.is(Mutant::RemovesLater) {
                    statement.drops &= known;
                }
            }
            if let Some((sent, found)) = &mut proxy.look {
                *sent &= known;
                *found = found.map(|found| found & known);
            }
        }
    }

    /// What a publication says is reduced to what it ends, but for the mutants that mix two of
    /// them. One about a dead instance is not recorded. What ends for good leaves the row at once.
    fn tidy_publications(&mut self, bounds: &Bounds) {
        let mixed = bounds.is(Mutant::FieldsMixed) || bounds.is(Mutant::ComposedInTwoSteps);
        let lives = self.store.lives;
        for (at, proxy) in self.proxies.iter_mut().enumerate() {
            for place in &mut proxy.publications {
                let dead = |life: u8| lives[at * LIVES + usize::from(life)] >= Life::Dead;
                *place = place.filter(|(life, _)| !dead(*life));
            }
        }
        if !mixed {
            self.published(|_, one| one.below &= !std::mem::take(&mut one.left));
            // An epoch stays over if no publication on its way says less.
            let over = rows(self.present(), |row| {
                let mut sent = self.proxies[owner_of(row)].publications.iter().flatten();
                let says = |one: &Publication| one.below & bit(row) > 0;
                let other = |life: u8| usize::from(life) != row % OWN / OPENINGS;
                says(&self.store.published[instance_of(row)])
                    && sent.all(|(life, one)| other(*life) || says(one))
            });
            if !bounds.loses() {
                self.remove(over);
            }
        }
    }

    /// Every publication, recorded or on its way.
    fn published(&mut self, mut each: impl FnMut(usize, &mut Publication)) {
        for tables in self.tables() {
            for (instance, one) in tables.published.iter_mut().enumerate() {
                each(instance, one);
            }
        }
        for (at, proxy) in self.proxies.iter_mut().enumerate() {
            for (life, one) in proxy.publications.iter_mut().flatten() {
                each(at * LIVES + usize::from(*life), one);
            }
        }
    }

    /// The numbers of openings, in the order of what is so of them.
    fn sorted(&self) -> [usize; ROWS] {
        let mut new = std::array::from_fn(|row| row);
        let known = self.known();
        for first in (0..ROWS).step_by(OPENINGS) {
            if known & of(instance_of(first)) & !bit(first) > 0 {
                let mut order: [usize; OPENINGS] = std::array::from_fn(|k| first + k);
                order.sort_by_key(|row| std::cmp::Reverse(self.signature(*row)));
                for (k, row) in order.into_iter().enumerate() {
                    new[row] = first + k;
                }
            }
        }
        new
    }

    fn signature(&self, row: usize) -> Signature {
        let proxy = &self.proxies[owner_of(row)];
        let statements = proxy.statements.iter().flatten();
        let named = statements.clone().map(|s| usize::from(s.row) == row);
        let exchanges = proxy.exchanges.iter().flatten();
        let named = named.chain(exchanges.map(|e| usize::from(e.row) == row));
        let sets = [self.store.published[instance_of(row)].below].into_iter();
        let sets = sets.chain(proxy.publications.iter().flatten().map(|(_, p)| p.below));
        let sets = sets.chain(statements.map(|s| s.drops));
        let others = self.proxies.iter().flat_map(|other| other.epochs);
        let sets = sets.chain(others.map(|epoch| epoch.foreign));
        let within = named.chain(sets.map(|set| set & bit(row) > 0));
        (
            self.store.rows[row],
            proxy.epochs[row % OWN],
            within.fold(0, |sum, within| sum << 1 | u64::from(within)),
        )
    }

    /// The same with new numbers of rows, and with all that follows them.
    fn renamed(&self, new: &[usize; ROWS]) -> Self {
        let mut renamed = *self;
        for to in renamed.tables() {
            let from = *to;
            for (old, new) in new.iter().enumerate() {
                to.rows[*new] = from.rows[old];
                to.lives[instance_of(*new)] = from.lives[instance_of(old)];
                to.published[instance_of(*new)] = from.published[instance_of(old)];
            }
        }
        for (old, new) in new.iter().enumerate().step_by(OWN) {
            renamed.proxies[owner_of(*new)] = self.proxies[owner_of(old)];
        }
        for (old, new) in new.iter().enumerate() {
            let epoch = self.proxies[owner_of(old)].epochs[old % OWN];
            renamed.proxies[owner_of(*new)].epochs[new % OWN] = epoch;
        }
        let set = |rows: Rows| each(rows).fold(0, |set, row| set | bit(new[row]));
        let one = |row: u8| u8::try_from(new[usize::from(row)]).unwrap_or(u8::MAX);
        renamed.published(|_, one| {
            *one = Publication {
                below: set(one.below),
                left: set(one.left),
            };
        });
        for proxy in &mut renamed.proxies {
            for epoch in &mut proxy.epochs {
                epoch.foreign = set(epoch.foreign);
            }
            if let Some((sent, found)) = &mut proxy.look {
                *sent = set(*sent);
                *found = found.map(set);
            }
            for statement in proxy.statements.iter_mut().flatten() {
                statement.row = one(statement.row);
                statement.older = set(statement.older);
                statement.drops = set(statement.drops);
            }
            for exchange in proxy.exchanges.iter_mut().flatten() {
                exchange.row = one(exchange.row);
            }
        }
        renamed.sort();
        renamed
    }

    fn sort(&mut self) {
        for proxy in &mut self.proxies {
            proxy.statements.sort_unstable();
            proxy.exchanges.sort_unstable();
            proxy.publications.sort_unstable();
        }
    }
}
