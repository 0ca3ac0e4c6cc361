//! The upstream of one history: a server that notes first bytes, effects and ends as they are, works on
//! after its caller has left, and keeps the one promise that fencing asks of it, by its own clock: it is
//! done with a request [`BOUND`] after the last byte of it, far within `barrier.settle`. An effect that
//! would come later is given up, as an upstream with a deadline of its own gives up. Where the rest of a
//! body does not come, it stops waiting after that time; should more come all the same, it begins anew,
//! which the log shows.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::check::NONCE;
use super::hub::Hub;
use super::log::{Event, Log};
use super::marks::Reader;
use super::plan::{Ending, Plan, Point, Work};
use crate::support::postgres::free_port;
use crate::support::wire::{Framing, Head, Io, Wire};

/// From the last byte read of a request to the last thing done for it, own pauses in reading counted in.
pub const BOUND: Duration = Duration::from_millis(2_400);
/// A piece of the response that is not taken for so long is held up by who should read it.
const HELD_UP: Duration = Duration::from_millis(40);

/// How long the address of a closed listener may be in use.
const AGAIN: Duration = Duration::from_secs(10);

/// The server. Its connections outlive the listener; all end with it.
pub struct Upstream {
    address: SocketAddr,
    desk: Desk,
    /// Keeps the port while nobody listens on it.
    _place: TcpSocket,
    listening: Mutex<Option<JoinSet<()>>>,
}

#[derive(Clone)]
struct Desk {
    plan: Arc<Plan>,
    log: Log,
    hub: Arc<Hub>,
    reader: Reader,
    arrivals: Arc<AtomicUsize>,
    /// Short sections, never across an await.
    at_work: Arc<Mutex<JoinSet<()>>>,
}

impl Upstream {
    pub fn start(plan: Arc<Plan>, log: Log, hub: Arc<Hub>, reader: Reader) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let place = socket();
        place.bind(address).expect("the port is free");
        let upstream = Self {
            address,
            desk: Desk {
                plan,
                log,
                hub,
                reader,
                arrivals: Arc::default(),
                at_work: Arc::default(),
            },
            _place: place,
            listening: Mutex::new(None),
        };
        upstream.listen();
        upstream
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on connections are taken.
    pub fn listen(&self) {
        let listener = listening(self.address);
        let desk = self.desk.clone();
        let mut task = JoinSet::new();
        task.spawn(desk.accept(listener));
        *self.listening.lock().expect("no panics") = Some(task);
    }

    /// From now on connections are refused; those there are go on.
    pub async fn refuse(&self) {
        let task = self.listening.lock().expect("no panics").take();
        if let Some(mut task) = task {
            task.shutdown().await;
        }
    }

    /// Waits until nothing is at work any more. Call it when every proxy is gone.
    pub async fn rest(&self) {
        self.refuse().await;
        loop {
            let mut at_work = std::mem::take(&mut *self.desk.at_work.lock().expect("no panics"));
            if at_work.is_empty() {
                return;
            }
            while let Some(ended) = at_work.join_next().await {
                ended.expect("the upstream does not panic");
            }
        }
    }
}

fn socket() -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket takes options");
    socket
}

/// Listens where a listener was just closed. A child process that another test is starting has that one, too, between
/// its fork and its exec: for so long the address is in use.
fn listening(address: SocketAddr) -> TcpListener {
    let began = Instant::now();
    loop {
        let socket = socket();
        let listener = socket.bind(address).and_then(|()| socket.listen(1024));
        match listener {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < AGAIN => {
                std::thread::sleep(Duration::from_millis(1));
            }
            listener => return listener.expect("the port is kept for it"),
        }
    }
}

impl Desk {
    async fn accept(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.expect("accepting works");
            let desk = self.clone();
            self.at_work
                .lock()
                .expect("no panics")
                .spawn(desk.connection(stream));
        }
    }

    async fn connection(self, stream: TcpStream) {
        stream
            .set_nodelay(true)
            .expect("a live socket takes options");
        let mut wire = Wire::new(Io::Tcp(stream));
        while let Ok(true) = wire.fill().await {
            let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
            self.log.add(Event::Began { arrival });
            self.reader.look();
            let handling = Handling {
                desk: self.clone(),
                arrival,
                last_byte: Instant::now(),
            };
            match handling.all(wire).await {
                Some(open) => wire = open,
                None => return,
            }
        }
    }
}

