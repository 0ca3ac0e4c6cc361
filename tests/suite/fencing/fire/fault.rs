//! The kinds of faults, and the named points at which they strike.

use std::time::Duration;

use crate::support::path::Weather;

/// A fault, its point, and its earliest time.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub at: Duration,
    pub point: FaultPoint,
    pub kind: FaultKind,
    pub proxy: usize,
    /// How long it lasts.
    pub lasts: Duration,
    /// The weather on the proxy's path to the upstream, from the point on.
    pub weather: Weather,
    /// When the path is clear again; since the point.
    pub clears: Duration,
}

/// Something that can break, where, and behind which path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultCase {
    pub kind: FaultKind,
    pub point: FaultPoint,
    pub sky: Sky,
}

/// The state of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sky {
    Clear,
    /// Nothing arrives.
    Stalled,
    /// A little arrives at a time.
    Trickles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultPoint {
    AnyTime,
    /// The proxy has the request, and has not asked the marks.
    BeforeCheck,
    /// The advance has committed, and the proxy does not know.
    AfterCommit,
    /// Half of a streamed body is at the upstream.
    MidBody,
    /// The upstream has sent a part of its response.
    BeforeResponseEnd,
    /// The response is held up by its client, or the end of its epoch by the store.
    BeforeRelease,
    /// A long request has taken the last stream that the upstream allows on its connection.
    OutOfStreams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
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
    /// The path to the upstream stalls, or trickles.
    Stall,
    /// The path delays all that it carries.
    Delay,
    /// The path's connections are cut.
    CutPath,
    /// The upstream has no stream for the next request.
    NoStreams,
    /// The proxy is told to load another configuration, with other connections to the upstream.
    Reload,
}

impl Fault {
    /// In milliseconds.
    pub fn moment(&self) -> u64 {
        u64::try_from(self.at.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether a request may be stuck on its way when this fault strikes.
    pub fn bytes_come_late(&self) -> bool {
        Sky::of(self.weather) != Sky::Clear || self.point == FaultPoint::OutOfStreams
    }

    pub fn case(&self) -> FaultCase {
        FaultCase {
            kind: self.kind,
            point: self.point,
            sky: Sky::of(self.weather),
        }
    }
}

impl FaultCase {
    pub const fn new(kind: FaultKind, point: FaultPoint, sky: Sky) -> Self {
        Self { kind, point, sky }
    }

    /// The fault, in words.
    pub fn name(self) -> String {
        match (self.kind, self.sky) {
            (kind, Sky::Clear) => kind.name().to_owned(),
            (FaultKind::Stall, Sky::Stalled) => "stalled path".to_owned(),
            (FaultKind::Stall, Sky::Trickles) => "path that trickles".to_owned(),
            (kind, Sky::Stalled) => format!("{} behind a stalled path", kind.name()),
            (kind, Sky::Trickles) => format!("{} behind a path that trickles", kind.name()),
        }
    }

    /// All that the path to the upstream has a part in.
    pub fn of_the_path() -> Vec<Self> {
        let mut cases = Vec::new();
        for point in [
            FaultPoint::AfterCommit,
            FaultPoint::MidBody,
            FaultPoint::AnyTime,
        ] {
            for kind in [FaultKind::Kill, FaultKind::LongStop, FaultKind::Partition] {
                cases.push(Self::new(kind, point, Sky::Stalled));
            }
        }
        for point in [
            FaultPoint::AfterCommit,
            FaultPoint::MidBody,
            FaultPoint::BeforeResponseEnd,
            FaultPoint::AnyTime,
        ] {
            cases.push(Self::new(FaultKind::Stall, point, Sky::Stalled));
            cases.push(Self::new(FaultKind::CutPath, point, Sky::Clear));
        }
        // Not a proxy that is stopped: its kernel goes on, and nobody can end that.
        for kind in [FaultKind::Kill, FaultKind::Partition, FaultKind::Stall] {
            cases.push(Self::new(kind, FaultPoint::MidBody, Sky::Trickles));
        }
        for kind in [
            FaultKind::NoStreams,
            FaultKind::Reload,
            FaultKind::Partition,
        ] {
            cases.push(Self::new(kind, FaultPoint::OutOfStreams, Sky::Clear));
        }
        cases.push(Self::new(
            FaultKind::Reload,
            FaultPoint::MidBody,
            Sky::Clear,
        ));
        cases
    }
}

impl Sky {
    pub fn of(weather: Weather) -> Self {
        match weather {
            Weather::Clear => Self::Clear,
            Weather::Trickle => Self::Trickles,
            Weather::Dead | Weather::Hole | Weather::Mute | Weather::Shut => Self::Stalled,
        }
    }
}

impl FaultKind {
    pub const ALL: [Self; 17] = [
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
        Self::Stall,
        Self::Delay,
        Self::CutPath,
        Self::NoStreams,
        Self::Reload,
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
            Self::Stall => "weather",
            Self::Delay => "delayed path",
            Self::CutPath => "cut of the path",
            Self::NoStreams => "no free stream",
            Self::Reload => "reload",
        }
    }
}

impl FaultPoint {
    pub const ALL: [Self; 7] = [
        Self::BeforeCheck,
        Self::AfterCommit,
        Self::MidBody,
        Self::BeforeResponseEnd,
        Self::BeforeRelease,
        Self::OutOfStreams,
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
            Self::MidBody => "in the middle of the body",
            Self::BeforeResponseEnd => "before the response's end",
            Self::BeforeRelease => "before the release",
            Self::OutOfStreams => "with no stream free",
        }
    }
}
