//! The plan of one history, made wholly from its seed: what each client asks for and how it behaves, how
//! the upstream treats each request, and what breaks when. A run adds only the machine's own timing.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// Clients of a history, besides the ones that a fault brings along.
pub const CLIENTS: usize = 8;
/// `body.buffer` of every proxy: larger bodies are streamed.
pub const BUFFER: usize = 4 << 10;
/// `body.max` of every proxy.
pub const BODY_MAX: usize = 1 << 20;
/// A body that is streamed.
const LARGE: usize = 192 << 10;
/// A response that no socket buffers on its way hold.
const HUGE: usize = 24 << 20;
/// Clients act for so long.
const SPAN: u64 = 3_000;
/// The token before the first.
const FLOOR: u64 = 10;

/// All of one history.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub ground: Ground,
    /// The proxies run under a library that makes their wall clock jump.
    pub jumps: bool,
    /// The first proxy dies at this sync of its file's disk (`SQLite`).
    pub dies_at_sync: Option<u32>,
    pub resources: usize,
    pub clients: Vec<Vec<Ask>>,
    pub faults: Vec<Fault>,
}

/// What the proxies stand on.
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

/// One request of a client.
#[derive(Clone, Debug)]
pub struct Ask {
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

const POINTS: [Point; 7] = [
    Point::BeforeCheck,
    Point::AfterCommit,
    Point::BeforeFirstByte,
    Point::MidBody,
    Point::BeforeResponseEnd,
    Point::BeforeRelease,
    Point::AnyTime,
];

/// Points that are seen from outside of the store.
const OUTER: [Point; 5] = [
    Point::BeforeCheck,
    Point::MidBody,
    Point::BeforeResponseEnd,
    Point::BeforeRelease,
    Point::AnyTime,
];

impl Plan {
    /// The plan of this seed. Consecutive seeds go through every kind of fault at every point.
    pub fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let turn = seed / 5;
        let mut plan = Self {
            seed,
            ground: Ground::Sqlite,
            jumps: false,
            dies_at_sync: None,
            resources: random.random_range(2..=3),
            clients: Vec::new(),
            faults: Vec::new(),
        };
        match seed % 5 {
            0 | 1 => plan.sqlite_faults(turn * 2 + seed % 5, &mut random),
            2 => plan.postgres_faults(1, turn, &mut random),
            more => plan.postgres_faults(2, turn * 2 + more, &mut random),
        }
        plan.lesser_fault(&mut random);
        plan.clients(&mut random);
        plan
    }

    fn sqlite_faults(&mut self, turn: u64, random: &mut StdRng) {
        let mut menu: Vec<(Kind, Point)> = Vec::new();
        for kind in [Kind::Kill, Kind::Stop] {
            menu.extend(OUTER.iter().map(|point| (kind, *point)));
        }
        menu.push((Kind::DieAtSync, Point::AfterCommit));
        let first = pick(&menu, turn);
        if first.0 == Kind::DieAtSync {
            self.dies_at_sync = Some(random.random_range(18..45));
        }
        self.fault(first, 500..900, random);
        // Who is traced does not stop as others do.
        let kills = self.dies_at_sync.map_or(menu.len() - 1, |_| OUTER.len());
        let second = menu[random.random_range(0..kills)];
        self.fault(second, 1600..2200, random);
    }

    fn postgres_faults(&mut self, proxies: usize, turn: u64, random: &mut StdRng) {
        let mut menu: Vec<(Kind, Point)> = Vec::new();
        for kind in [Kind::Kill, Kind::LongStop, Kind::Terminate, Kind::Stop] {
            menu.extend(POINTS.iter().map(|point| (kind, *point)));
        }
        for point in [
            Point::BeforeCheck,
            Point::AfterCommit,
            Point::BeforeFirstByte,
        ] {
            menu.extend([(Kind::Cut, point); 2]);
        }
        menu.extend([
            (Kind::Partition, Point::AnyTime),
            (Kind::Partition, Point::MidBody),
        ]);
        // Servers of one's own are dear: one history in six.
        let own = turn % 6 == 5;
        self.ground = Ground::Postgres { proxies, own };
        let first = if own {
            (Kind::KillPostgres, pick(&POINTS, turn / 6))
        } else {
            pick(&menu, turn)
        };
        self.fault(first, 500..900, random);
        let second = menu[random.random_range(0..menu.len())];
        self.fault(second, 1600..2200, random);
    }

