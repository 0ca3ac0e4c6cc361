//! The clients of one history: each sends what the plan says, one request after the other, over a
//! connection of its own each time, and behaves as the plan says; what it was answered goes to the
//! log.

use std::net::SocketAddr;
use std::sync::Arc;
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
use crate::support::wire::{Io, Wire, chunk};
use crate::support::{Request, request};

/// The longest that a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(3);
/// The second half of a body that comes in drops: this many of them, and this long between two. In
/// all that is longer than an outcome takes to settle, and than a death is waited for.
const DROPS: u32 = 18;
const DROP: Duration = Duration::from_millis(400);
/// Between an attempt and the next.
const PAUSE: Duration = Duration::from_millis(120);

/// The address of a proxy at the moment; `None` while it is down.
pub type Directory = Arc<dyn Fn(usize) -> Option<SocketAddr> + Send + Sync>;

/// Reports each passage of a named point by a request on its way through this proxy.
pub type Hub = broadcast::Sender<(FaultPoint, usize)>;

/// All clients of a history. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    pub plan: Arc<Plan>,
    pub log: Log,
    pub hub: Hub,
    pub directory: Directory,
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
    /// Does all that is planned.
    pub async fn run(self) {
        let (began, mut running) = (Instant::now(), JoinSet::new());
        for client in 0..self.plan.clients.len() {
            running.spawn(self.clone().run_one(client, began));
        }
        running.join_all().await;
    }

    async fn run_one(self, client: usize, began: Instant) {
        for (nth, ask) in self.plan.clients[client].iter().enumerate() {
            sleep_until((began + Duration::from_millis(ask.at)).into()).await;
            let mut ask = ask.clone();
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
        let Some(to) = (self.directory)(ask.proxy) else {
            return Came::ForNow;
        };
        let (request, errand) = dressed(ask, nonce);
        self.log.add(Event::Sent(Sent {
            nonce: nonce.to_owned(),
            resource: key(ask.resource),
            token: ask.token,
            proxy: ask.proxy,
            errand,
        }));
        let patience = match ask.conduct {
            Conduct::Drip => PATIENCE + DROPS * DROP,
            _ => PATIENCE,
        };
        let why = match timeout(patience, self.exchange(ask, nonce, to, &request)).await {
            Ok(Ok(came)) => return came,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {patience:?}"),
        };
        self.left(nonce, &why);
        Came::ForNow
    }

    fn left(&self, nonce: &str, why: &str) {
        self.log.add(Event::Left(format!("{nonce} {why}")));
    }

    /// Pauses or dies where that is planned, in the middle of this part; `true`: it is dead, and
    /// its connection is to be reset.
    async fn interrupt(&self, ask: &PlannedRequest, nonce: &str, part: Part) -> bool {
        match ask.conduct {
            Conduct::Pause(at, millis) if at == part => {
                self.log.note(format!("client: pauses: {part:?}"));
                sleep(Duration::from_millis(millis)).await;
            }
            Conduct::Die(at) if at == part => {
                self.left(nonce, &format!("client: dies: {part:?}"));
                return true;
            }
            _ => {}
        }
        false
    }

    async fn exchange(
        &self,
        ask: &PlannedRequest,
        nonce: &str,
        to: SocketAddr,
        request: &Request,
    ) -> std::io::Result<Came> {
        let mut wire = connect(to, ask.conduct).await?;
        let head = request.head_bytes();
        let (half, rest) = head.split_at(head.len() / 2);
        wire.send(half).await?;
        if self.interrupt(ask, nonce, Part::Head).await {
            wire.end_by_reset();
            return Ok(Came::Over);
        }
        wire.send(rest).await?;
        // A client that is refused early may find the connection closed for its body; the answer
        // counts.
        let sent = self.body(ask, nonce, &mut wire).await;
        if let Ok(true) = sent {
            wire.end_by_reset();
            return Ok(Came::Over);
        }
        if let Conduct::Leave(pause) = ask.conduct {
            let answered = timeout(Duration::from_millis(pause), wire.fill()).await;
            if answered.is_err() {
                drop(wire);
                self.left(nonce, "client: leaves before the answer");
                return Ok(Came::Over);
            }
        }
        match self.answer(ask, nonce, Exchange::over(wire, request)).await {
            Err(error) => Err(sent.err().unwrap_or(error)),
            came => came,
        }
    }

    /// Sends the body; `true`: the client has died in the middle of it.
    async fn body(
        &self,
        ask: &PlannedRequest,
        nonce: &str,
        wire: &mut Wire,
    ) -> std::io::Result<bool> {
        if ask.size == 0 {
            return Ok(false);
        }
        let bytes = vec![b'x'; ask.size];
        let (first, mut second) = bytes.split_at(ask.size / 2);
        let framed = |part: &[u8]| {
            if ask.chunked {
                chunk(part)
            } else {
                part.to_vec()
            }
        };
        wire.send(&framed(first)).await?;
        if ask.size <= BUFFER && matches!(ask.conduct, Conduct::Pause(Part::Body, _)) {
            // A buffered body is not judged before it is whole.
            let _ = self.hub.send((FaultPoint::BeforeCheck, ask.proxy));
        }
        if self.interrupt(ask, nonce, Part::Body).await {
            return Ok(true);
        }
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
        if ask.chunked {
            wire.send(b"0\r\n\r\n").await?;
        }
        Ok(false)
    }

    async fn answer(
        &self,
        ask: &PlannedRequest,
        nonce: &str,
        mut exchange: Exchange,
    ) -> std::io::Result<Came> {
        let head = exchange.head().await?;
        let framing = head.response_framing(false);
        let mut answer = Answered {
            nonce: nonce.to_owned(),
            status: head.word(1).parse().expect("a status code"),
            outcome: head.get("x-fencing-outcome").map(str::to_owned),
            mark: None,
        };
        let status = answer.status;
        let mut wire = exchange.wire;
        if let Some(outcome) = answer.outcome.clone() {
            let mut body = Vec::new();
            let read = wire
                .body(framing, |bytes| body.extend_from_slice(bytes))
                .await;
            let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
            answer.mark = problem["mark"].as_str().and_then(|mark| mark.parse().ok());
            self.log.add(Event::Answered(answer));
            read?;
            let again = matches!(status, 502..=504) || outcome == "request-timeout";
            return Ok(if again { Came::ForNow } else { Came::Over });
        }
        self.log.add(Event::Answered(answer));
        if self.interrupt(ask, nonce, Part::Response).await {
            wire.end_by_reset();
            return Ok(Came::Over);
        }
        wire.body(framing, |_| ()).await?;
        Ok(if status == 200 {
            Came::Passed
        } else {
            Came::Over
        })
    }
}

