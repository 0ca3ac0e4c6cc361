//! [`State`]: all there is, in the store, in the proxies' memories and at the upstream.
//!
//! Flat and small, since millions of them are made. An epoch has a number that tells its owner: the
//! proxy, which of its lives, and the opening. The store's row has a place for each of them.

use crate::bounds::{Bounds, Features};

pub const PROXIES: usize = 3;
pub const LIVES: usize = 2;
pub const OPENINGS: usize = 2;
pub const INSTANCES: usize = PROXIES * LIVES;
pub const ROWS: usize = INSTANCES * OPENINGS;
/// Rows that one proxy can own.
pub const OWN: usize = LIVES * OPENINGS;
pub const STATEMENTS: usize = 2;
pub const EXCHANGES: usize = 2;
pub const PUBLICATIONS: usize = 2;
pub const ERAS: usize = 3;

/// A token; 0: none.
pub type Token = u8;
/// A set of rows, by number.
pub type Rows = u16;
/// A set of tokens.
pub type Tokens = u8;

/// All rows.
pub const ALL: Rows = (1 << ROWS) - 1;

/// The members of a set.
pub fn each(mut rows: Rows) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let row = rows.trailing_zeros() as usize;
        rows &= rows.wrapping_sub(1);
        (row < ROWS).then_some(row)
    })
}

/// The members of a set for which this is so.
pub fn rows(of: Rows, which: impl Fn(usize) -> bool) -> Rows {
    each(of)
        .filter(|row| which(*row))
        .fold(0, |set, row| set | bit(row))
}

pub const fn bit(row: usize) -> Rows {
    1 << row
}

/// What the store has on record of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Life {
    /// Never joined.
    #[default]
    Unborn,
    Alive,
    Dead,
    /// Dead and settled, for ever: its epochs are over, also those that turn up later.
    Gone,
}

/// How far a statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// At the store, not executed.
    Sent,
    /// The mutant that selects first: it has.
    Selected,
    /// Committed and answered; the lane has not entered it.
    Committed,
}

/// What a statement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Raise the mark and open an epoch.
    Open,
    /// Spend the token.
    Spend,
    /// Give it back.
    GiveBack,
}

/// One statement of the request path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Statement {
    pub stage: Stage,
    pub purpose: Purpose,
    /// Given up: nobody waits for its answer. It may commit all the same.
    pub late: bool,
    pub token: Token,
    /// The epoch it opens, or the epoch under whose permit it spends.
    pub row: u8,
    /// The era it was sent with.
    pub era: u8,
    /// How many overrides of this resource there had been when it was sent (not known to the
    /// program).
    pub overrides: u8,
    /// The mark that was known here to be durable when it was sent. Kept where marks can be lost.
    pub known: Token,
    /// The name of a spending.
    pub name: u8,
    /// What was found under the lock.
    pub before: Token,
    pub row_era: u8,
    pub won: bool,
    /// Own epochs that were out of use when it was sent: it removes them.
    pub drops: Rows,
    /// Older epochs of others, as found under the lock. For one mutant: those at its start.
    pub older: Rows,
}

/// An epoch in a proxy's memory. Its number says which row it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// 0: there is none.
    pub token: Token,
    /// Asked to close: gives no permit any more.
    pub closing: bool,
    /// Older epochs of others, still open when last looked.
    pub foreign: Rows,
}

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// A permit was given, nothing sent.
    Permit,
    /// Its token is being spent.
    Spending,
    /// Its token is spent, nothing sent.
    Spent,
    /// A first part was sent, and the upstream works on it.
    Writing,
    /// All was sent, and the upstream works on it.
    Sent,
    /// The whole response is there, and some of the request is undelivered: in flight until all of
    /// it has arrived. No more of it is sent.
    Answered,
    /// It broke; the upstream works on, and the epoch is in flight until that has settled.
    Unknown,
    /// The upstream works on, and nobody here counts it: its proxy is gone.
    Orphan,
}

/// Where the bytes of a request are. Without [`Features::TRANSIT`] what is sent has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bytes {
    /// Nothing was sent.
    Kept,
    /// In a buffer of the proxy's HTTP library, which has yet to write them.
    Queued,
    /// In the kernel of the proxy's machine: the path has not taken them. The upstream has none.
    InTransit,
    /// The upstream has a part, and the rest is in transit.
    Partly,
    /// The upstream has all that was sent.
    Arrived,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Exchange {
    pub phase: Phase,
    pub bytes: Bytes,
    pub token: Token,
    pub row: u8,
    /// The name it spends its token under.
    pub name: u8,
    /// From before an override (not known to the program).
    pub outdated: bool,
    /// Permitted by a proxy that had noticed a loss by then (not known to the program).
    pub warned: bool,
}

