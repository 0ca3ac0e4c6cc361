//! The plan of one history, made wholly from its seed: what each client asks for and how it
//! behaves, how the upstream treats each request, and what breaks when. A run adds only the
//! machine's own timing.

mod asks;

use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::fault::FaultKind::{
    Cut, Deaf, Delay, DieAtSync, Jump, Kill, KillPostgres, LongStop, Partition, SlowDisk, Stall,
    Stop, Terminate, UpstreamDown,
};
use super::fault::FaultPoint::{AfterCommit, AnyTime, BeforeCheck, MidBody, OutOfStreams};
use super::fault::{Fault, FaultCase, FaultKind, FaultPoint, Sky};
use crate::support::path::Weather;

/// `body.buffer` of every proxy: larger bodies are streamed.
pub const BUFFER: usize = 4 << 10;
/// `body.max` of every proxy.
pub const BODY_MAX: usize = 1 << 20;
/// Clients act for so long, in milliseconds.
const SPAN: u64 = 3_000;

/// All of one history.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Clients act for so long, in milliseconds.
    pub span: u64,
    pub ground: Ground,
    pub proxies: usize,
    pub transport: Transport,
    /// The sync of its file's disk at which the first proxy dies, if it does.
    pub dies_at_sync: u32,
    /// That every client asks for.
    pub resources: usize,
    pub clients: Vec<Vec<PlannedRequest>>,
    pub faults: Vec<Fault>,
}

/// The store of the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Sqlite,
    /// A Postgres that serves other histories too.
    Common,
    /// A Postgres that no other history uses at the time, since it is killed.
    Own,
}

/// The upstream's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http1,
    /// With so many streams at once, on one connection. After so many requests it says goodbye on a
    /// connection, in this way.
    Http2(u32, Option<(u32, Goodbye)>),
}

/// An end of a connection over HTTP/2, by the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// Requests that it has taken are answered.
    Graceful,
    /// At once, with a GOAWAY that names the last stream that it has taken.
    Abrupt,
}

/// One request of a client, and its handling by the upstream. Times in milliseconds; those of the
/// upstream are in sum far below `settle`.
#[derive(Clone, Copy, Debug)]
pub struct PlannedRequest {
    /// Not before, since the history began.
    pub at: u64,
    pub proxy: usize,
    pub resource: usize,
    pub token: Option<u64>,
    pub form: Form,
    /// Of the body.
    pub size: usize,
    pub chunked: bool,
    pub conduct: Conduct,
    /// Sent again so often, with the same token, when it was refused for now or broke.
    pub retries: u32,
    /// Before the upstream reads the body.
    pub slow_read: u64,
    /// Before the effect.
    pub before: u64,
    /// Between the pieces of the response.
    pub between: u64,
    pub pieces: usize,
    /// Bytes of a piece.
    pub piece: usize,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By this method, with the token that it shows, or none.
    Plain(&'static str),
    Claim,
    /// By this method, with this in the token's place.
    Malformed(&'static str, &'static str),
    /// By this method, to this path: one that no route has, that two servers may read in two ways,
    /// or whose route does not take the method.
    Misdirected(&'static str, &'static str),
    TooLarge,
}

/// The behaviour of a client. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    Plain,
    /// Stops in the middle of this, and goes on.
    Pause(Part, u64),
    /// Is killed in the middle of this.
    Die(Part),
    /// Leaves so long after all was sent.
    Leave(u64),
    /// Sends its body in drops, for longer than others wait for anything.
    Drip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Head,
    Body,
    Response,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Answer,
    /// 500.
    Fail,
    /// The whole answer before the body is read.
    Early,
    /// A reset in place of the last piece.
    Reset,
}

