//! The kinds of faults, and the named points at which they strike.

use std::time::Duration;

use self::FaultKind::{CutPath, Kill, LongStop, NoStreams, Partition, Reload, Stall};
use self::FaultPoint::{
    AfterCommit, AnyTime, BeforeCheck, BeforeRelease, BeforeResponseEnd, MidBody, OutOfStreams,
};
use crate::support::path::Weather;

/// A fault of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Its earliest time, in milliseconds since the history began.
    pub at: u64,
    pub case: FaultCase,
    pub proxy: usize,
    /// Its duration.
    pub lasts: Duration,
    /// The weather on the proxy's path to the upstream, from the point on.
    pub weather: Weather,
    /// The path is clear again so long after the point.
    pub clears: Duration,
}

/// Something that can break, where, and behind which path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCase {
    pub kind: FaultKind,
    pub point: FaultPoint,
    pub sky: Sky,
}

/// The state of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sky {
    Clear,
    /// Nothing arrives.
    Stalled,
    /// A little arrives at a time.
    Trickles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Returns whether a request may be stuck on its way when this fault strikes.
    pub fn bytes_come_late(&self) -> bool {
        self.case.sky != Sky::Clear || self.case.point == OutOfStreams
    }
}

impl FaultCase {
    /// Each of these kinds at each of these points.
    pub fn all(kinds: &[FaultKind], points: &[FaultPoint], sky: Sky) -> Vec<Self> {
        let at_all = |&kind| points.iter().map(move |&point| Self { kind, point, sky });
        kinds.iter().flat_map(at_all).collect()
    }

    /// All that the path to the upstream has a part in.
    pub fn of_the_path() -> Vec<Self> {
        let anywhere = [AfterCommit, MidBody, BeforeResponseEnd, AnyTime];
        [
            Self::all(
                &[Kill, LongStop, Partition],
                &[AfterCommit, MidBody, AnyTime],
                Sky::Stalled,
            ),
            Self::all(&[Stall], &anywhere, Sky::Stalled),
            Self::all(&[CutPath], &anywhere, Sky::Clear),
            // Not a proxy that is stopped: its kernel goes on, and nobody can end that.
            Self::all(&[Kill, Partition, Stall], &[MidBody], Sky::Trickles),
            Self::all(&[NoStreams, Reload, Partition], &[OutOfStreams], Sky::Clear),
            Self::all(&[Reload], &[MidBody], Sky::Clear),
        ]
        .concat()
    }

    /// Returns whether it needs none of these tools.
    pub fn is_possible(self, without: &[&str]) -> bool {
        let tool = match self.kind {
            FaultKind::Jump => "faketime",
            FaultKind::DieAtSync => "strace",
            _ if self.sky != Sky::Clear => "socket-filters",
            _ => return true,
        };
        !without.contains(&tool)
    }

    /// The names under which it is counted if it finds its point.
    pub fn names(self) -> [String; 3] {
        let Self { kind, point, sky } = self;
        let fault = format!("{kind:?}, path {sky:?}");
        [
            format!("fault: {fault}"),
            format!("point: {point:?}"),
            format!("fault and point: {fault}, {point:?}"),
        ]
    }
}

impl FaultPoint {
    pub const ALL: [Self; 7] = [
        BeforeCheck,
        AfterCommit,
        MidBody,
        BeforeResponseEnd,
        BeforeRelease,
        OutOfStreams,
        AnyTime,
    ];
}