impl Exchange {
    /// Returns whether the upstream has some of it and has not ended.
    pub fn up(self) -> bool {
        matches!(self.bytes, Bytes::Partly | Bytes::Arrived)
    }

    /// Returns whether some of it may arrive yet, with nobody doing anything.
    pub fn in_transit(self) -> bool {
        matches!(self.bytes, Bytes::InTransit | Bytes::Partly)
    }

    /// Returns whether some of it is not at the upstream.
    pub fn undelivered(self) -> bool {
        self.bytes == Bytes::Queued || self.in_transit()
    }
}

/// Which epochs of an instance are over: those that are below, and not left open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Publication {
    /// What had been opened when it was composed (`closed_below`).
    pub below: Rows,
    /// What of it was in use (`left_open`).
    pub left: Rows,
}

/// Where the repair of lost marks is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bar {
    #[default]
    None,
    Repairing,
    Settling,
}

/// A proxy's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are what they say, and all of them vary freely"
)]
pub struct Proxy {
    pub running: bool,
    /// Which of its instances it is now.
    pub life: u8,
    /// Its lease runs.
    pub lease: bool,
    pub known: Token,
    pub era: u8,
    pub bar: Bar,
    /// It has not noticed that the store has failed over.
    pub unaware: bool,
    /// It has noticed that marks or epochs were lost.
    pub warned: bool,
    pub epochs: [Epoch; OWN],
    pub statements: [Option<Statement>; STATEMENTS],
    /// Publications on their way, with the life that has sent them.
    pub publications: [Option<(u8, Publication)>; PUBLICATIONS],
    pub exchanges: [Option<Exchange>; EXCHANGES],
    /// A look that was sent: the own epochs that were registered then, and the epochs that it has
    /// found open, if it has read the row.
    pub look: Option<(Rows, Option<Rows>)>,
}

/// What a store can lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tables {
    pub mark: Token,
    /// The name it is spent under; 0: it is not.
    pub spent: u8,
    /// The era on the mark's row.
    pub row_era: u8,
    /// The namespace's.
    pub era: u8,
    /// The token of each epoch that stands in the row; 0: it does not.
    pub rows: [Token; ROWS],
    pub lives: [Life; INSTANCES],
    pub published: [Publication; INSTANCES],
    /// For one mutant: the instances that are recorded as settled in a table of their own.
    pub settled: u8,
}

/// Where the failover is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failover {
    /// The replica keeps up.
    #[default]
    None,
    /// It has fallen behind, and has this.
    Behind(Tables),
    /// It has taken over.
    Done,
}

/// What was broken. Not known to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Broken(pub u16);

impl Broken {
    /// G1: sent without a mark at the token, or with no epoch on record.
    pub const UNRECORDED: u16 = 1;
    /// G2: sent while an older one was in flight.
    pub const OVERTOOK: u16 = 1 << 1;
    /// G2: sent after a newer one.
    pub const STALE: u16 = 1 << 2;
    /// G3: a mark went down, without an override.
    pub const FELL: u16 = 1 << 3;
    /// One token was sent twice under `reuse: once`.
    pub const TWICE: u16 = 1 << 4;
    /// A statement from before an override changed the mark after it.
    pub const UNDONE: u16 = 1 << 5;
    /// A mark was lowered while a request was in flight.
    pub const UNDER_WAY: u16 = 1 << 6;
    /// A proxy that knows the era remembers a mark above the store's.
    pub const REMEMBERED: u16 = 1 << 7;
    /// A loss was found where nothing was lost.
    pub const ALARM: u16 = 1 << 8;
    /// G2.
    pub const ORDER: u16 = Self::OVERTOOK | Self::STALE;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub store: Tables,
    pub failover: Failover,
    /// Overrides of this resource so far.
    pub overrides: u8,
    /// The mark was deleted.
    pub pruned: bool,
    /// Marks that were told to everybody, by the era they were told with.
    pub news: [Tokens; ERAS],
    pub proxies: [Proxy; PROXIES],
    /// The highest token that was ever sent.
    pub highest: Token,
    /// Tokens that were sent (`reuse: once`).
    pub used: Tokens,
    /// A token was given back.
    pub given_back: bool,
    pub broken: Broken,
}

