//! [`Bounds`]: how large a run is, what may happen in it, and which mistake it makes.

#[cfg(doc)]
use crate::state::Broken;

/// What may happen in a run, beside asking, answering, opening, closing, sending and the loss of
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u32);

impl Features {
    pub const NONE: Self = Self(0);
    /// Proxies die without a word, and come back as another instance.
    pub const CRASH: Self = Self(1);
    /// Leases lapse; instances are declared dead, settle and rejoin.
    pub const LEASE: Self = Self(1 << 1);
    /// An epoch that can still give permits is opened again, under a fresh number.
    pub const REFRESH: Self = Self(1 << 3);
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
    /// Proxies stop gracefully, in one update: all is over but what is in flight.
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
    /// Epochs end by publication, in any order and as late as may be. Without it an epoch that its
    /// instance does not use leaves the row at once.
    pub const PUBLISH: Self = Self(1 << 13);
    /// An operator deletes the mark, once, where no epoch is open.
    pub const PRUNE: Self = Self(1 << 14);
    /// What a look at the row has read is entered later than it was read. Without it a look is one
    /// step, and comes at once.
    pub const LOOK: Self = Self(1 << 15);
    /// A failover has lost the row of one instance before the first step, and nothing else.
    pub const UNKNOWN: Self = Self(1 << 16);

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A mistake, which the model must find a counterexample for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A request goes to the barrier when its statement is sent, not when it has been answered.
    ForwardBeforeCommit,
    /// Epochs of other instances hold nobody back.
    BarrierPerProcess,
    /// A dead instance is recorded as settled as soon as it is declared dead.
    SettledAtOnce,
    /// A statement ignores the epochs of a dead instance that has not settled.
    DeadIgnored,
    /// A statement removes the epochs of a dead instance that has not settled.
    DeadRemoved,
    /// An instance is recorded as settled whether or not it is dead.
    SettledWithoutLook,
    /// What has settled is on record in a table of its own, beside that of the instances.
    SettledInAnotherTable,
    /// The lease is looked at for the permit, and not again at the socket.
    LeaseOnlyBeforeSend,
    /// Watchers do not wait for the whole of the owner's lease.
    DeclaredTooSoon,
    /// Older epochs are those of the row as it was when the statement began, not as it is under the
    /// lock.
    EpochsOfTheStart,
    /// A statement removes every older epoch of its own instance, used or not.
    KeepsNone,
    /// A statement removes an idle epoch that goes on giving permits.
    NotClosingWhenSent,
    /// A statement removes the epoch of another one that has no answer yet: two of one instance
    /// about one resource are on their way at once.
    UnansweredNotKept,
    /// A statement removes epochs that were opened after it was sent.
    RemovesLater,
    /// A statement that opens an epoch again removes the previous one, with permits and all.
    RefreshedNotKept,
    /// A publication leaves out what a statement without an answer opens.
    UnansweredNotPublished,
    /// A publication leaves out an idle epoch that goes on giving permits.
    NotClosingWhenPublished,
    /// A publication is composed outside of the critical section: `left_open` first, and
    /// `closed_below` when it is recorded.
    ComposedInTwoSteps,
    /// The one field of a publication is recorded beside the other of an earlier one.
    FieldsMixed,
    /// `left_open` is cut to a length, and `closed_below` stays.
    LeftOpenCut,
    /// An idle epoch is ceded and goes on giving permits.
    NotClosingWhenCeded,
    /// What a statement without an answer has opened is ceded, since no memory knows it.
    UnansweredCeded,
    /// A look finds epochs lost that were registered after it was sent.
    LookLosesLater,
    /// A look finds epochs lost that are not registered any more.
    LookLosesFormer,
    /// A look without a lease finds epochs lost that are over, since their instance has settled.
    LookLosesSettled,
    /// A look frees epochs that were registered after it was sent.
    LookFreesLater,
    /// A stop publishes everything as over, what is in flight too.
    StopClosesAll,
    /// A request that has waited at the barrier does not look again at what is known here.
    NoSecondLook,
    /// The mark is read in one statement and written in the next.
    SelectThenUpdate,
    /// The answer of a statement that was given up is entered all the same.
    LateAnswerUsed,
    /// The answer of a statement is entered after a rejoin, as an epoch of the new instance.
    EnteredAfterRejoin,
    /// An epoch that was asked to close counts as out of use while requests of it are in flight.
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
    /// A statement of an earlier era than the row's takes effect.
    EraIgnored,
    /// An override does not look at open epochs.
    OverrideWithoutLook,
    /// A mark is deleted without a look at open epochs.
    PruneWithoutLook,
    /// A token is looked at for the permit and marked as spent after the send.
    SpendAfterSend,
    /// A token is given back, no matter who has spent it.
    GiveBackWithoutName,
}

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// 2 or 3.
    pub proxies: usize,
    /// Tokens are 1 to this.
    pub tokens: u8,
    /// How many openings of one instance are in use at once, up to 2. One is in use while a row, a
    /// memory or a statement knows it.
    pub openings: usize,
    /// Exchanges of one proxy at once, up to 2.
    pub exchanges: usize,
    /// Statements of one proxy that were given up and still run at the store, at once.
    pub late: usize,
    /// Publications of one proxy that are on their way at once, up to 2.
    pub publications: usize,
    /// Instances that one proxy may be, one after the other, up to 2.
    pub lives: usize,
    /// How many of the proxies can lose their lease, crash or leave.
    pub mortal: usize,
    pub features: Features,
    pub mutant: Option<Mutant>,
    /// What is looked for: the bits of [`Broken`].
    pub judged: u16,
}

impl Bounds {
    /// Two proxies, and nothing unusual.
    pub const PLAIN: Self = Self {
        proxies: 2,
        tokens: 3,
        openings: 2,
        exchanges: 2,
        late: 1,
        publications: 2,
        lives: 1,
        mortal: 3,
        features: Features::NONE,
        mutant: None,
        judged: u16::MAX,
    };

    /// The same, where these may happen too.
    #[must_use]
    pub const fn and(self, more: Features) -> Self {
        let features = self.features.and(more);
        Self { features, ..self }
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

    pub(crate) fn can(&self, features: Features) -> bool {
        self.features.has(features)
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// What is wrong where this mistake is made, and right elsewhere.
    pub(crate) fn either<T>(&self, mutant: Mutant, wrong: T, right: T) -> T {
        if self.is(mutant) { wrong } else { right }
    }

    /// Returns whether the store may come back with less than it had acknowledged.
    pub(crate) fn loses(&self) -> bool {
        self.fails_over() || self.can(Features::PRUNE)
    }

    /// Returns whether the store may fail over, or come back from a crash with less.
    pub(crate) fn fails_over(&self) -> bool {
        self.can(Features::FAILOVER) || self.is(Mutant::LostCommit)
    }

    /// Returns whether this proxy's epochs end by publication.
    pub(crate) fn publishes(&self, at: usize) -> bool {
        self.can(Features::PUBLISH) && at < self.mortal
    }

    /// Returns whether this run's proxies can be several instances, one after the other.
    pub(crate) fn rejoins(&self) -> bool {
        self.lives > 1 && (self.can(Features::LEASE) || self.can(Features::CRASH))
    }

    /// How many statements of one proxy may wait for their answers at once. All are about one
    /// resource, so one.
    pub(crate) fn lanes(&self) -> usize {
        1 + usize::from(self.is(Mutant::UnansweredNotKept))
    }
}
