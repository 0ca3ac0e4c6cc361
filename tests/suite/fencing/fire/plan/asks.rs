//! The requests of a history's clients: those that live their lives, and those that a fault brings
//! along.

use std::iter::repeat_n;

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::{
    BUFFER, Conduct, Ending, Fault, FaultPoint, Form, Kill, LongStop, Part, Partition, Plan,
    PlannedRequest, Sky, Transport, pick,
};

/// Clients of a history, besides the ones that a fault brings along.
const CLIENTS: usize = 8;
/// A body that is streamed.
const LARGE: usize = 192 << 10;
/// A body that trickles for longer than others wait for its sender's death.
const LONG: usize = 448 << 10;
/// A response that no socket buffers on its way hold.
const HUGE: usize = 24 << 20;
/// The token before the first.
const FLOOR: u64 = 10;

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
            for (role, after) in self.brought_along(fault) {
                moments.push((fault.at + after, roles.len()));
                roles.push(role);
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

    /// The clients that this fault needs, and when each acts, in milliseconds after it.
    fn brought_along(&self, fault: Fault) -> Vec<(Role, u64)> {
        let mut along = Vec::new();
        let point = fault.case.point;
        if !matches!(point, FaultPoint::AnyTime | FaultPoint::OutOfStreams) {
            let undisturbed = self.at_stake(&fault) >= self.resources;
            let second = if undisturbed { 1_500 } else { 60 };
            along.extend([(Role::Lure(fault), 0), (Role::Lure(fault), second)]);
        }
        // Long requests take all streams of a connection.
        if point == FaultPoint::OutOfStreams
            && let Transport::Http2(streams, _) = self.transport
        {
            along.extend(repeat_n((Role::Hog(fault), 0), streams as usize));
            along.extend(repeat_n((Role::Lure(fault), 300), streams as usize));
        }
        let late = fault.bytes_come_late();
        let in_vain = fault.case.kind == LongStop && self.proxies == 1;
        if (late || fault.case.kind == LongStop) && !in_vain {
            along.push((Role::Heir(fault), 1_000));
        }
        if late && !in_vain {
            // After all others, so that its token is the newest.
            along.push((Role::Heir(fault), self.span));
        }
        along
    }

    /// A request by way of the other proxy, with a newer token, that is sent until it passes: who
    /// was stopped finds it there when it wakes.
    fn heir(&self, fault: &Fault, at: u64, newest: &mut [u64]) -> PlannedRequest {
        let (proxy, resource) = ((fault.proxy + 1) % self.proxies, self.at_stake(fault));
        newest[resource] += 1;
        let mut ask = PlannedRequest::put(at, proxy, resource, newest[resource]);
        ask.retries = 40;
        ask
    }

    /// A request that takes a stream for long: its body comes in drops. It is about a resource of
    /// its own, and no newer token ends it.
    fn hog(&self, fault: &Fault, at: u64) -> PlannedRequest {
        let mut ask = PlannedRequest::put(at, fault.proxy, self.all_resources() - 1, FLOOR);
        (ask.size, ask.conduct) = (2 * BUFFER, Conduct::Drip);
        ask
    }

    /// The resource that a fault's own requests are about. Where bytes may come late, that is
    /// mostly one that nobody else asks for.
    fn at_stake(&self, fault: &Fault) -> usize {
        if fault.bytes_come_late() && !fault.at.is_multiple_of(3) {
            return self.resources;
        }
        usize::try_from(fault.at).unwrap_or(0) % self.resources
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
        let mut ask = PlannedRequest::put(at, fault.proxy, resource, newest[resource]);
        (ask.size, ask.chunked, ask.retries) = (64, random.random(), 3);
        // For as long as it takes others to find its caller dead, and longer.
        let dies = matches!(fault.case.kind, Kill | LongStop | Partition);
        let work_on = if dies { 2_200 } else { 0 };
        let paused = Conduct::Pause(Part::Body, 400);
        match fault.case.point {
            FaultPoint::BeforeCheck => (ask.size, ask.conduct) = (BUFFER / 2, paused),
            FaultPoint::AfterCommit => ask.size = 0,
            FaultPoint::MidBody => {
                let trickles = fault.case.sky == Sky::Trickles;
                ask.size = if trickles { LONG } else { LARGE };
                (ask.conduct, ask.before) = (paused, work_on);
            }
            FaultPoint::BeforeResponseEnd => {
                (ask.pieces, ask.between) = (2, work_on.max(300));
            }
            // Nobody reads the response.
            FaultPoint::BeforeRelease => {
                (ask.pieces, ask.piece) = (2, HUGE / 2);
                ask.conduct = Conduct::Pause(Part::Response, 400);
            }
            FaultPoint::AnyTime | FaultPoint::OutOfStreams => {}
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
        let proxy = random.random_range(0..self.proxies);
        let mut ask = PlannedRequest::put(at, proxy, resource, token);
        ask.chunked = random.random();
        work(&mut ask, random);
        ask.retries = random.random_range(0..3);
        match random.random_range(0..100) {
            0..6 => ask.form = Form::Claim,
            6..9 => (ask.form, ask.token) = (Form::Plain("GET"), None),
            9..11 => {
                let method = pick(&["PUT", "POST", "DELETE"], random.random());
                (ask.form, ask.token) = (Form::Plain(method), None);
            }
            11..13 => {
                let method = pick(&["PUT", "POST", "DELETE", "GET"], random.random());
                let token = pick(&["-3", "0x1f", "1, 2"], random.random());
                (ask.form, ask.token) = (Form::Malformed(method, token), None);
            }
            13 => ask.form = Form::Misdirected("PUT", "/orders/x/../"),
            14 => ask.form = Form::Misdirected("PUT", "/nowhere/"),
            15 => ask.form = Form::Misdirected("PATCH", "/orders/"),
            16 => ask.form = Form::TooLarge,
            kind => {
                let method = match kind {
                    17..31 => "DELETE",
                    31..45 => "GET",
                    _ => pick(&["PUT", "POST"], random.random()),
                };
                (ask.form, ask.conduct) = (Form::Plain(method), conduct(random));
            }
        }
        if let Form::Plain("PUT" | "POST") | Form::Malformed("PUT" | "POST", _) = ask.form {
            ask.size = pick(&[0, 40, 2_000, LARGE], random.random());
        }
        ask
    }
}

/// The purpose of a client.
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

fn work(ask: &mut PlannedRequest, random: &mut StdRng) {
    match random.random_range(0..100) {
        0..35 => {}
        35..70 => ask.before = random.random_range(1..60),
        70..80 => ask.before = random.random_range(60..300),
        // Longer than `upstream.timeout`.
        80..85 => ask.before = random.random_range(400..600),
        85..90 => (ask.pieces, ask.between) = (3, random.random_range(10..100)),
        90..93 => (ask.pieces, ask.between) = (2, random.random_range(200..500)),
        93..95 => ask.slow_read = random.random_range(50..250),
        95..97 => (ask.ending, ask.pieces) = (Ending::Reset, random.random_range(1..3)),
        97..99 => ask.ending = Ending::Early,
        _ => ask.ending = Ending::Fail,
    }
}

fn conduct(random: &mut StdRng) -> Conduct {
    let pause = random.random_range(50..600);
    match random.random_range(0..100) {
        0..4 => Conduct::Pause(Part::Head, pause),
        4..7 => Conduct::Die(Part::Head),
        7..12 => Conduct::Pause(Part::Body, pause),
        12..16 => Conduct::Die(Part::Body),
        16..23 => Conduct::Leave(pause / 4),
        23..26 => Conduct::Pause(Part::Response, pause),
        26..30 => Conduct::Die(Part::Response),
        _ => Conduct::Plain,
    }
}
