//! The upstream of one history. It notes first bytes, effects and ends as they happen, and goes on
//! after its caller has left. It keeps the one promise that fencing asks of an upstream, by its own
//! clock: it is done with a request [`BOUND`] after the last byte of it, far within
//! `barrier.settle`. It gives up an effect that would come later, as an upstream with a deadline
//! does.
//!
//! Where the rest of a body does not come, it stops waiting after that time. Should more come after
//! all, it begins again, which the log shows.
//!
//! The scripted upstream of the suite ([`crate::support::upstream`]) cannot stand in for it: it has
//! no bound, reads a whole head before it notes an arrival, and speaks no HTTP/2.

mod http1;
mod http2;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::hub::Hub;
use super::log::{Event, Log};
use super::marks::Reader;
use super::plan::{Conduct, Ending, FaultPoint, Plan, Transport, Work};

/// From the last byte read of a request to the last thing done for it, own pauses in reading
/// counted in.
pub const BOUND: Duration = Duration::from_millis(2_400);
/// A piece of the response that is not taken for so long is held up by who should read it.
const HELD_UP: Duration = Duration::from_millis(40);

/// The server. Its requests in progress outlive its listening.
pub struct PromptUpstream {
    address: SocketAddr,
    desk: UpstreamShared,
    listening: Mutex<JoinSet<()>>,
}

#[derive(Clone)]
struct UpstreamShared {
    plan: Arc<Plan>,
    log: Log,
    hub: Arc<Hub>,
    reader: Reader,
    arrivals: Arc<AtomicUsize>,
    /// Short sections, never across an await.
    at_work: Arc<Mutex<JoinSet<()>>>,
}

impl PromptUpstream {
    pub async fn start(plan: Arc<Plan>, log: Log, hub: Arc<Hub>, reader: Reader) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let desk = UpstreamShared {
            plan,
            log,
            hub,
            reader,
            arrivals: Arc::default(),
            at_work: Arc::default(),
        };
        let mut listening = JoinSet::new();
        listening.spawn(desk.clone().accept(listener));
        Self {
            address,
            desk,
            listening: Mutex::new(listening),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until nothing is in progress any more. Call it when every proxy and every path is
    /// gone.
    pub async fn rest(&self) {
        let mut listening = std::mem::take(&mut *self.listening.lock().expect("no panics"));
        listening.shutdown().await;
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

impl UpstreamShared {
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
        match self.plan.transport {
            Transport::Http1 => self.http1(stream).await,
            Transport::Http2 {
                streams, goodbye, ..
            } => self.http2(stream, streams, goodbye).await,
        }
    }

    /// The first byte of a request.
    fn arrives(&self) -> Handling {
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.log.add(Event::Began { arrival });
        self.reader.look();
        Handling {
            desk: self.clone(),
            arrival,
            last_byte: Instant::now(),
        }
    }

    /// The order for a request, by its nonce.
    fn planned(&self, nonce: &str) -> Order {
        let find = || {
            let mut parts = nonce.split('-');
            let client: usize = parts.next()?.strip_prefix('c')?.parse().ok()?;
            let nth: usize = parts.next()?.parse().ok()?;
            self.plan.clients.get(client)?.get(nth)
        };
        find().map_or(Order::UNPLANNED, |ask| Order {
            proxy: ask.proxy,
            work: ask.work,
            keeps: ask.conduct == Conduct::Drip,
        })
    }
}

/// The order for a request.
#[derive(Clone, Copy)]
struct Order {
    /// The proxy that it was sent to.
    proxy: usize,
    work: Work,
    /// It is there to take a stream and keep it.
    keeps: bool,
}

impl Order {
    const UNPLANNED: Self = Self {
        proxy: 0,
        work: Work::QUICK,
        keeps: false,
    };
}

/// One request in the works.
struct Handling {
    desk: UpstreamShared,
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

    /// Reads a body that is read in this way.
    async fn read(
        &mut self,
        order: Order,
        length: Option<usize>,
        reading: impl AsyncFnOnce(&Watch<'_>) -> bool,
    ) -> BodyEnd {
        let slow = Duration::from_millis(order.work.slow_read);
        tokio::time::sleep(slow).await;
        // Bodies of no length are whole with the head.
        if length == Some(0) {
            self.last_byte -= slow;
            return BodyEnd::Whole;
        }
        let watch = Watch::new(self, order, length);
        let (body, last) = watch.over(reading(&watch)).await;
        if body != BodyEnd::GivenUp {
            // Bytes that lay there while nothing was read were sent so much earlier.
            self.last_byte = self.last_byte.max(last) - slow;
        }
        body
    }

    /// The status of the answer, and the length of its body in all.
    fn answer(work: Work) -> (u16, usize) {
        let status = if work.ending == Ending::Fail {
            500
        } else {
            200
        };
        (status, work.pieces * work.piece)
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
}

/// How the reading of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    Whole,
    Broken,
    /// The rest did not come in time, and the connection is over now.
    GivenUp,
}

/// Watches over the reading of a body, and stops waiting for the rest when it has not come for
/// [`BOUND`].
struct Watch<'a> {
    desk: &'a UpstreamShared,
    arrival: usize,
    order: Order,
    /// Of the body, if its length is known.
    half: usize,
    /// Short sections, never across an await.
    state: Mutex<Progress>,
}

struct Progress {
    read: usize,
    last: Instant,
    /// The rest has been given up since.
    given_up: bool,
}

impl<'a> Watch<'a> {
    fn new(handling: &'a Handling, order: Order, length: Option<usize>) -> Self {
        Self {
            desk: &handling.desk,
            arrival: handling.arrival,
            order,
            half: length.map_or(64 << 10, |length| length / 2),
            state: Mutex::new(Progress {
                read: 0,
                last: Instant::now(),
                given_up: false,
            }),
        }
    }

    /// How the reading ended, and when the last byte came. `reading`: whether the body is whole, in
    /// the end.
    async fn over(&self, reading: impl Future<Output = bool>) -> (BodyEnd, Instant) {
        let whole = tokio::select! {
            whole = reading => whole,
            () = self.wait() => unreachable!("it waits for as long as there is something to read"),
        };
        let state = self.lock();
        let body = match (state.given_up, whole) {
            (true, _) => BodyEnd::GivenUp,
            (false, true) => BodyEnd::Whole,
            (false, false) => BodyEnd::Broken,
        };
        (body, state.last)
    }

    /// So many bytes have come.
    fn more(&self, bytes: usize) {
        let mut state = self.lock();
        let before = state.read;
        state.read += bytes;
        state.last = Instant::now();
        if std::mem::take(&mut state.given_up) && !self.answered() {
            let arrival = self.arrival;
            self.desk.log.add(Event::Resumed { arrival });
        }
        // A streamed body comes in more than one piece.
        if self.half > 4096 && (before..state.read).contains(&(self.half - 1)) {
            self.desk.hub.pass(FaultPoint::MidBody, self.order.proxy);
        }
    }

    /// It was answered early, and what still comes does not matter.
    fn answered(&self) -> bool {
        self.order.work.ending == Ending::Early
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().expect("no panics")
    }

    async fn wait(&self) {
        loop {
            let (last, given_up) = {
                let state = self.lock();
                (state.last, state.given_up)
            };
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
        let mut state = self.lock();
        if (state.last, state.given_up) == (last, false) {
            state.given_up = true;
            if !self.answered() {
                let (arrival, how) = (self.arrival, "the rest does not come");
                self.desk.log.add(Event::Ended { arrival, how });
            }
        }
    }
}
