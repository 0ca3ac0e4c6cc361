//! The kinds of faults, and the named points at which they strike.

use std::time::Duration;

/// What breaks, where, and not before when.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub at: Duration,
    pub point: Point,
    pub kind: Kind,
    pub proxy: usize,
    /// How long it lasts.
    pub lasts: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    AnyTime,
    /// The proxy has the request, and has not asked the marks.
    BeforeCheck,
    /// The advance has committed, and the proxy does not know.
    AfterCommit,
    /// The marks are known, nothing is sent.
    BeforeFirstByte,
    /// Half of a streamed body is at the upstream.
    MidBody,
    /// The upstream has sent a part of its response.
    BeforeResponseEnd,
    /// The response is held up by its client, or the epoch's close by the store.
    BeforeRelease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL of a proxy, and another run of it.
    Kill,
    /// SIGSTOP of a proxy for less than a lease.
    Stop,
    /// SIGSTOP of a proxy for longer than its lease.
    LongStop,
    /// SIGKILL of the proxy by its own disk's sync (`SQLite`).
    DieAtSync,
    /// kill -9 of Postgres, and its start.
    KillPostgres,
    /// `pg_terminate_backend` of all connections.
    Terminate,
    /// The proxy's store connection is cut around the COMMIT.
    Cut,
    /// All store connections of a proxy are cut, and no new one comes through for a while.
    Partition,
    /// Every trip to the store takes long.
    SlowDisk,
    /// Notifications are lost.
    Deaf,
    /// The wall clock jumps.
    Jump,
    /// The upstream refuses connections.
    UpstreamDown,
}

impl Fault {
    /// In milliseconds.
    pub fn moment(&self) -> u64 {
        u64::try_from(self.at.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Kind {
    pub const ALL: [Self; 12] = [
        Self::Kill,
        Self::Stop,
        Self::LongStop,
        Self::DieAtSync,
        Self::KillPostgres,
        Self::Terminate,
        Self::Cut,
        Self::Partition,
        Self::SlowDisk,
        Self::Deaf,
        Self::Jump,
        Self::UpstreamDown,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Stop => "SIGSTOP",
            Self::LongStop => "SIGSTOP beyond the lease",
            Self::DieAtSync => "SIGKILL by a sync of the disk",
            Self::KillPostgres => "kill -9 of Postgres",
            Self::Terminate => "pg_terminate_backend",
            Self::Cut => "cut of the connection",
            Self::Partition => "partition from Postgres",
            Self::SlowDisk => "slow disk",
            Self::Deaf => "lost notifications",
            Self::Jump => "clock jump",
            Self::UpstreamDown => "upstream down",
        }
    }
}

impl Point {
    pub const ALL: [Self; 7] = [
        Self::BeforeCheck,
        Self::AfterCommit,
        Self::BeforeFirstByte,
        Self::MidBody,
        Self::BeforeResponseEnd,
        Self::BeforeRelease,
        Self::AnyTime,
    ];

    /// Those that are seen from outside of the store.
    pub const OUTER: [Self; 5] = [
        Self::BeforeCheck,
        Self::MidBody,
        Self::BeforeResponseEnd,
        Self::BeforeRelease,
        Self::AnyTime,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AnyTime => "at any time",
            Self::BeforeCheck => "before the check",
            Self::AfterCommit => "after the commit",
            Self::BeforeFirstByte => "before the first byte",
            Self::MidBody => "in the middle of the body",
            Self::BeforeResponseEnd => "before the response's end",
            Self::BeforeRelease => "before the release",
        }
    }
}