/// The head as it goes onto the wire, with a forgery or two; and what it is.
fn dressed(ask: &PlannedRequest, nonce: &str) -> (Request, Errand) {
    let id = format!("r{}", ask.resource);
    let path = format!("/orders/{id}");
    let fenced = |keyed| match ask.token {
        Some(_) => Errand::Fenced { keyed },
        None => Errand::Wrong,
    };
    let (method, path, errand) = match ask.form {
        Form::Put => ("PUT", path, fenced(true)),
        Form::Post => ("POST", path, fenced(true)),
        Form::Delete => ("DELETE", path, fenced(true)),
        Form::Get if ask.token.is_none() => ("GET", path, Errand::Unfenced),
        Form::Get => ("GET", path, fenced(false)),
        Form::Claim => ("POST", "/.well-known/fencing/claim".into(), Errand::Claim),
        Form::Ambiguous => ("PUT", format!("/orders/x/../{id}"), Errand::Wrong),
        Form::NoRoute => ("PUT", format!("/nowhere/{id}"), Errand::Wrong),
        Form::WrongMethod => ("PATCH", path, Errand::Wrong),
        Form::Malformed(method, _) => (method, path, Errand::Wrong),
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

async fn connect(to: SocketAddr, conduct: Conduct) -> std::io::Result<Wire> {
    let socket = TcpSocket::new_v4()?;
    if let Conduct::Pause(Part::Response, _) | Conduct::Die(Part::Response) = conduct {
        // So that the proxy notices that nobody reads.
        socket.set_recv_buffer_size(4 << 10)?;
    }
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(Wire::new(Io::Tcp(stream)))
}