    /// Something that only makes life harder.
    fn lesser_fault(&mut self, random: &mut StdRng) {
        let mut menu = vec![Kind::UpstreamDown, Kind::Jump];
        if self.ground != Ground::Sqlite {
            menu.extend([Kind::SlowDisk, Kind::Deaf, Kind::SlowDisk]);
        }
        let kind = *menu.choose(random).expect("it is not empty");
        self.jumps = kind == Kind::Jump && self.dies_at_sync.is_none();
        if kind != Kind::Jump || self.jumps {
            self.fault((kind, Point::AnyTime), 200..1500, random);
        }
    }

    fn fault(
        &mut self,
        (kind, point): (Kind, Point),
        when: std::ops::Range<u64>,
        random: &mut StdRng,
    ) {
        let lasts = match kind {
            Kind::Stop => 100..500,
            // Longer than the lease, and now and then than the lease and `settle`.
            Kind::LongStop if random.random_range(0..3) == 0 => 5_600..6_400,
            Kind::LongStop => 1_400..3_000,
            Kind::Partition => 300..2_000,
            Kind::SlowDisk | Kind::Deaf => 500..1500,
            Kind::UpstreamDown => 100..300,
            _ => 0..300,
        };
        self.faults.push(Fault {
            at: millis(random.random_range(when)),
            point,
            kind,
            proxy: random.random_range(0..self.ground.proxies()),
            lasts: millis(random.random_range(lasts)),
        });
    }

    /// Every client's requests, in time order over all of them, so that tokens rise as a lock service's do.
    fn clients(&mut self, random: &mut StdRng) {
        let mut newest = vec![FLOOR; self.resources];
        let mut moments: Vec<(u64, usize)> = Vec::new();
        for client in 0..CLIENTS {
            let mut at = random.random_range(0..200);
            while at < SPAN {
                moments.push((at, client));
                at += random.random_range(60..420);
            }
        }
        self.clients = vec![Vec::new(); CLIENTS];
        for fault in self.faults.clone() {
            for (lead, client) in [(0, self.clients.len()), (60, self.clients.len() + 1)] {
                if bait(fault.point).is_some() {
                    let at = u64::try_from(fault.at.as_millis()).unwrap_or(0) + lead;
                    moments.push((at, client));
                    self.clients.push(Vec::new());
                }
            }
        }
        moments.sort_unstable();
        for (at, client) in moments {
            let lure = (client >= CLIENTS).then(|| (client - CLIENTS) / 2);
            let ask = match lure.and_then(|nth| self.baited().nth(nth)) {
                Some(fault) => self.lure(&fault, at, &mut newest, random),
                None => self.ask(at, &mut newest, random),
            };
            self.clients[client].push(ask);
        }
    }

    /// The faults that wait for a request of their own.
    fn baited(&self) -> impl Iterator<Item = Fault> {
        let faults = self.faults.clone().into_iter();
        faults.filter(|fault| bait(fault.point).is_some())
    }

    /// A request that brings the fault's point about.
    fn lure(&self, fault: &Fault, at: u64, newest: &mut [u64], random: &mut StdRng) -> Ask {
        let resource = random.random_range(0..self.resources);
        newest[resource] += 1;
        let mut ask = Ask {
            at: millis(at),
            proxy: fault.proxy,
            resource,
            token: Shown::Token(newest[resource]),
            form: Form::Put,
            size: 64,
            chunked: random.random(),
            conduct: Conduct::Plain,
            work: Work::QUICK,
            retries: 3,
        };
        // For as long as it takes others to find its caller dead, and longer.
        let dies = matches!(fault.kind, Kind::Kill | Kind::LongStop | Kind::Partition);
        let at_work = matches!(fault.point, Point::MidBody | Point::BeforeResponseEnd);
        let work_on = if dies && at_work { 2_200 } else { 0 };
        if work_on > 0 {
            ask.retries = 0;
        }
        match bait(fault.point) {
            Some(Bait::Body(size)) => {
                (ask.size, ask.conduct) = (size, Conduct::BodyStall(400));
                ask.work.before = work_on;
            }
            Some(Bait::Response) => {
                (ask.work.pieces, ask.work.between) = (2, work_on.max(300));
            }
            Some(Bait::Unread) => {
                (ask.work.pieces, ask.work.piece) = (2, HUGE / 2);
                ask.conduct = Conduct::ReadStall(400);
            }
            None => {}
        }
        ask
    }

