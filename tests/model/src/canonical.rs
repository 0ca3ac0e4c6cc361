//! The same state under one of all its names: most of what makes a search small enough to be
//! exhausted.
//!
//! Proxies are interchangeable, and so are the numbers of openings, statements and exchanges. What
//! comes at any moment and can only hold back by coming late comes at once.

use crate::bounds::Bounds;
use crate::state::{
    Epoch, INSTANCES, LIVES, Life, OPENINGS, OWN, PROXIES, Purpose, ROWS, Rows, STATEMENTS, State,
    Token, bit, owner_of,
};

/// What decides an order of the proxies before all else.
type Outline = [(bool, u8, bool, Token, u8, usize); PROXIES];
/// What decides an order of openings.
type Signature = (Token, Token, Epoch, bool, u8, u8);

impl State {
    /// The same state under one of all its names, and without what makes no difference.
    #[must_use]
    pub fn canonical(mut self, bounds: &Bounds) -> Self {
        self.tidy(bounds);
        if bounds.mutant.is_some() {
            // Its trace is for reading.
            return self;
        }
        if bounds.openings > 1 {
            self.sort_openings();
        }
        let orders: &[[usize; PROXIES]] = match bounds.proxies {
            _ if bounds.mortal < bounds.proxies => &[],
            2 => &[[1, 0, 2]],
            _ => &[[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        };
        // By what is looked at first, and by all only where that leaves a choice.
        let mut least = (self.outline(&[0, 1, 2]), self);
        for order in orders {
            let outline = self.outline(order);
            if outline < least.0 {
                least = (outline, self.reordered(order));
            } else if outline == least.0 {
                least.1 = least.1.min(self.reordered(order));
            }
        }
        least.1
    }

    /// Deletes and looks that can come at any moment come at once: one that comes late only keeps
    /// others back. Not where rows can be lost, since there a row that is still there can be
    /// copied.
    fn tidy(&mut self, bounds: &Bounds) {
        for at in 0..bounds.proxies {
            let proxy = &self.proxies[at];
            if !proxy.running && self.store.lives[self.instance(at)] != Life::Alive {
                // Nobody asks any more.
                self.proxies[at].lease = false;
            }
            let proxy = &mut self.proxies[at];
            proxy.statements.sort_unstable();
            proxy.exchanges.sort_unstable();
            let pending = proxy.statements.iter().flatten();
            let pending = pending.fold(0, |rows, s| rows | bit(usize::from(s.row)));
            let mine = if proxy.running && !bounds.loses() {
                self.nobodys(at) | self.proxies[at].closes
            } else {
                0
            };
            for row in each(mine) {
                self.store.rows[row] = 0;
            }
            // To delete what is not there and cannot come is to do nothing.
            let present = self.present();
            self.proxies[at].closes &= present | pending;
        }
        if !bounds.loses() {
            let present = self.present();
            for epoch in self.proxies.iter_mut().flat_map(|p| &mut p.epochs) {
                epoch.foreign &= present;
            }
        }
    }

    /// Rows that a poll finds: of this proxy's instance, below the mark, and nobody here knows
    /// them.
    #[must_use]
    pub fn nobodys(&self, at: usize) -> Rows {
        let proxy = &self.proxies[at];
        let first = self.instance(at) * OPENINGS;
        let unanswered = proxy.statements.iter().flatten();
        let unanswered = unanswered.filter(|s| !s.late && s.purpose == Purpose::Open);
        let known = unanswered.fold(proxy.closes, |rows, s| rows | bit(usize::from(s.row)));
        (first..first + OPENINGS)
            .filter(|row| {
                let token = self.store.rows[*row];
                let superseded = token > 0 && token < self.store.mark;
                superseded && proxy.epochs[row % OWN].token == 0 && known & bit(*row) == 0
            })
            .fold(0, |rows, row| rows | bit(row))
    }

    fn outline(&self, order: &[usize; PROXIES]) -> Outline {
        order.map(|at| {
            let proxy = &self.proxies[at];
            let first = proxy.statements[STATEMENTS - 1];
            let stage = first.map_or(0, |s| 1 + s.token + 4 * u8::from(s.late));
            let exchanges = proxy.exchanges.iter().flatten();
            let exchanges = exchanges.fold(0, |sum, e| {
                sum * 256 + e.phase as usize * 32 + e.bytes as usize * 4 + 4 + usize::from(e.token)
            });
            (
                proxy.running,
                proxy.life,
                proxy.lease,
                proxy.known,
                stage,
                exchanges,
            )
        })
    }

    fn reordered(&self, order: &[usize; PROXIES]) -> Self {
        let mut new_of = [0; PROXIES];
        for (new, old) in order.iter().enumerate() {
            new_of[*old] = new;
        }
        let mut renamed = *self;
        renamed.proxies = order.map(|at| self.proxies[at]);
        for (to, from) in [
            (&mut renamed.store, &self.store),
            (&mut renamed.replica, &self.replica),
        ] {
            for (new, old) in order.iter().enumerate() {
                let (rows, lives) = (old * OWN, old * LIVES);
                to.rows[new * OWN..(new + 1) * OWN].copy_from_slice(&from.rows[rows..rows + OWN]);
                to.lives[new * LIVES..(new + 1) * LIVES]
                    .copy_from_slice(&from.lives[lives..lives + LIVES]);
            }
        }
        renamed.refer(|row| new_of[row / OWN] * OWN + row % OWN);
        renamed
    }

    /// Which opening has which number is of no account: they are put in order.
    fn sort_openings(&mut self) {
        let mut renamed = [0; ROWS];
        let mut moved = false;
        for instance in 0..INSTANCES {
            let first = instance * OPENINGS;
            let mut order: [usize; OPENINGS] = std::array::from_fn(|k| first + k);
            let used = |row: usize| self.store.rows[row] > 0 || self.refers(row);
            if order.iter().filter(|row| used(**row)).count() > 1 {
                order.sort_by_key(|row| std::cmp::Reverse(self.signature(*row)));
            }
            for (new, old) in order.iter().enumerate() {
                renamed[*old] = first + new;
                moved |= *old != first + new;
            }
        }
        if !moved {
            return;
        }
        let old = *self;
        for (from, to) in renamed.iter().enumerate() {
            self.store.rows[*to] = old.store.rows[from];
            self.replica.rows[*to] = old.replica.rows[from];
            self.proxies[owner_of(*to)].epochs[to % OWN] =
                old.proxies[owner_of(from)].epochs[from % OWN];
        }
        self.refer(|row| renamed[row]);
    }

    /// Returns whether this row's owner knows it.
    fn refers(&self, row: usize) -> bool {
        let proxy = &self.proxies[owner_of(row)];
        proxy.epochs[row % OWN].token > 0
            || proxy.closes & bit(row) > 0
            || proxy
                .statements
                .iter()
                .flatten()
                .any(|s| usize::from(s.row) == row)
            || proxy
                .exchanges
                .iter()
                .flatten()
                .any(|e| usize::from(e.row) == row)
    }

    fn signature(&self, row: usize) -> Signature {
        let proxy = &self.proxies[owner_of(row)];
        let statement = proxy.statements.iter().flatten();
        let statement = statement.fold(0, |sum, s| sum * 2 + u8::from(usize::from(s.row) == row));
        let exchange = proxy.exchanges.iter().flatten();
        let exchange = exchange.fold(0, |sum, e| sum * 2 + u8::from(usize::from(e.row) == row));
        let closes = proxy.closes & bit(row) > 0;
        let (there, copied) = (self.store.rows[row], self.replica.rows[row]);
        (
            there,
            copied,
            proxy.epochs[row % OWN],
            closes,
            statement,
            exchange,
        )
    }

    /// Lets every mention of a row follow it to its new number.
    fn refer(&mut self, new: impl Fn(usize) -> usize) {
        let set = |rows: Rows| each(rows).fold(0, |set, row| set | bit(new(row)));
        let one = |row: u8| u8::try_from(new(usize::from(row))).unwrap_or(u8::MAX);
        for proxy in &mut self.proxies {
            proxy.closes = set(proxy.closes);
            for epoch in &mut proxy.epochs {
                epoch.foreign = set(epoch.foreign);
            }
            for statement in proxy.statements.iter_mut().flatten() {
                statement.row = one(statement.row);
                statement.older = set(statement.older);
            }
            for exchange in proxy.exchanges.iter_mut().flatten() {
                exchange.row = one(exchange.row);
            }
            proxy.statements.sort_unstable();
            proxy.exchanges.sort_unstable();
        }
    }
}

/// The members of a set.
fn each(mut rows: Rows) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let row = rows.trailing_zeros() as usize;
        rows &= rows.wrapping_sub(1);
        (row < ROWS).then_some(row)
    })
}
