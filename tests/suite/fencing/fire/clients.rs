//! The clients of one history: each sends what the plan says, one request after the other, over a
//! connection of its own each time, and behaves as the plan says; what it was answered goes to the
//! log.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::TcpSocket;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::check::{FORGED, NONCE};
use super::fault::FaultPoint;
use super::log::{Answered, Errand, Event, Log, Sent};
use super::plan::{BODY_MAX, BUFFER, Conduct, Form, Part, Plan, PlannedRequest};
use crate::support::client::Exchange;
use crate::support::wire::{Wire, chunk};
use crate::support::{Request, request};

/// The longest that a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(3);
/// The second half of a body that comes in drops: this many of them, and this long between two. In
/// all that is longer than an outcome takes to settle, and than a death is waited for.
const DROPS: u32 = 18;
const DROP: Duration = Duration::from_millis(400);
/// Between an attempt and the next.
const PAUSE: Duration = Duration::from_millis(120);

/// Reports each passage of a named point by a request on its way through this proxy.
pub type Hub = broadcast::Sender<(FaultPoint, usize)>;

/// All clients of a history. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    pub plan: Arc<Plan>,
    pub log: Log,
    pub hub: Hub,
    /// Of each proxy, the address at the moment; `None` while it is down. Short sections, never
    /// across an await.
    pub directory: Vec<Arc<Mutex<Option<SocketAddr>>>>,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The upstream's own success.
    Passed,
    /// Refused for good, or left by its client.
    Over,
    /// Refused for now, or broken.
    ForNow,
}

/// The key of a resource.
pub fn key(resource: usize) -> String {
    format!("order:r{resource}")
}

impl Clients {
    /// Of proxies that are still down.
    pub fn of(plan: Arc<Plan>, log: Log) -> Self {
        Self {
            directory: (0..plan.proxies).map(|_| Arc::default()).collect(),
            plan,
            log,
            hub: Hub::new(1024),
        }
    }

    /// Does all that is planned.
    pub async fn run(self) {
        let (began, mut running) = (Instant::now(), JoinSet::new());
        for client in 0..self.plan.clients.len() {
            running.spawn(self.clone().run_one(client, began));
        }
        running.join_all().await;
    }

    async fn run_one(self, client: usize, began: Instant) {
        for (nth, mut ask) in self.plan.clients[client].iter().copied().enumerate() {
            sleep_until((began + Duration::from_millis(ask.at)).into()).await;
            for attempt in 0..=ask.retries {
                let nonce = format!("c{client}-{nth}-{attempt}");
                if self.attempt(&ask, &nonce).await != Came::ForNow {
                    break;
                }
                // A client's bad manners are for its first attempt.
                ask.conduct = Conduct::Plain;
                sleep(PAUSE).await;
            }
        }
    }

    /// Sends a request once.
    pub async fn attempt(&self, ask: &PlannedRequest, nonce: &str) -> Came {
        let to = *self.directory[ask.proxy].lock().expect("no panics");
        let Some(to) = to else {
            return Came::ForNow;
        };
        let drips = u32::from(ask.conduct == Conduct::Drip);
        let patience = PATIENCE + DROPS * drips * DROP;
        let exchange = self.exchange(ask, nonce, to);
        let came = async { timeout(patience, exchange).await? };
        came.await.unwrap_or_else(|why| {
            let own = is_own(&why);
            self.log.add(Event::Left(format!("{nonce} {why}")));
            if own { Came::Over } else { Came::ForNow }
        })
    }

    /// Pauses or dies where that is planned, in the middle of this part.
    async fn interrupt(&self, ask: &PlannedRequest, wire: &mut Wire, part: Part) -> Result<()> {
        match ask.conduct {
            Conduct::Pause(at, millis) if at == part => {
                self.log.note(format!("client: pauses: {part:?}"));
                sleep(Duration::from_millis(millis)).await;
            }
            Conduct::Die(at) if at == part => {
                wire.end_by_reset();
                return Err(Error::other(format!("client: dies: {part:?}")));
            }
            _ => {}
        }
        Ok(())
    }

