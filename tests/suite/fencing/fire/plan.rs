//! The plan of one history, made wholly from its seed: what each client asks for and how it
//! behaves, how the upstream treats each request, and what breaks when. A run adds only the
//! machine's own timing.

mod asks;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

pub use super::fault::{Fault, FaultCase, FaultKind, FaultPoint, Sky};
use crate::support::path::Weather;

/// Clients of a history, besides the ones that a fault brings along.
pub const CLIENTS: usize = 8;
/// `body.buffer` of every proxy: larger bodies are streamed.
pub const BUFFER: usize = 4 << 10;
/// `body.max` of every proxy.
pub const BODY_MAX: usize = 1 << 20;
/// A body that is streamed.
const LARGE: usize = 192 << 10;
/// A body that trickles for longer than others wait for its sender's death.
const LONG: usize = 448 << 10;
/// A response that no socket buffers on its way hold.
const HUGE: usize = 24 << 20;
/// Clients act for so long, in milliseconds.
const SPAN: u64 = 3_000;
/// The token before the first.
const FLOOR: u64 = 10;

/// All of one history.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Clients act for so long, in milliseconds.
    pub span: u64,
    pub ground: Ground,
    pub transport: Transport,
    /// The proxies run under a library that makes their wall clock jump.
    pub jumps: bool,
    /// The first proxy dies at this sync of its file's disk (`SQLite`).
    pub dies_at_sync: Option<u32>,
    /// That every client asks for.
    pub resources: usize,
    pub clients: Vec<Vec<PlannedRequest>>,
    pub faults: Vec<Fault>,
}

/// The store of the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Sqlite,
    /// `own`: a server that no other history uses at the time, since it is killed.
    Postgres {
        proxies: usize,
        own: bool,
    },
}

impl Ground {
    pub fn proxies(self) -> usize {
        match self {
            Self::Sqlite => 1,
            Self::Postgres { proxies, .. } => proxies,
        }
    }
}

/// The upstream's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http1,
    Http2 {
        /// At once, on one connection.
        streams: u32,
        /// After this many requests it says goodbye on a connection, in this way.
        goodbye: Option<(u32, Goodbye)>,
    },
}

/// How an upstream ends a connection over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// Requests that it has taken are answered.
    Graceful,
    /// At once, with a GOAWAY that names the last stream that it has taken.
    Abrupt,
}

/// One request of a client.
#[derive(Clone, Debug)]
pub struct PlannedRequest {
    /// Not before; since the history began.
    pub at: Duration,
    pub proxy: usize,
    pub resource: usize,
    pub token: Shown,
    pub form: Form,
    /// Of the body.
    pub size: usize,
    pub chunked: bool,
    pub conduct: Conduct,
    pub work: Work,
    /// Sent again so often, with the same token, when it was refused for now or broke.
    pub retries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Token(u64),
    None,
    Malformed(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Put,
    Post,
    Delete,
    /// With the token that it shows, or none.
    Get,
    Claim,
    /// A path that two servers may read in two ways.
    Ambiguous,
    NoRoute,
    /// A method that the route does not take.
    WrongMethod,
    TooLarge,
}

/// How a client behaves. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    Plain,
    HeadStall(u64),
    HeadKill,
    BodyStall(u64),
    BodyKill,
    /// Leaves so long after all was sent.
    Leave(u64),
    /// Stops reading in the middle of the response, and reads on.
    ReadStall(u64),
    ReadKill,
    /// Sends its body in drops, for longer than others wait for anything.
    Drip,
}

/// How the upstream treats a request. Times in milliseconds; in sum far below `settle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Before it reads the body.
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
pub enum Ending {
    Answer,
    /// 500.
    Fail,
    /// The whole answer before the body is read.
    Early,
    /// A reset in place of the last piece.
    Reset,
}

impl Work {
    pub const QUICK: Self = Self {
        slow_read: 0,
        before: 0,
        between: 0,
        pieces: 1,
        piece: 16,
        ending: Ending::Answer,
    };
}

