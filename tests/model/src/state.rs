//! [`State`]: all there is, in the store, in the proxies' memories and at the upstream.
//!
//! Flat and small, since millions of them are made. A row of `epochs` has a number that tells its
//! owner: the proxy, which of its lives, and the opening.

use std::hash::{Hash, Hasher};

use crate::bounds::{Bounds, Features, Mutant};

pub const PROXIES: usize = 3;
pub const LIVES: usize = 2;
pub const OPENINGS: usize = 3;
pub const INSTANCES: usize = PROXIES * LIVES;
pub const ROWS: usize = INSTANCES * OPENINGS;
/// Rows that one proxy can own.
pub const OWN: usize = LIVES * OPENINGS;
pub const STATEMENTS: usize = 3;
pub const EXCHANGES: usize = 2;
pub const ERAS: usize = 3;

/// A token; 0: none.
pub type Token = u8;
/// A set of rows, by number.
pub type Rows = u32;
/// A set of tokens.
pub type Tokens = u8;

#[must_use]
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
    /// Its row was deleted. Epochs that turn up later are of an id that nobody knows, and it counts
    /// as dead.
    Gone,
}

/// How far a statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// At the store, not executed.
    Sent,
    /// The mutant that selects first: it has.
    Selected,
    /// It holds the row lock, and has not committed.
    Locked,
    /// Committed and answered; the second statement, where one is needed, has not been.
    Committed,
    /// The second statement is answered too; the writer has entered neither.
    Answered,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The second statement: its own row was there.
    pub there: bool,
    /// The second statement: older epochs of others. For one mutant: those at its start.
    pub older: Rows,
}

impl Hash for Statement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&[
            self.stage as u8,
            self.purpose as u8,
            self.token,
            self.row,
            self.era,
            self.overrides,
            self.known,
            self.name,
            self.before,
            self.row_era,
            u8::from(self.late) | u8::from(self.won) << 1 | u8::from(self.there) << 2,
        ]);
        state.write_u32(self.older);
    }
}

/// An epoch in a proxy's memory. Its number says which row it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// 0: there is none.
    pub token: Token,
    /// Asked to close: gives no permit any more.
    pub closing: bool,
    /// Older epochs of others, still open when last looked.
    pub foreign: Rows,
}

impl Hash for Epoch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let flags = u64::from(self.token) | u64::from(self.closing) << 8;
        state.write_u64(flags | u64::from(self.foreign) << 32);
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    #[must_use]
    pub fn up(self) -> bool {
        matches!(self.bytes, Bytes::Partly | Bytes::Arrived)
    }

    /// Returns whether some of it may arrive yet, with nobody doing anything.
    #[must_use]
    pub fn in_transit(self) -> bool {
        matches!(self.bytes, Bytes::InTransit | Bytes::Partly)
    }

    /// Returns whether some of it is not at the upstream.
    #[must_use]
    pub fn undelivered(self) -> bool {
        self.bytes == Bytes::Queued || self.in_transit()
    }
}

impl Hash for Exchange {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let flags = [self.phase as u8, self.token, self.row, self.name];
        state.write_u64(
            u64::from(u32::from_le_bytes(flags))
                | u64::from(self.outdated) << 32
                | u64::from(self.warned) << 33
                | (self.bytes as u64) << 40,
        );
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Rows that are drained and to be deleted.
    pub closes: Rows,
    pub statements: [Option<Statement>; STATEMENTS],
    pub exchanges: [Option<Exchange>; EXCHANGES],
    /// For the mutant that does not look again: who waits, and for what.
    pub waiter: Option<(u8, Token, Rows)>,
    /// For one mutant: a watcher has once found this proxy silent.
    pub silent: bool,
}

impl Hash for Proxy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let flags = u8::from(self.running)
            | u8::from(self.lease) << 1
            | u8::from(self.unaware) << 2
            | u8::from(self.warned) << 3
            | u8::from(self.silent) << 4;
        let first = [flags, self.life, self.known, self.era, self.bar as u8];
        let first = first
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        state.write_u64(first);
        state.write_u32(self.closes);
        for epoch in &self.epochs {
            epoch.hash(state);
        }
        self.statements.hash(state);
        self.exchanges.hash(state);
        self.waiter.hash(state);
    }
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
    /// The token of each row; 0: there is none.
    pub rows: [Token; ROWS],
    pub lives: [Life; INSTANCES],
}

/// Where the failover is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failover {
    /// The replica keeps up.
    #[default]
    None,
    /// It has fallen behind.
    Behind,
    /// It has taken over.
    Done,
}

/// What was broken. Not known to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Broken(pub u8);