    async fn exchange(&self, ask: &PlannedRequest, nonce: &str, to: SocketAddr) -> Result<Came> {
        let (request, errand) = dressed(ask, nonce);
        self.log.add(Event::Sent(Sent {
            nonce: nonce.to_owned(),
            resource: key(ask.resource),
            token: ask.token,
            proxy: ask.proxy,
            errand,
        }));
        let mut wire = connect(to, ask.conduct).await?;
        let head = request.head_bytes();
        let (half, rest) = head.split_at(head.len() / 2);
        wire.send(half).await?;
        self.interrupt(ask, &mut wire, Part::Head).await?;
        wire.send(rest).await?;
        // A client that is refused early may find the connection closed for its body; the answer
        // counts.
        match self.body(ask, &mut wire).await {
            Err(end) if is_own(&end) => return Err(end),
            _ => {}
        }
        if let Conduct::Leave(pause) = ask.conduct {
            let answered = timeout(Duration::from_millis(pause), wire.fill()).await;
            if answered.is_err() {
                return Err(Error::other("client: leaves before the answer"));
            }
        }
        let mut exchange = Exchange::over(wire, &request);
        let head = exchange.head().await?;
        let framing = head.response_framing(false);
        let status = head.word(1).parse().expect("a status code");
        let outcome = head.get("x-fencing-outcome").map(str::to_owned);
        let (mut wire, mut body, mut read) = (exchange.wire, Vec::new(), Ok(Vec::new()));
        if outcome.is_some() {
            read = wire
                .body(framing, |bytes| body.extend_from_slice(bytes))
                .await;
        }
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        self.log.add(Event::Answered(Answered {
            nonce: nonce.to_owned(),
            status,
            outcome: outcome.clone(),
            mark: problem["mark"].as_str().and_then(|mark| mark.parse().ok()),
        }));
        read?;
        if outcome.is_none() {
            self.interrupt(ask, &mut wire, Part::Response).await?;
            wire.body(framing, |_| ()).await?;
        }
        Ok(match (outcome.as_deref(), status) {
            (None, 200) => Came::Passed,
            (Some("request-timeout"), _) | (Some(_), 502..=504) => Came::ForNow,
            _ => Came::Over,
        })
    }

    async fn body(&self, ask: &PlannedRequest, wire: &mut Wire) -> Result<()> {
        if ask.size == 0 {
            return Ok(());
        }
        let bytes = vec![b'x'; ask.size];
        let (first, mut second) = bytes.split_at(ask.size / 2);
        let chunked = ask.chunked;
        let framed = |part: &[u8]| if chunked { chunk(part) } else { part.to_vec() };
        wire.send(&framed(first)).await?;
        if ask.size <= BUFFER && matches!(ask.conduct, Conduct::Pause(Part::Body, _)) {
            // A buffered body is not judged before it is whole.
            let _ = self.hub.send((FaultPoint::BeforeCheck, ask.proxy));
        }
        self.interrupt(ask, wire, Part::Body).await?;
        if ask.conduct == Conduct::Drip {
            let (drops, last) = second.split_at(second.len() / 2);
            self.log.note("a body in drops");
            for drop in drops.chunks(drops.len().div_ceil(DROPS as usize)) {
                wire.send(&framed(drop)).await?;
                sleep(DROP).await;
            }
            second = last;
        }
        wire.send(&framed(second)).await?;
        if chunked {
            wire.send(b"0\r\n\r\n").await?;
        }
        Ok(())
    }
}

/// Returns whether a client has ended the exchange by its own plan.
fn is_own(end: &Error) -> bool {
    end.kind() == ErrorKind::Other
}

/// The head as it goes onto the wire, with a forgery or two; and what it is.
fn dressed(ask: &PlannedRequest, nonce: &str) -> (Request, Errand) {
    let id = format!("r{}", ask.resource);
    let path = format!("/orders/{id}");
    let (method, path, errand) = match ask.form {
        Form::Plain("GET") if ask.token.is_none() => ("GET", path, Errand::Unfenced),
        Form::Plain(method) if ask.token.is_some() => {
            let keyed = method != "GET";
            (method, path, Errand::Fenced { keyed })
        }
        Form::Claim => ("POST", "/.well-known/fencing/claim".into(), Errand::Claim),
        Form::Misdirected(method, to) => (method, format!("{to}{id}"), Errand::Wrong),
        Form::Plain(method) | Form::Malformed(method, _) => (method, path, Errand::Wrong),
        Form::TooLarge => ("PUT", path, Errand::Wrong),
    };
    let mut made = request(method, &path).header(NONCE, nonce);
    if let Some(token) = ask.token {
        made = made.token(token);
    } else if let Form::Malformed(_, token) = ask.form {
        made = made.token(token);
    }
    if ask.form == Form::Claim {
        made = made.header("X-Fencing-Target", format!("PUT /orders/{id}"));
    } else {
        made = made
            .header("X-Fencing-Resource", FORGED)
            .header("X-Fencing-Other", FORGED);
    }
    if matches!(errand, Errand::Fenced { keyed: true }) {
        // A body that is streamed yields no digest.
        made = made.header("X-Fencing-Operation", nonce);
    }
    if ask.form == Form::TooLarge {
        let length = (BODY_MAX + 1).to_string();
        made = made.header("Content-Length", length);
    } else if ask.chunked && ask.size > 0 {
        made = made.chunks(&[], "");
    } else {
        made = made.body(vec![b'x'; ask.size]);
    }
    (made, errand)
}

async fn connect(to: SocketAddr, conduct: Conduct) -> Result<Wire> {
    let socket = TcpSocket::new_v4()?;
    if let Conduct::Pause(Part::Response, _) | Conduct::Die(Part::Response) = conduct {
        // So that the proxy notices that nobody reads.
        socket.set_recv_buffer_size(4 << 10)?;
    }
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(Wire::new(stream))
}