impl PlannedRequest {
    /// A small write that passes quickly.
    pub fn put(at: u64, proxy: usize, resource: usize, token: u64) -> Self {
        Self {
            at,
            proxy,
            resource,
            token: Some(token),
            form: Form::Plain("PUT"),
            size: 0,
            chunked: false,
            conduct: Conduct::Plain,
            retries: 0,
            slow_read: 0,
            before: 0,
            between: 0,
            pieces: 1,
            piece: 16,
            ending: Ending::Answer,
        }
    }
}

impl Plan {
    /// The plan of this seed. Consecutive seeds go through every kind of fault at every point.
    pub fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let turn = seed / 5;
        let mut plan = Self::calm(seed, SPAN, &mut random);
        match seed % 5 {
            0 | 1 => plan.sqlite_faults(turn * 2 + seed % 5, &mut random),
            2 => plan.postgres_faults(1, turn, &mut random),
            more => plan.postgres_faults(2, turn * 2 + more, &mut random),
        }
        plan.lesser_fault(&mut random);
        plan.transport = plan.transport(&mut random);
        plan.clients(&mut random);
        plan
    }

    /// A plan without faults, for two proxies whose servers somebody else disturbs.
    pub fn of_clients(seed: u64, span: Duration) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let span = u64::try_from(span.as_millis()).expect("a short time");
        let mut plan = Self::calm(seed, span, &mut random);
        (plan.ground, plan.proxies) = (Ground::Own, 2);
        plan.clients(&mut random);
        plan
    }

    fn calm(seed: u64, span: u64, random: &mut StdRng) -> Self {
        Self {
            seed,
            span,
            ground: Ground::Sqlite,
            proxies: 1,
            transport: Transport::Http1,
            // More than the first start has, which makes the store: 21, and a heartbeat or two.
            dies_at_sync: random.random_range(25..52),
            resources: random.random_range(2..=3),
            clients: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub fn has(&self, kind: FaultKind) -> bool {
        self.faults.iter().any(|fault| fault.case.kind == kind)
    }

    /// With the one that only faults are about, and the one of requests that take the streams.
    pub fn all_resources(&self) -> usize {
        self.resources + 2
    }

    fn sqlite_faults(&mut self, turn: u64, random: &mut StdRng) {
        let mut outer = FaultPoint::ALL.to_vec();
        outer.retain(|point| !matches!(point, AfterCommit | OutOfStreams));
        let mut light = clear(&[Kill, Stop], &outer);
        let mut of_the_path = FaultCase::of_the_path();
        of_the_path
            .retain(|case| case.point != AfterCommit && !matches!(case.kind, LongStop | Partition));
        let dies = clear(&[DieAtSync], &[AfterCommit]);
        let first = pick(&[&*light, &dies, &of_the_path].concat(), turn);
        self.fault(first, 500..900, random);
        // A proxy that is traced does not stop as others do.
        light.retain(|case| first.kind != DieAtSync || case.kind == Kill);
        self.fault(pick(&light, random.random()), 1600..2200, random);
    }

    fn postgres_faults(&mut self, proxies: usize, turn: u64, random: &mut StdRng) {
        let cuts = clear(&[Cut], &[BeforeCheck, AfterCommit]);
        let menu = [
            clear(&[Kill, LongStop, Terminate, Stop], &FaultPoint::ALL),
            [&*cuts, &cuts, &cuts].concat(),
            clear(&[Partition], &[AnyTime, MidBody]),
        ]
        .concat();
        // Nobody takes over from a proxy that is stopped if it is the only one.
        let mut of_the_path = FaultCase::of_the_path();
        of_the_path.retain(|case| proxies > 1 || case.kind != LongStop);
        self.proxies = proxies;
        self.ground = Ground::Common;
        // Servers of one's own are dear: one history in seven, which takes every place of the menu
        // in turn.
        let first = if turn % 7 == 5 {
            self.ground = Ground::Own;
            pick(&clear(&[KillPostgres], &FaultPoint::ALL), turn / 7)
        } else if turn.is_multiple_of(2) {
            pick(&menu, turn / 2)
        } else {
            pick(&of_the_path, turn / 2)
        };
        self.fault(first, 500..900, random);
        let second = pick(&menu, random.random());
        // Not a proxy that is stopped while its path trickles: nobody can end what it still sends.
        if first.sky != Sky::Trickles || second.kind != LongStop {
            self.fault(second, 1600..2200, random);
        }
    }

    /// Something that only makes life harder.
    fn lesser_fault(&mut self, random: &mut StdRng) {
        let mut menu = clear(&[UpstreamDown, Jump, Delay], &[AnyTime]);
        if self.ground != Ground::Sqlite {
            menu.extend(clear(&[SlowDisk, Deaf, SlowDisk], &[AnyTime]));
        }
        let lesser = pick(&menu, random.random());
        if lesser.kind != Jump || !self.has(DieAtSync) {
            self.fault(lesser, 200..1500, random);
        }
    }

    fn fault(&mut self, case: FaultCase, when: Range<u64>, random: &mut StdRng) {
        use Weather::{Clear, Dead, Hole, Mute, Shut, Trickle};
        let weathers: &[Weather] = match case.sky {
            Sky::Clear => &[Clear],
            Sky::Trickles => &[Trickle],
            Sky::Stalled if case.kind == Stall => &[Dead, Hole, Mute, Shut, Shut],
            // A small body passes a closed window.
            Sky::Stalled if case.point == MidBody => &[Dead, Hole, Shut, Shut],
            Sky::Stalled => &[Dead, Hole],
        };
        let weather = pick(weathers, random.random());
        // Now and then early, mostly when others have taken over.
        let clears = if one_in(4, random) {
            300..2_500
        } else {
            6_500..8_500
        };
        let lasts = match case.kind {
            Stop => 100..500,
            // When a window opens, the kernel sends at once what it holds. Lost bytes it sends
            // again after twice as long as before, or later.
            LongStop if weather == Shut => 8_800..9_500,
            LongStop if case.sky == Sky::Stalled => 9_000..14_000,
            // Longer than the lease, and now and then than the lease and `settle`: who wakes with
            // the rest of a body in its hands finds that newer tokens have passed.
            LongStop if case.point == MidBody || one_in(4, random) => 6_500..7_500,
            LongStop => 1_400..3_000,
            Partition if case.sky != Sky::Clear => 2_000..9_000,
            Partition => 300..2_000,
            SlowDisk | Deaf | Delay => 500..1500,
            UpstreamDown => 100..300,
            _ => 0..300,
        };
        self.faults.push(Fault {
            at: random.random_range(when),
            case,
            proxy: random.random_range(0..self.proxies),
            lasts: Duration::from_millis(random.random_range(lasts)),
            weather,
            clears: Duration::from_millis(random.random_range(clears)),
        });
    }

    fn transport(&self, random: &mut StdRng) -> Transport {
        let mut faults = self.faults.iter();
        let streams = if faults.any(|fault| fault.case.point == OutOfStreams) {
            pick(&[1, 1, 1, 2], random.random())
        } else if random.random_range(0..100) < 40 {
            pick(&[1, 2, 100, 100], random.random())
        } else {
            return Transport::Http1;
        };
        let way = pick(&[Goodbye::Graceful, Goodbye::Abrupt], random.random());
        // Few requests come over one connection.
        let goodbye = one_in(3, random).then(|| (random.random_range(2..15), way));
        Transport::Http2(streams, goodbye)
    }
}

/// Each of these kinds at each of these points, where the path has no part in it.
fn clear(kinds: &[FaultKind], points: &[FaultPoint]) -> Vec<FaultCase> {
    FaultCase::all(kinds, points, Sky::Clear)
}

fn pick<T: Copy>(menu: &[T], turn: u64) -> T {
    let turn = usize::try_from(turn).unwrap_or(0);
    menu[turn % menu.len()]
}

fn one_in(times: u32, random: &mut StdRng) -> bool {
    random.random_range(0..times) == 0
}