/// One request in the works.
struct Handling {
    desk: Desk,
    arrival: usize,
    /// When the bound began to run: with the last byte, less the time in which nothing was read.
    last_byte: Instant,
}

impl Handling {
    fn end(&self, how: &'static str) {
        let arrival = self.arrival;
        self.desk.log.add(Event::Ended { arrival, how });
    }

    fn bound(&self) -> Instant {
        self.last_byte + BOUND
    }

    /// Handles it; the connection, if it goes on.
    async fn all(mut self, mut wire: Wire) -> Option<Wire> {
        let Ok(Some(head)) = wire.head().await else {
            self.end("a fragment of a head");
            return None;
        };
        let nonce = head.all(NONCE).first().map(|nonce| (*nonce).to_owned());
        self.desk.log.add(Event::Head {
            arrival: self.arrival,
            headers: head.headers.clone(),
        });
        let (proxy, work) = self.desk.planned(nonce.as_deref().unwrap_or_default());
        if work.ending == Ending::Early {
            return self.early(wire, &head, proxy, work).await;
        }
        let whole = match self.read(&mut wire, &head, proxy, work).await {
            Body::Whole => true,
            Body::Broken => false,
            Body::GivenUp => return None,
        };
        self.work(work).await;
        if !whole {
            self.end("the caller left halfway");
            return None;
        }
        self.respond(wire, proxy, work).await
    }

    /// Answers first. What has answered whole is done by its own word; the body is read and thrown away.
    async fn early(
        &mut self,
        mut wire: Wire,
        head: &Head,
        proxy: usize,
        work: Work,
    ) -> Option<Wire> {
        self.work(work).await;
        self.end("answered early");
        let answered = wire.send(&response(work, 0)).await.is_ok();
        let whole = self.read(&mut wire, head, proxy, work).await;
        (answered && whole == Body::Whole).then_some(wire)
    }

    async fn read(&mut self, wire: &mut Wire, head: &Head, proxy: usize, work: Work) -> Body {
        let framing = head.request_framing();
        let slow = Duration::from_millis(work.slow_read);
        tokio::time::sleep(slow).await;
        // Bodies of no length are whole with the head.
        if framing == Framing::Length(0) {
            self.last_byte -= slow;
            return Body::Whole;
        }
        let half = match framing {
            Framing::Length(length) => length / 2,
            _ => 64 << 10,
        };
        let idle = Idle {
            log: &self.desk.log,
            arrival: self.arrival,
            state: Mutex::new((Instant::now(), false)),
            early: work.ending == Ending::Early,
        };
        let (hub, mut read, mut passed) = (&self.desk.hub, 0, false);
        let reading = wire.body(framing, |bytes| {
            idle.more();
            read += bytes.len();
            // What is streamed comes in more than one piece.
            if !passed && half > 4096 && read >= half {
                passed = true;
                hub.pass(Point::MidBody, proxy);
            }
        });
        let whole = tokio::select! {
            read = reading => read.is_ok(),
            () = idle.watch() => unreachable!("it watches for as long as there is something to read"),
        };
        let (last_byte, given_up) = idle.state();
        if given_up {
            return Body::GivenUp;
        }
        // What had lain there while nothing was read was sent so much earlier.
        self.last_byte = self.last_byte.max(last_byte) - slow;
        if whole { Body::Whole } else { Body::Broken }
    }

    /// Works, caller or not, and lets the request take effect if that is still within the bound.
    async fn work(&self, work: Work) {
        let done = Instant::now() + Duration::from_millis(work.before);
        tokio::time::sleep_until(done.min(self.bound())).await;
        if Instant::now() <= self.bound() {
            let arrival = self.arrival;
            self.desk.log.add(Event::Effect { arrival });
        }
    }