/// A number of a row, a life or a token, as a state has it.
pub fn small(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

pub const fn instance_of(row: usize) -> usize {
    row / OPENINGS
}

/// All rows of an instance.
pub const fn of(instance: usize) -> Rows {
    ((1 << OPENINGS) - 1) << (instance * OPENINGS)
}

pub const fn owner_of(row: usize) -> usize {
    row / OWN
}

impl State {
    pub fn first(bounds: &Bounds) -> Self {
        let mut state = Self::default();
        for at in 0..bounds.proxies {
            state.proxies[at].running = true;
            state.proxies[at].lease = true;
            state.store.lives[at * LIVES] = Life::Alive;
        }
        if bounds.can(Features::UNKNOWN) {
            state.store.lives[0] = Life::Unborn;
        }
        state
    }

    /// The store's tables, and the replica's where it is behind.
    pub fn tables(&mut self) -> impl Iterator<Item = &mut Tables> {
        let replica = match &mut self.failover {
            Failover::Behind(replica) => Some(replica),
            _ => None,
        };
        std::iter::once(&mut self.store).chain(replica)
    }

    pub fn instance(&self, at: usize) -> usize {
        at * LIVES + usize::from(self.proxies[at].life)
    }

    /// Removes these epochs from the row.
    pub fn remove(&mut self, gone: Rows) {
        for row in each(gone) {
            self.store.rows[row] = 0;
        }
    }

    /// Returns whether this epoch is over, whether or not it stands in the row.
    pub fn over(&self, row: usize) -> bool {
        let instance = instance_of(row);
        let published = self.store.published[instance];
        self.store.lives[instance] == Life::Gone
            || self.store.settled & (1 << instance) > 0
            || published.below & bit(row) > 0 && published.left & bit(row) == 0
    }

    /// Epochs that stand in the row and are not over.
    pub fn open(&self) -> Rows {
        rows(self.present(), |row| !self.over(row))
    }

    /// Open epochs of other instances than this, below `token`.
    pub fn older(&self, instance: usize, token: Token) -> Rows {
        rows(self.open(), |row| {
            instance_of(row) != instance && self.store.rows[row] < token
        })
    }

    /// Epochs of the instance that this proxy is now which it uses, or may yet enter.
    pub fn used(&self, at: usize) -> Rows {
        let proxy = &self.proxies[at];
        let statements = proxy.statements.iter().flatten();
        let unanswered = statements.filter(|s| !s.late && s.purpose == Purpose::Open);
        let opening = unanswered.fold(0, |rows, s| rows | bit(usize::from(s.row)));
        self.held(at) | opening & self.own(at)
    }

    /// Epochs of the instance that this proxy is now in its memory.
    pub fn held(&self, at: usize) -> Rows {
        let epochs = self.proxies[at].epochs;
        rows(self.own(at), |row| epochs[row % OWN].token > 0)
    }

    /// Epochs that stand in the row.
    pub fn present(&self) -> Rows {
        rows(ALL, |row| self.store.rows[row] > 0)
    }

    /// Numbers that anything but a list of what is out of use has.
    pub fn known(&self) -> Rows {
        let mut known = self.present();
        if let Failover::Behind(replica) = self.failover {
            known |= rows(ALL, |row| replica.rows[row] > 0);
        }
        for (at, proxy) in self.proxies.iter().enumerate() {
            for (own, epoch) in proxy.epochs.iter().enumerate() {
                known |= epoch.foreign | Rows::from(epoch.token > 0) << (at * OWN + own);
            }
            for statement in proxy.statements.iter().flatten() {
                known |= statement.older | bit(usize::from(statement.row));
            }
            for exchange in proxy.exchanges.iter().flatten() {
                known |= bit(usize::from(exchange.row));
            }
        }
        known
    }

    /// All that the instance that this proxy is now may have opened.
    pub fn own(&self, at: usize) -> Rows {
        of(self.instance(at))
    }

    /// Returns whether the lease holds for what was begun under this row's opening.
    pub fn holds(&self, at: usize, row: usize) -> bool {
        self.proxies[at].lease && instance_of(row) == self.instance(at)
    }

    /// Every exchange that is, with its proxy.
    pub fn exchanges(&self) -> impl Iterator<Item = (usize, Exchange)> {
        let proxies = self.proxies.iter().enumerate();
        proxies.flat_map(|(at, proxy)| proxy.exchanges.iter().flatten().map(move |e| (at, *e)))
    }

    /// An opening of this proxy's instance that nothing knows any more: a fresh number, as good as
    /// one never used.
    pub fn fresh(&self, at: usize, bounds: &Bounds) -> Option<usize> {
        let first = self.instance(at) * OPENINGS;
        let known = self.known();
        (first..first + bounds.openings).find(|row| known & bit(*row) == 0)
    }
}
