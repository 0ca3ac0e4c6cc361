//! A model of operations whose outcome is remembered (`outcome` of a route): one operation, the row
//! that the store keeps of it, and three or four requests for it at two proxies.
//!
//! The barrier is what the model of the store protocol shows of it: permits of one token at a time,
//! valid until they end or their instance has settled. A proxy that is stopped does not notice
//! that. Its lease is looked at where the program looks: at a send.
//!
//! A statement is executed in one step and its answer is read in a later one. A statement that was
//! given up is executed at any later moment, or never.

mod properties;
mod state;
mod step;

pub use state::{Broken, Request};

/// A mistake, which the model must find a counterexample for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The permit ends with the answer, not when that is recorded.
    EndsBeforeRecord,
    /// An attempt of a dead instance counts as settled before the instance does.
    DeadIsSettled,
    /// An attempt with the same token counts as settled.
    EqualIsSettled,
    /// An attempt with a newer token counts as settled, whatever became of the lease.
    NewerIsSettled,
    /// An attempt with an older token counts as settled, whatever became of the lease.
    OlderWithoutLease,
    /// An attempt is recorded as settled when its exchange breaks.
    SettledAtOnce,
    /// An attempt is recorded as settled, no matter whose the row is.
    SettledWithoutName,
    /// The upstream is asked while an attempt may be in flight.
    LookUpTooSoon,
    /// A retake does not compare the attempt whose place it takes.
    RetakeWithoutName,
    /// A row is deleted, no matter whose it is.
    GiveBackWithoutName,
    /// An attempt is given back although it was sent, and broke.
    GiveBackOfSent,
    /// An attempt that was made again is given back like a first one.
    GiveBackForgets,
    /// An answer is recorded, no matter whose the row is.
    KnownWithoutName,
    /// An operator's resolution does not name the attempt that the operator has looked at.
    ResolveWithoutName,
    /// A request that got no answer from the store is sent.
    SendWithoutAnswer,
    /// A row without a known outcome expires.
    UnknownExpires,
    /// The digests of two requests are not compared.
    AnyDigest,
}

/// The size of a run, and the events that may happen in it.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are what they say, and all of them vary freely"
)]
pub struct Bounds {
    pub requests: &'static [Request],
    /// The upstream is asked about an unknown outcome, and its answer is true.
    pub look_up: bool,
    /// An operation whose outcome is unknown is sent again (`unknown: forward`).
    pub forward: bool,
    /// The first proxy crashes, loses its lease, is declared dead, and rejoins.
    pub death: bool,
    /// An operator lowers the mark.
    pub overrides: bool,
    /// An operator resolves unknown outcomes.
    pub resolves: bool,
    pub mutant: Option<Mutant>,
    /// The breaks that are looked for: bits of [`state::Broken`].
    pub judged: u16,
}

impl Bounds {
    /// `unknown: refuse`, without a look-up, and with everything that may happen.
    #[must_use]
    pub const fn new(requests: &'static [Request]) -> Self {
        Self {
            requests,
            look_up: false,
            forward: false,
            death: true,
            overrides: true,
            resolves: true,
            mutant: None,
            judged: u16::MAX,
        }
    }

    /// The same with this mistake in it, which must break one of the `judged`.
    #[must_use]
    pub const fn with(self, mutant: Mutant, judged: u16) -> Self {
        Self {
            mutant: Some(mutant),
            judged,
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
