//! The requests of a history's clients: those that live their lives, and those that a fault brings
//! along.

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::{
    BUFFER, CLIENTS, Conduct, Ending, FLOOR, Fault, FaultKind, FaultPoint, Form, HUGE, LARGE, LONG,
    Plan, PlannedRequest, Shown, Sky, Transport, Work, millis,
};

impl Plan {
    /// Every client's requests, in time order over all of them, so that tokens rise as a lock
    /// service's do.
    pub(super) fn clients(&mut self, random: &mut StdRng) {
        let mut newest = vec![FLOOR; self.all_resources()];
        let mut moments: Vec<(u64, usize)> = Vec::new();
        for client in 0..CLIENTS {
            let mut at = random.random_range(0..200);
            while at < self.span {
                moments.push((at, client));
                at += random.random_range(60..420);
            }
        }
        let mut roles = vec![Role::HistoryClient; CLIENTS];
        for fault in self.faults.clone() {
            let mut enter = |role, lead| {
                moments.push((fault.moment() + lead, roles.len()));
                roles.push(role);
            };
            if bait(fault.point).is_some() {
                let undisturbed = self.at_stake(&fault) >= self.resources;
                enter(Role::Lure(fault), 0);
                enter(Role::Lure(fault), if undisturbed { 1_500 } else { 60 });
            }
            for _ in 0..self.hogs(&fault) {
                enter(Role::Hog(fault), 0);
                enter(Role::Lure(fault), 300);
            }
            let in_vain = fault.kind == FaultKind::LongStop && self.ground.proxies() == 1;
            let late = fault.bytes_come_late();
            if (late || fault.kind == FaultKind::LongStop) && !in_vain {
                enter(Role::Heir(fault), 1_000);
            }
            if late && !in_vain {
                // After all others, so that its token is the newest.
                enter(Role::Heir(fault), self.span);
            }
        }
        self.clients = vec![Vec::new(); roles.len()];
        moments.sort_unstable();
        for (at, client) in moments {
            let ask = match roles[client] {
                Role::HistoryClient => self.ask(at, &mut newest, random),
                Role::Lure(fault) => self.lure(&fault, at, &mut newest, random),
                Role::Heir(fault) => self.heir(&fault, at, &mut newest),
                Role::Hog(fault) => self.hog(&fault, at),
            };
            self.clients[client].push(ask);
        }
    }

    /// A request by way of the other proxy, with a newer token, that is sent until it passes: who
    /// was stopped finds it there when it wakes.
    fn heir(&self, fault: &Fault, at: u64, newest: &mut [u64]) -> PlannedRequest {
        let resource = self.at_stake(fault);
        newest[resource] += 1;
        PlannedRequest {
            at: millis(at),
            proxy: (fault.proxy + 1) % self.ground.proxies(),
            resource,
            token: Shown::Token(newest[resource]),
            form: Form::Put,
            size: 0,
            chunked: false,
            conduct: Conduct::Plain,
            work: Work::QUICK,
            retries: 40,
        }
    }

    /// How many long requests take all streams of a connection, for this fault.
    fn hogs(&self, fault: &Fault) -> u32 {
        match self.transport {
            Transport::Http2 { streams, .. } if fault.point == FaultPoint::OutOfStreams => streams,
            _ => 0,
        }
    }

    /// A request that takes a stream for long: its body comes in drops. It is about a resource of
    /// its own, and no newer token ends it.
    fn hog(&self, fault: &Fault, at: u64) -> PlannedRequest {
        PlannedRequest {
            at: millis(at),
            proxy: fault.proxy,
            resource: self.all_resources() - 1,
            token: Shown::Token(FLOOR),
            form: Form::Put,
            size: 2 * BUFFER,
            chunked: false,
            conduct: Conduct::Drip,
            work: Work::QUICK,
            retries: 0,
        }
    }

    /// The resource that a fault's own requests are about. Where bytes may come late, that is
    /// mostly one that nobody else asks for.
    fn at_stake(&self, fault: &Fault) -> usize {
        let moment = usize::try_from(fault.moment()).unwrap_or(0);
        if fault.bytes_come_late() && !moment.is_multiple_of(3) {
            return self.resources;
        }
        moment % self.resources
    }

    /// A request that brings the fault's point about.
    fn lure(
        &self,
        fault: &Fault,
        at: u64,
        newest: &mut [u64],
        random: &mut StdRng,
    ) -> PlannedRequest {
        let resource = self.at_stake(fault);
        newest[resource] += 1;
        let mut ask = PlannedRequest {
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
        let dies = matches!(
            fault.kind,
            FaultKind::Kill | FaultKind::LongStop | FaultKind::Partition
        );
        let at_work = matches!(
            fault.point,
            FaultPoint::MidBody | FaultPoint::BeforeResponseEnd
        );
        let work_on = if dies && at_work { 2_200 } else { 0 };
        match bait(fault.point) {
            Some(Bait::Body(size)) => {
                let trickles = size == LARGE && Sky::of(fault.weather) == Sky::Trickles;
                ask.size = if trickles { LONG } else { size };
                ask.conduct = Conduct::BodyStall(400);
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

    fn ask(&self, at: u64, newest: &mut [u64], random: &mut StdRng) -> PlannedRequest {
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
        let mut ask = PlannedRequest {
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
                ask.token = Shown::Malformed(["-3", "0x1f", "1, 2"][random.random_range(0..3)]);
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

/// Why a client is there.
#[derive(Clone, Copy)]
enum Role {
    /// To live its life.
    HistoryClient,
    /// To bring a fault's point about.
    Lure(Fault),
    /// To take over what a fault's victim was at.
    Heir(Fault),
    /// To take a stream and keep it.
    Hog(Fault),
}

/// The request that has to be on its way for a point to be passed.
enum Bait {
    /// A body of this size, whose client pauses in the middle of it.
    Body(usize),
    /// A response in two pieces.
    Response,
    /// A response that nobody reads.
    Unread,
}

fn bait(point: FaultPoint) -> Option<Bait> {
    match point {
        FaultPoint::BeforeCheck => Some(Bait::Body(BUFFER / 2)),
        FaultPoint::MidBody => Some(Bait::Body(LARGE)),
        FaultPoint::BeforeResponseEnd => Some(Bait::Response),
        FaultPoint::BeforeRelease => Some(Bait::Unread),
        FaultPoint::AfterCommit => Some(Bait::Body(0)),
        FaultPoint::AnyTime | FaultPoint::OutOfStreams => None,
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
