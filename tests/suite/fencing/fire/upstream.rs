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
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

use super::check::NONCE;
use super::clients::Clients;
use super::fault::FaultPoint;
use super::log::Event;
use super::marks::Reader;
use super::plan::{Ending, PlannedRequest, Transport};
use crate::support::Must as _;

/// From the last byte read of a request to the last thing done for it, own pauses in reading
/// counted in.
const BOUND: Duration = Duration::from_millis(2_400);
const FOR_EVER: Duration = Duration::from_hours(1);
/// A piece of the response that is not taken for so long is held up by who should read it.
const HELD_UP: Duration = Duration::from_millis(40);
/// The end of a response, which leaves when it is noted.
const LAST: usize = 8;
const LEFT: &str = "the caller left";

/// The server. Cheap to clone.
#[derive(Clone)]
pub struct PromptUpstream {
    pub address: SocketAddr,
    clients: Clients,
    reader: Reader,
    arrivals: Arc<AtomicUsize>,
    at_work: TaskTracker,
}

impl PromptUpstream {
    /// It listens for as long as `tasks` live.
    pub async fn start(clients: &Clients, reader: &Reader, tasks: &mut JoinSet<()>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").must().await;
        let upstream = Self {
            address: listener.local_addr().expect("it is bound"),
            clients: clients.clone(),
            reader: reader.clone(),
            arrivals: Arc::default(),
            at_work: TaskTracker::new(),
        };
        let (accepting, at_work) = (upstream.clone(), upstream.at_work.clone());
        tasks.spawn(async move {
            loop {
                let (stream, _) = listener.accept().must().await;
                at_work.spawn(accepting.clone().connection(stream));
            }
        });
        upstream
    }

    /// Waits until nothing is in progress any more. Call it when every proxy and every path is
    /// gone.
    pub async fn rest(self) {
        self.at_work.close();
        self.at_work.wait().await;
    }

    async fn connection(self, stream: TcpStream) {
        stream.set_nodelay(true).expect("a live socket");
        match self.clients.plan.transport {
            Transport::Http1 => self.http1(stream).await,
            Transport::Http2(streams, bye) => self.http2(stream, streams, bye).await,
        }
    }

    /// The first byte of a request.
    fn arrives(&self) -> Handling {
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.clients.log.add(Event::Began(arrival));
        self.reader.look();
        Handling {
            desk: self.clone(),
            arrival,
            order: PlannedRequest::put(0, 0, 0, 0),
            last_byte: Instant::now(),
        }
    }

    /// The plan of a request, by its nonce.
    fn planned(&self, nonce: &str) -> Option<PlannedRequest> {
        let mut parts = nonce.split('-');
        let client: usize = parts.next()?.strip_prefix('c')?.parse().ok()?;
        let nth: usize = parts.next()?.parse().ok()?;
        self.clients.plan.clients.get(client)?.get(nth).copied()
    }
}

/// The caller's side of one request, behind its head.
trait Caller {
    /// Reads the body, and hands on the length of each piece; `true`: it is whole.
    fn body(&mut self, more: UnboundedSender<usize>) -> impl Future<Output = bool> + Send;

    /// Sends the head of the response, with the length of its body.
    fn head(&mut self, status: u16, length: usize) -> impl Future<Output = bool> + Send;

    /// Sends so many bytes; `last`: the response ends there.
    fn send(&mut self, bytes: usize, last: bool) -> impl Future<Output = bool> + Send;

    /// Breaks the response off.
    fn reset(&mut self);
}

/// One request in the works.
struct Handling {
    desk: PromptUpstream,
    arrival: usize,
    /// A quick one where none is planned.
    order: PlannedRequest,
    /// The start of the bound: with the last byte, less the time in which nothing was read.
    last_byte: Instant,
}

impl Handling {
    /// Notes the head.
    fn has_head(&mut self, headers: Vec<(String, String)>) {
        let mut fields = headers.iter();
        let nonce = fields.find(|(name, _)| name.eq_ignore_ascii_case(NONCE));
        if let Some(order) = nonce.and_then(|(_, nonce)| self.desk.planned(nonce)) {
            self.order = order;
        }
        self.desk
            .clients
            .log
            .add(Event::Head(self.arrival, headers));
    }