impl Broken {
    /// G1: sent without a mark at the token, or with no epoch on record.
    pub const UNRECORDED: u8 = 1;
    /// G2: sent while an older one was in flight.
    pub const OVERTOOK: u8 = 1 << 1;
    /// G2: sent after a newer one.
    pub const STALE: u8 = 1 << 2;
    /// G3: a mark went down, without an override.
    pub const FELL: u8 = 1 << 3;
    /// One token was sent twice under `reuse: once`.
    pub const TWICE: u8 = 1 << 4;
    /// A statement from before an override changed the mark after it.
    pub const UNDONE: u8 = 1 << 5;
    /// A mark was lowered while a request was in flight.
    pub const UNDER_WAY: u8 = 1 << 6;
    /// A proxy that knows the era remembers a mark above the store's.
    pub const REMEMBERED: u8 = 1 << 7;
    /// G2.
    pub const ORDER: u8 = Self::OVERTOOK | Self::STALE;

    #[must_use]
    pub fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub store: Tables,
    /// For failover: what the replica has.
    pub replica: Tables,
    pub failover: Failover,
    /// An override holds the row lock.
    pub overriding: bool,
    /// Overrides of this resource so far.
    pub overrides: u8,
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

#[must_use]
pub const fn instance_of(row: usize) -> usize {
    row / OPENINGS
}

#[must_use]
pub const fn owner_of(row: usize) -> usize {
    row / OWN
}

impl State {
    #[must_use]
    pub fn first(bounds: &Bounds) -> Self {
        let mut state = Self::default();
        for at in 0..bounds.proxies {
            state.proxies[at].running = true;
            state.proxies[at].lease = true;
            state.store.lives[at * LIVES] = Life::Alive;
        }
        state
    }

    #[must_use]
    pub fn instance(&self, at: usize) -> usize {
        at * LIVES + usize::from(self.proxies[at].life)
    }

    /// Rows that are on record.
    #[must_use]
    pub fn present(&self) -> Rows {
        let rows = self.store.rows.iter().enumerate();
        rows.filter(|(_, token)| **token > 0)
            .fold(0, |set, (row, _)| set | bit(row))
    }

    /// Rows on record of other instances than this, below `token`.
    #[must_use]
    pub fn older(&self, instance: usize, token: Token) -> Rows {
        let rows = self.store.rows.iter().enumerate();
        rows.filter(|(row, other)| **other > 0 && **other < token && instance_of(*row) != instance)
            .fold(0, |set, (row, _)| set | bit(row))
    }

    #[must_use]
    pub fn locked(&self) -> bool {
        let statements = self.proxies.iter().flat_map(|proxy| &proxy.statements);
        self.overriding
            || statements
                .flatten()
                .any(|statement| statement.stage == Stage::Locked)
    }

    /// Returns whether the lease holds for what was begun under this row's opening.
    #[must_use]
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
    #[must_use]
    pub fn fresh(&self, at: usize, bounds: &Bounds) -> Option<usize> {
        let first = self.instance(at) * OPENINGS;
        (first..first + bounds.openings).find(|row| !self.in_use(at, *row))
    }

    fn in_use(&self, at: usize, row: usize) -> bool {
        let proxy = &self.proxies[at];
        let named = |number: u8| usize::from(number) == row;
        self.store.rows[row] > 0
            || (self.failover == Failover::Behind && self.replica.rows[row] > 0)
            || proxy.epochs[row % OWN].token > 0
            || proxy.closes & bit(row) > 0
            || proxy.statements.iter().flatten().any(|s| named(s.row))
            || proxy.exchanges.iter().flatten().any(|e| named(e.row))
            || proxy.waiter.is_some_and(|(of, ..)| named(of))
            || self.proxies.iter().any(|other| {
                let statements = other.statements.iter().flatten();
                other.epochs.iter().any(|e| e.foreign & bit(row) > 0)
                    || statements.clone().any(|s| s.older & bit(row) > 0)
                    || other.waiter.is_some_and(|(.., of)| of & bit(row) > 0)
            })
    }
}

impl Bounds {
    /// Returns whether this run's proxies can be several instances, one after the other.
    #[must_use]
    pub fn rejoins(&self) -> bool {
        self.lives > 1 && (self.can(Features::LEASE) || self.can(Features::CRASH))
    }

    /// Returns whether it matters that the second statement's answer is entered a moment later.
    /// Where instances neither die nor lose their rows, it can only hold more back than there is.
    #[must_use]
    pub fn reads_apart(&self) -> bool {
        self.can(Features::LEASE) || self.loses()
    }

    /// How many statements of one proxy may wait for their answers at once.
    #[must_use]
    pub fn lanes(&self) -> usize {
        if self.can(Features::LOCKS) && !self.is(Mutant::SelectThenUpdate) {
            2
        } else {
            1
        }
    }
}