    async fn respond(&self, mut wire: Wire, proxy: usize, work: Work) -> Option<Wire> {
        for nth in 0..work.pieces {
            if nth > 0 {
                self.desk.hub.pass(Point::BeforeResponseEnd, proxy);
                let next = Instant::now() + Duration::from_millis(work.between);
                tokio::time::sleep_until(next.min(self.bound())).await;
            }
            let last = nth + 1 == work.pieces;
            if last && work.ending == Ending::Reset {
                self.end("a reset");
                wire.reset();
                return None;
            }
            let piece = response(work, nth);
            // Noted before the bytes leave: what follows from them must find it in the log. A large piece
            // leaves in parts, and only its last part ends the matter.
            let (most, rest) = piece.split_at(if last { piece.len() - 8 } else { piece.len() });
            if let Err(how) = self.send(&mut wire, most, proxy).await {
                self.end(how);
                return None;
            }
            if last {
                self.end("answered");
                if wire.send(rest).await.is_err() {
                    return None;
                }
            }
        }
        Some(wire)
    }

    async fn send(&self, wire: &mut Wire, piece: &[u8], proxy: usize) -> Result<(), &'static str> {
        let mut sending = std::pin::pin!(wire.send(piece));
        tokio::select! {
            sent = &mut sending => return sent.map_err(|_| "the caller left"),
            () = tokio::time::sleep(HELD_UP) => self.desk.hub.pass(Point::BeforeRelease, proxy),
        }
        tokio::time::timeout_at(self.bound(), sending)
            .await
            .map_err(|_| "nobody reads the answer")?
            .map_err(|_| "the caller left")
    }
}

/// How the reading of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Whole,
    Broken,
    /// The rest did not come in time, and the connection is over now.
    GivenUp,
}

/// Stops waiting for the rest of a body when it has not come for [`BOUND`].
struct Idle<'a> {
    log: &'a Log,
    arrival: usize,
    /// The last byte, and whether the rest has been given up since. Short sections, never across an await.
    state: Mutex<(Instant, bool)>,
    /// It was answered, and what still comes does not matter.
    early: bool,
}

impl Idle<'_> {
    fn more(&self) {
        let mut state = self.state.lock().expect("no panics");
        if std::mem::replace(&mut *state, (Instant::now(), false)).1 && !self.early {
            let arrival = self.arrival;
            self.log.add(Event::Resumed { arrival });
        }
    }

    fn state(&self) -> (Instant, bool) {
        *self.state.lock().expect("no panics")
    }

    async fn watch(&self) {
        loop {
            let (last, given_up) = self.state();
            if given_up {
                // Until more comes there is nothing new to give up.
                tokio::time::sleep(BOUND / 8).await;
                continue;
            }
            tokio::time::sleep_until(last + BOUND).await;
            self.give_up(last);
        }
    }

    /// Unless more has come since.
    fn give_up(&self, last: Instant) {
        let mut state = self.state.lock().expect("no panics");
        if *state == (last, false) {
            state.1 = true;
            if !self.early {
                let (arrival, how) = (self.arrival, "the rest does not come");
                self.log.add(Event::Ended { arrival, how });
            }
        }
    }
}

impl Desk {
    /// By the nonce: which proxy it was sent to, and what is to be done.
    fn planned(&self, nonce: &str) -> (usize, Work) {
        let find = || {
            let mut parts = nonce.split('-');
            let client: usize = parts.next()?.strip_prefix('c')?.parse().ok()?;
            let nth: usize = parts.next()?.parse().ok()?;
            self.plan.clients.get(client)?.get(nth)
        };
        find().map_or((0, Work::QUICK), |ask| (ask.proxy, ask.work))
    }
}

/// The nth piece of the response, its head before the first.
fn response(work: Work, nth: usize) -> Vec<u8> {
    let status = match work.ending {
        Ending::Fail => "500 Internal Server Error",
        _ => "200 OK",
    };
    let mut bytes = Vec::new();
    if nth == 0 {
        let length = work.pieces * work.piece;
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
        bytes.extend_from_slice(head.as_bytes());
    }
    bytes.resize(bytes.len() + work.piece, b'.');
    bytes
}