    /// Does all that follows the head; `true`: the connection can go on. `length`: of the body, if
    /// it is known.
    async fn handle(mut self, length: Option<usize>, caller: &mut impl Caller) -> bool {
        let order = self.order;
        if order.ending == Ending::Early {
            // A whole answer is the upstream's own word that it is done; the body is read and
            // thrown away.
            self.work_for(order.before).await;
            self.end("answered early");
            let answer = order.pieces * order.piece;
            let answered = caller.head(200, answer).await && caller.send(answer, true).await;
            return self.body(length, caller).await == Some(true) && answered;
        }
        let Some(is_whole) = self.body(length, caller).await else {
            return false;
        };
        self.work_for(order.before).await;
        let responded = if is_whole {
            self.respond(caller).await
        } else {
            Err("the caller left halfway")
        };
        responded.unwrap_or_else(|how| {
            self.end(how);
            false
        })
    }

    fn end(&self, how: &'static str) {
        self.desk.clients.log.add(Event::Ended(self.arrival, how));
    }

    fn passes(&self, point: FaultPoint) {
        // Nobody may wait for it.
        let _ = self.desk.clients.hub.send((point, self.order.proxy));
    }

    fn bound(&self) -> Instant {
        self.last_byte + BOUND
    }

    /// Works for so long, caller or not, within the bound.
    async fn work_for(&self, millis: u64) {
        let done = Instant::now() + Duration::from_millis(millis);
        sleep_until(done.min(self.bound())).await;
    }

    /// Returns whether the body has come whole; `None`: the rest did not come in time, and the
    /// connection is over now.
    async fn body(&mut self, length: Option<usize>, caller: &mut impl Caller) -> Option<bool> {
        let slow = Duration::from_millis(self.order.slow_read);
        sleep(slow).await;
        // Bodies of no length are whole with the head.
        if length == Some(0) {
            self.last_byte -= slow;
            return Some(true);
        }
        let (more, mut pieces) = unbounded_channel();
        // It was answered early, and what still comes does not matter.
        let answered = self.order.ending == Ending::Early;
        let half = length.map_or(64 << 10, |length| length / 2);
        let watching = async {
            let (mut read, mut last, mut given_up) = (0, Instant::now(), false);
            loop {
                let patience = if given_up { FOR_EVER } else { BOUND };
                match timeout_at(last + patience, pieces.recv()).await {
                    Ok(None) => return (last, given_up),
                    Ok(Some(bytes)) => {
                        if std::mem::take(&mut given_up) && !answered {
                            self.desk.clients.log.add(Event::Resumed(self.arrival));
                        }
                        // A streamed body comes in more than one piece.
                        if half > 4096 && (read..read + bytes).contains(&(half - 1)) {
                            self.passes(FaultPoint::MidBody);
                        }
                        (read, last) = (read + bytes, Instant::now());
                    }
                    Err(_) => {
                        given_up = true;
                        if !answered {
                            self.end("the rest does not come");
                        }
                    }
                }
            }
        };
        let (whole, (last, given_up)) = tokio::join!(caller.body(more), watching);
        // Bytes that lay there while nothing was read were sent so much earlier.
        self.last_byte = self.last_byte.max(last) - slow;
        (!given_up).then_some(whole)
    }

    /// `true`: the response has left whole.
    async fn respond(&self, caller: &mut impl Caller) -> Result<bool, &'static str> {
        let order = self.order;
        let fails = order.ending == Ending::Fail;
        let status = if fails { 500 } else { 200 };
        for nth in 1..=order.pieces {
            if nth > 1 {
                self.passes(FaultPoint::BeforeResponseEnd);
                self.work_for(order.between).await;
            }
            let last = nth == order.pieces;
            if last && order.ending == Ending::Reset {
                self.end("a reset");
                caller.reset();
                return Ok(false);
            }
            if nth == 1 && !caller.head(status, order.pieces * order.piece).await {
                return Err(LEFT);
            }
            let most = order.piece - if last { LAST } else { 0 };
            self.send(most, caller).await?;
        }
        // Noted before the last bytes leave: what follows from them must find it in the log.
        self.end("answered");
        Ok(caller.send(LAST, true).await)
    }

    async fn send(&self, bytes: usize, caller: &mut impl Caller) -> Result<(), &'static str> {
        let mut sending = pin!(caller.send(bytes, false));
        let sent = tokio::select! {
            sent = &mut sending => sent,
            () = sleep(HELD_UP) => {
                self.passes(FaultPoint::BeforeRelease);
                let sent = timeout_at(self.bound(), sending).await;
                sent.map_err(|_| "nobody reads the answer")?
            }
        };
        if sent { Ok(()) } else { Err(LEFT) }
    }
}