    fn ask(&self, at: u64, newest: &mut [u64], random: &mut StdRng) -> Ask {
        // One resource is hot.
        let resource = random.random_range(0..self.resources + 1) % self.resources;
        let newest = &mut newest[resource];
        let token = match random.random_range(0..100) {
            0..45 => *newest,
            45..62 => *newest + random.random_range(1..=2),
            62..80 => *newest - random.random_range(1..=4),
            _ => random.random_range(*newest - 4..=*newest + 2),
        };
        *newest = token.max(*newest);
        let mut ask = Ask {
            at: millis(at),
            proxy: random.random_range(0..self.ground.proxies()),
            resource,
            token: Shown::Token(token),
            form: [
                Form::Put,
                Form::Put,
                Form::Post,
                Form::Post,
                Form::Delete,
                Form::Get,
            ][random.random_range(0..6)],
            size: 0,
            chunked: random.random(),
            conduct: Conduct::Plain,
            work: work(random),
            retries: random.random_range(0..3),
        };
        if matches!(ask.form, Form::Put | Form::Post) {
            ask.size = [0, 40, 2_000, LARGE][random.random_range(0..4)];
        }
        match random.random_range(0..100) {
            0..6 => ask.form = Form::Claim,
            6..9 => (ask.form, ask.token) = (Form::Get, Shown::None),
            9..11 => ask.token = Shown::None,
            11..13 => {
                ask.token = Shown::Malformed(["-3", "0x1f", "1, 2"][random.random_range(0..3)])
            }
            13 => ask.form = Form::Ambiguous,
            14 => ask.form = Form::NoRoute,
            15 => ask.form = Form::WrongMethod,
            16 => ask.form = Form::TooLarge,
            _ => ask.conduct = conduct(random),
        }
        let fenced = matches!(ask.form, Form::Put | Form::Post | Form::Delete | Form::Get);
        if !fenced || ask.form == Form::Delete {
            ask.size = 0;
        }
        if ask.form == Form::Get {
            ask.size = 0;
        }
        ask
    }
}

/// What has to be on its way for a point to be passed.
enum Bait {
    /// A body of this size, whose client pauses in the middle of it.
    Body(usize),
    /// A response in two pieces.
    Response,
    /// A response that nobody reads.
    Unread,
}

fn bait(point: Point) -> Option<Bait> {
    match point {
        Point::BeforeCheck => Some(Bait::Body(BUFFER / 2)),
        Point::MidBody => Some(Bait::Body(LARGE)),
        Point::BeforeResponseEnd => Some(Bait::Response),
        Point::BeforeRelease => Some(Bait::Unread),
        Point::AfterCommit | Point::BeforeFirstByte => Some(Bait::Body(0)),
        Point::AnyTime => None,
    }
}

fn work(random: &mut StdRng) -> Work {
    let mut work = Work::QUICK;
    match random.random_range(0..100) {
        0..35 => {}
        35..70 => work.before = random.random_range(1..60),
        70..80 => work.before = random.random_range(60..300),
        // Longer than `upstream.timeout`.
        80..85 => work.before = random.random_range(400..600),
        85..90 => (work.pieces, work.between) = (3, random.random_range(10..100)),
        90..93 => (work.pieces, work.between) = (2, random.random_range(200..500)),
        93..95 => work.slow_read = random.random_range(50..250),
        95..97 => (work.ending, work.pieces) = (Ending::Reset, random.random_range(1..3)),
        97..99 => work.ending = Ending::Early,
        _ => work.ending = Ending::Fail,
    }
    work
}

fn conduct(random: &mut StdRng) -> Conduct {
    let pause = random.random_range(50..600);
    match random.random_range(0..100) {
        0..4 => Conduct::HeadStall(pause),
        4..7 => Conduct::HeadKill,
        7..12 => Conduct::BodyStall(pause),
        12..16 => Conduct::BodyKill,
        16..23 => Conduct::Leave(pause / 4),
        23..26 => Conduct::ReadStall(pause),
        26..30 => Conduct::ReadKill,
        _ => Conduct::Plain,
    }
}

fn pick<T: Copy>(menu: &[T], turn: u64) -> T {
    let turn = usize::try_from(turn).unwrap_or(0);
    menu[turn % menu.len()]
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
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
    pub const ALL: [Self; 7] = POINTS;

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