impl Plan {
    /// With the one that only faults are about, and the one of requests that take the streams.
    pub fn all_resources(&self) -> usize {
        self.resources + 2
    }

    /// The plan of this seed. Consecutive seeds go through every kind of fault at every point.
    pub fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let turn = seed / 5;
        let mut plan = Self::calm(seed, &mut random);
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
        let mut plan = Self::calm(seed, &mut random);
        plan.span = u64::try_from(span.as_millis()).expect("a short time");
        plan.ground = Ground::Postgres {
            proxies: 2,
            own: true,
        };
        plan.clients(&mut random);
        plan
    }

    fn calm(seed: u64, random: &mut StdRng) -> Self {
        Self {
            seed,
            span: SPAN,
            ground: Ground::Sqlite,
            transport: Transport::Http1,
            jumps: false,
            dies_at_sync: None,
            resources: random.random_range(2..=3),
            clients: Vec::new(),
            faults: Vec::new(),
        }
    }

    fn sqlite_faults(&mut self, turn: u64, random: &mut StdRng) {
        let mut menu: Vec<FaultCase> = Vec::new();
        for kind in [FaultKind::Kill, FaultKind::Stop] {
            menu.extend(FaultPoint::OUTER.iter().map(|point| clear(kind, *point)));
        }
        // Those that may come second. A proxy that is traced does not stop as others do.
        let (light, kills) = (menu.len(), FaultPoint::OUTER.len());
        menu.push(clear(FaultKind::DieAtSync, FaultPoint::AfterCommit));
        let outer = |case: &FaultCase| case.point != FaultPoint::AfterCommit;
        let of_one =
            |case: &FaultCase| !matches!(case.kind, FaultKind::LongStop | FaultKind::Partition);
        let of_the_path = FaultCase::of_the_path().into_iter();
        menu.extend(of_the_path.filter(outer).filter(of_one));
        let first = pick(&menu, turn);
        if first.kind == FaultKind::DieAtSync {
            // More than the first start has, which makes the store: 21, and a heartbeat or two.
            self.dies_at_sync = Some(random.random_range(25..52));
        }
        self.fault(first, 500..900, random);
        let light = self.dies_at_sync.map_or(light, |_| kills);
        let second = menu[random.random_range(0..light)];
        self.fault(second, 1600..2200, random);
    }

    fn postgres_faults(&mut self, proxies: usize, turn: u64, random: &mut StdRng) {
        let mut menu: Vec<FaultCase> = Vec::new();
        for kind in [
            FaultKind::Kill,
            FaultKind::LongStop,
            FaultKind::Terminate,
            FaultKind::Stop,
        ] {
            menu.extend(FaultPoint::ALL.iter().map(|point| clear(kind, *point)));
        }
        for point in [FaultPoint::BeforeCheck, FaultPoint::AfterCommit] {
            menu.extend([clear(FaultKind::Cut, point); 3]);
        }
        menu.extend([
            clear(FaultKind::Partition, FaultPoint::AnyTime),
            clear(FaultKind::Partition, FaultPoint::MidBody),
        ]);
        // Where a proxy is the only one, nobody takes over when it is stopped.
        let of_the_path = FaultCase::of_the_path().into_iter();
        let of_the_path: Vec<FaultCase> = of_the_path
            .filter(|case| proxies > 1 || case.kind != FaultKind::LongStop)
            .collect();
        // Servers of one's own are dear: one history in seven, which takes every place of the menu
        // in turn.
        let own = turn % 7 == 5;
        self.ground = Ground::Postgres { proxies, own };
        let first = if own {
            clear(FaultKind::KillPostgres, pick(&FaultPoint::ALL, turn / 7))
        } else if turn.is_multiple_of(2) {
            pick(&menu, turn / 2)
        } else {
            pick(&of_the_path, turn / 2)
        };
        self.fault(first, 500..900, random);
        let second = menu[random.random_range(0..menu.len())];
        // Not a proxy that is stopped while its path trickles: nobody can end what it still sends.
        if first.sky != Sky::Trickles || second.kind != FaultKind::LongStop {
            self.fault(second, 1600..2200, random);
        }
    }

    /// Something that only makes life harder.
    fn lesser_fault(&mut self, random: &mut StdRng) {
        let mut menu = vec![FaultKind::UpstreamDown, FaultKind::Jump, FaultKind::Delay];
        if self.ground != Ground::Sqlite {
            menu.extend([FaultKind::SlowDisk, FaultKind::Deaf, FaultKind::SlowDisk]);
        }
        let kind = *menu.choose(random).expect("it is not empty");
        self.jumps = kind == FaultKind::Jump && self.dies_at_sync.is_none();
        if kind != FaultKind::Jump || self.jumps {
            self.fault(clear(kind, FaultPoint::AnyTime), 200..1500, random);
        }
    }

    fn fault(&mut self, case: FaultCase, when: std::ops::Range<u64>, random: &mut StdRng) {
        let FaultCase { kind, point, sky } = case;
        let weather = match sky {
            Sky::Clear => Weather::Clear,
            Sky::Trickles => Weather::Trickle,
            Sky::Stalled if kind == FaultKind::Stall => *[
                Weather::Dead,
                Weather::Hole,
                Weather::Mute,
                Weather::Shut,
                Weather::Shut,
            ]
            .choose(random)
            .expect("it is not empty"),
            // A small body passes a closed window.
            Sky::Stalled if point == FaultPoint::MidBody && random.random() => Weather::Shut,
            Sky::Stalled => *[Weather::Dead, Weather::Hole]
                .choose(random)
                .expect("it is not empty"),
        };
        // Now and then early, mostly when others have taken over.
        let clears = if random.random_range(0..4) == 0 {
            300..2_500
        } else {
            6_500..8_500
        };
        let lasts = match kind {
            FaultKind::Stop => 100..500,
            // When a window opens, the kernel sends at once what it holds. Lost bytes it sends
            // again after twice as long as before, or later.
            FaultKind::LongStop if weather == Weather::Shut => 8_800..9_500,
            FaultKind::LongStop if sky == Sky::Stalled => 9_000..14_000,
            // Longer than the lease, and now and then than the lease and `settle`: who wakes with
            // the rest of a body in its hands finds that newer tokens have passed.
            FaultKind::LongStop
                if point == FaultPoint::MidBody || random.random_range(0..4) == 0 =>
            {
                6_500..7_500
            }
            FaultKind::LongStop => 1_400..3_000,
            FaultKind::Partition if sky != Sky::Clear => 2_000..9_000,
            FaultKind::Partition => 300..2_000,
            FaultKind::SlowDisk | FaultKind::Deaf | FaultKind::Delay => 500..1500,
            FaultKind::UpstreamDown => 100..300,
            _ => 0..300,
        };
        self.faults.push(Fault {
            at: millis(random.random_range(when)),
            point,
            kind,
            proxy: random.random_range(0..self.ground.proxies()),
            lasts: millis(random.random_range(lasts)),
            weather,
            clears: millis(random.random_range(clears)),
        });
    }

    fn transport(&self, random: &mut StdRng) -> Transport {
        let runs_out = |fault: &Fault| fault.point == FaultPoint::OutOfStreams;
        let streams = if self.faults.iter().any(runs_out) {
            random.random_range(1..=2)
        } else if random.random_range(0..100) < 40 {
            [1, 2, 100, 100][random.random_range(0..4)]
        } else {
            return Transport::Http1;
        };
        let ways = [Goodbye::Graceful, Goodbye::Graceful, Goodbye::Abrupt];
        let goodbye = (random.random_range(0..3) == 0)
            .then(|| (random.random_range(5..40), ways[random.random_range(0..3)]));
        Transport::Http2 { streams, goodbye }
    }
}

const fn clear(kind: FaultKind, point: FaultPoint) -> FaultCase {
    FaultCase::new(kind, point, Sky::Clear)
}

fn pick<T: Copy>(menu: &[T], turn: u64) -> T {
    let turn = usize::try_from(turn).unwrap_or(0);
    menu[turn % menu.len()]
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
