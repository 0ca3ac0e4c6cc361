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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::check::NONCE;
use super::clients::Hub;
use super::fault::FaultPoint;
use super::log::{Event, Log};
use super::marks::Reader;
use super::plan::{Ending, Plan, PlannedRequest, Transport};

/// From the last byte read of a request to the last thing done for it, own pauses in reading
/// counted in.
const BOUND: Duration = Duration::from_millis(2_400);
/// A piece of the response that is not taken for so long is held up by who should read it.
const HELD_UP: Duration = Duration::from_millis(40);
/// The end of a response, which leaves when it is noted.
const LAST: usize = 8;
const LEFT: &str = "the caller left";

/// The server. Its requests in progress outlive its listening.
pub struct PromptUpstream {
    address: SocketAddr,
    desk: UpstreamShared,
    listening: JoinSet<()>,
}

#[derive(Clone)]
struct UpstreamShared {
    plan: Arc<Plan>,
    log: Log,
    hub: Hub,
    reader: Reader,
    arrivals: Arc<AtomicUsize>,
    /// Short sections, never across an await.
    at_work: Arc<Mutex<JoinSet<()>>>,
}

impl PromptUpstream {
    pub async fn start(plan: Arc<Plan>, log: Log, hub: Hub, reader: Reader) -> Self {
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
            listening,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until nothing is in progress any more. Call it when every proxy and every path is
    /// gone.
    pub async fn rest(mut self) {
        self.listening.shutdown().await;
        loop {
            let at_work = std::mem::take(&mut *self.desk.at_work.lock().expect("no panics"));
            if at_work.is_empty() {
                return;
            }
            at_work.join_all().await;
        }
    }
}

impl UpstreamShared {
    async fn accept(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.expect("accepting works");
            self.spawn(self.clone().connection(stream));
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.at_work.lock().expect("no panics").spawn(work);
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
        self.log.add(Event::Began(arrival));
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
        self.plan.clients.get(client)?.get(nth).cloned()
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

/// The end of the reading of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    Whole,
    Broken,
    /// The rest did not come in time, and the connection is over now.
    GivenUp,
}

/// One request in the works.
struct Handling {
    desk: UpstreamShared,
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
        self.desk.log.add(Event::Head(self.arrival, headers));
    }

    /// Does all that follows the head; `true`: the connection can go on. `length`: of the body, if
    /// it is known.
    async fn handle(mut self, length: Option<usize>, caller: &mut impl Caller) -> bool {
        let work = self.order.work;
        if work.ending == Ending::Early {
            // A whole answer is the upstream's own word that it is done; the body is read and
            // thrown away.
            self.work_for(work.before).await;
            self.end("answered early");
            let answer = work.pieces * work.piece;
            let answered = caller.head(200, answer).await && caller.send(answer, true).await;
            return self.body(length, caller).await == BodyEnd::Whole && answered;
        }
        match self.body(length, caller).await {
            BodyEnd::Whole => {
                self.work_for(work.before).await;
                self.respond(caller).await.unwrap_or_else(|how| {
                    self.end(how);
                    false
                })
            }
            BodyEnd::Broken => {
                self.work_for(work.before).await;
                self.end("the caller left halfway");
                false
            }
            BodyEnd::GivenUp => false,
        }
    }

    fn end(&self, how: &'static str) {
        self.desk.log.add(Event::Ended(self.arrival, how));
    }

    fn passes(&self, point: FaultPoint) {
        // Nobody may wait for it.
        let _ = self.desk.hub.send((point, self.order.proxy));
    }

    fn bound(&self) -> Instant {
        self.last_byte + BOUND
    }

    /// Works for so long, caller or not, within the bound.
    async fn work_for(&self, millis: u64) {
        let done = Instant::now() + Duration::from_millis(millis);
        sleep_until(done.min(self.bound())).await;
    }

    async fn body(&mut self, length: Option<usize>, caller: &mut impl Caller) -> BodyEnd {
        let slow = Duration::from_millis(self.order.work.slow_read);
        sleep(slow).await;
        // Bodies of no length are whole with the head.
        if length == Some(0) {
            self.last_byte -= slow;
            return BodyEnd::Whole;
        }
        let (more, mut pieces) = unbounded_channel();
        // It was answered early, and what still comes does not matter.
        let answered = self.order.work.ending == Ending::Early;
        let half = length.map_or(64 << 10, |length| length / 2);
        let watching = async {
            let (mut read, mut last, mut given_up) = (0, Instant::now(), false);
            loop {
                let piece = if given_up {
                    Ok(pieces.recv().await)
                } else {
                    timeout_at(last + BOUND, pieces.recv()).await
                };
                match piece {
                    Ok(None) => return (last, given_up),
                    Ok(Some(bytes)) => {
                        if std::mem::take(&mut given_up) && !answered {
                            self.desk.log.add(Event::Resumed(self.arrival));
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
        if given_up {
            return BodyEnd::GivenUp;
        }
        // Bytes that lay there while nothing was read were sent so much earlier.
        self.last_byte = self.last_byte.max(last) - slow;
        if whole {
            BodyEnd::Whole
        } else {
            BodyEnd::Broken
        }
    }

    /// `true`: the response has left whole.
    async fn respond(&self, caller: &mut impl Caller) -> Result<bool, &'static str> {
        let work = self.order.work;
        let status = if work.ending == Ending::Fail {
            500
        } else {
            200
        };
        for nth in 1..=work.pieces {
            if nth > 1 {
                self.passes(FaultPoint::BeforeResponseEnd);
                self.work_for(work.between).await;
            }
            let last = nth == work.pieces;
            if last && work.ending == Ending::Reset {
                self.end("a reset");
                caller.reset();
                return Ok(false);
            }
            if nth == 1 && !caller.head(status, work.pieces * work.piece).await {
                return Err(LEFT);
            }
            let most = work.piece - if last { LAST } else { 0 };
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
