//! [`Bounds`]: how large a run is, what may happen in it, and which mistake it makes.

use std::ops::BitOr;

#[cfg(doc)]
use crate::state::Broken;

/// What may happen in a run, beside asking, answering, opening, closing, sending and the loss of
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u16);

impl Features {
    pub const NONE: Self = Self(0);
    /// Proxies die without a word, and come back as another instance.
    pub const CRASH: Self = Self(1);
    /// Leases lapse; instances are declared dead, settle, are buried and rejoin.
    pub const LEASE: Self = Self(1 << 1);
    /// Epochs nobody uses are closed, and opened again.
    pub const IDLE: Self = Self(1 << 2);
    /// Row locks are held and waited for; a wait may time out, and the resource is then asked about
    /// beside the writer.
    pub const LOCKS: Self = Self(1 << 3);
    /// Every request spends its token (`reuse: once`), and gives it back if it was not sent.
    pub const SPEND: Self = Self(1 << 4);
    /// An operator lowers the mark, of this resource and of another.
    pub const OVERRIDE: Self = Self(1 << 5);
    /// The store fails over, once, to a replica that may be behind.
    pub const FAILOVER: Self = Self(1 << 6);
    /// A request is written in two parts.
    pub const BODY: Self = Self(1 << 7);
    /// Exchanges break, and the upstream works on without its caller.
    pub const BREAK: Self = Self(1 << 8);
    /// Proxies stop gracefully: what has drained is deleted, what has not stays on record.
    pub const LEAVE: Self = Self(1 << 9);
    /// What is sent is in transit before it arrives: in the kernel of the proxy's machine. That
    /// delivers it whether or not the proxy is stopped, until the connection is reset or the user
    /// timeout has passed.
    pub const TRANSIT: Self = Self(1 << 10);
    /// What is sent is in a buffer of the HTTP library before it is written. With
    /// [`Self::TRANSIT`].
    pub const QUEUE: Self = Self(1 << 11);
    /// The path takes a part at a time, and each part starts the user timeout again. With
    /// [`Self::TRANSIT`]. A proxy that is stopped beyond its lease and the user timeout is left
    /// out: it cannot reset what trickles.
    pub const TRICKLE: Self = Self(1 << 12);

    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

/// A mistake, which the model must find a counterexample for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A request goes to the barrier when its statement is sent, not when it has been answered.
    ForwardBeforeCommit,
    /// Epochs of other instances hold nobody back.
    BarrierPerProcess,
    /// A dead instance's epochs are deleted as soon as it is declared dead.
    BuryWithoutSettle,
    /// Epochs are deleted of an instance that was found silent once, whether or not it is dead.
    BuryWithoutLook,
    /// The lease is looked at for the permit, and not again at the socket.
    LeaseOnlyBeforeSend,
    /// Watchers do not wait for the whole of the owner's lease.
    DeclaredTooSoon,
    /// Older epochs are read in the snapshot of the advance's own statement.
    EpochsInOwnStatement,
    /// An advance deletes this instance's older epochs along the way.
    CloseWithAdvance,
    /// A request that has waited at the barrier does not look again.
    NoSecondLook,
    /// The mark is read in one statement and written in the next.
    SelectThenUpdate,
    /// The answer of a statement that was given up is entered all the same.
    LateAnswerUsed,
    /// An epoch that was asked to close is deleted while requests of it are in flight.
    CloseBeforeDrained,
    /// An exchange that broke counts as over.
    BrokenIsOver,
    /// A whole response ends the permit, with bytes of the request undelivered.
    EarlyAnswerSettles,
    /// Bytes are undelivered long after the whole response, and the connection is closed in order:
    /// they arrive later.
    ClosedInOrder,
    /// An exchange is given up and its connection stays: what is in transit arrives later.
    GiveUpWithoutReset,
    /// An exchange is given up and the library goes on to write what it has queued.
    QueueNotReset,
    /// The kernel goes on to deliver what a dead process has left (no `SO_LINGER` of 0).
    NoLinger,
    /// Watchers wait for `settle` alone, as if nothing could be in transit. (Or the kernel knows no
    /// user timeout, and their wait for it is in vain.)
    NoUserTimeout,
    /// A proxy whose lease has lapsed does not reset what is in transit before the user timeout has
    /// passed.
    LateCutoff,
    /// A commit that was answered is gone after a crash of the store (`synchronous_commit=off`).
    LostCommit,
    /// Found marks lost, the proxy goes on.
    LossWithoutBar,
    /// Lost marks written back, the proxy goes on at once.
    LossWithoutSettle,
    /// Lost marks written back, an epoch from before goes on giving permits.
    LossKeepsEpochs,
    /// An override does not count the era on.
    EraStays,
    /// An override does not look at open epochs.
    OverrideWithoutLook,
    /// A token is looked at for the permit and marked as spent after the send.
    SpendAfterSend,
    /// A token is given back, no matter who has spent it.
    GiveBackWithoutName,
}

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub name: &'static str,
    /// 2 or 3.
    pub proxies: usize,
    /// Tokens are 1 to this.
    pub tokens: u8,
    /// How many openings of one instance are in use at once, up to 3. One is in use while a row, a
    /// memory or a statement knows it.
    pub openings: usize,
    /// Exchanges of one proxy at once, up to 2.
    pub exchanges: usize,
    /// Statements of one proxy that were given up and still run at the store, at once.
    pub late: usize,
    /// Instances that one proxy may be, one after the other, up to 2.
    pub lives: usize,
    /// How many of the proxies can lose their lease, crash or leave.
    pub mortal: usize,
    pub features: Features,
    pub mutant: Option<Mutant>,
    /// What is looked for: the bits of [`Broken`].
    pub judged: u8,
}

impl Bounds {
    #[must_use]
    pub const fn new(name: &'static str, features: Features) -> Self {
        Self {
            name,
            proxies: 2,
            tokens: 3,
            openings: 2,
            exchanges: 2,
            late: 1,
            lives: 1,
            mortal: 3,
            features,
            mutant: None,
            judged: u8::MAX,
        }
    }

    /// The same under another name, with other things that may happen.
    #[must_use]
    pub const fn named(self, name: &'static str, features: Features) -> Self {
        Self {
            name,
            features,
            ..self
        }
    }

    /// The same with these things that may happen.
    #[must_use]
    pub const fn having(self, features: Features) -> Self {
        Self { features, ..self }
    }

    /// The same with this mistake in it, which must break one of the `judged`.
    #[must_use]
    pub const fn with(self, mutant: Mutant, judged: u8) -> Self {
        Self {
            mutant: Some(mutant),
            judged,
            ..self
        }
    }

    #[must_use]
    pub fn can(&self, features: Features) -> bool {
        self.features.has(features)
    }

    #[must_use]
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Returns whether the store may come back with less than it had acknowledged.
    #[must_use]
    pub fn loses(&self) -> bool {
        self.can(Features::FAILOVER) || self.is(Mutant::LostCommit)
    }
}
