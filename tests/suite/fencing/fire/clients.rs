//! The clients of one history: each sends what the plan says, one request after the other, over a
//! connection of its own each time, and behaves as the plan says; what it was answered goes to the
//! log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::TcpSocket;

use super::check::{FORGED, NONCE};
use super::hub::Hub;
use super::log::{Errand, Event, Log};
use super::plan::{BODY_MAX, BUFFER, Conduct, FaultPoint, Form, Plan, PlannedRequest, Shown};
use crate::support::wire::{Framing, Io, Wire, chunk};
use crate::support::{Request, request};

/// How long a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(3);
/// The second half of a body that comes in drops: this many of them, and this long between two. In
/// all that is longer than an outcome takes to settle, and than a death is waited for.
const DROPS: u32 = 18;
const DROP: Duration = Duration::from_millis(400);
/// Between an attempt and the next.
const PAUSE: Duration = Duration::from_millis(120);

/// Where a proxy listens at the moment; `None` while it is down.
pub type Directory = Arc<dyn Fn(usize) -> Option<SocketAddr> + Send + Sync>;

/// One client.
pub struct HistoryClient {
    pub number: usize,
    pub plan: Arc<Plan>,
    pub log: Log,
    pub began: Instant,
    pub hub: Arc<Hub>,
    pub directory: Directory,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Done, or refused for good.
    Done,
    /// Refused for now, or broken.
    ForNow,
    /// The client has left.
    Gone,
}

/// The name of a resource, in paths and as a key.
pub fn resource(number: usize) -> String {
    format!("r{number}")
}

impl HistoryClient {
    /// Does all that is planned.
    pub async fn run(self) {
        for (nth, ask) in self.plan.clients[self.number].iter().enumerate() {
            let at = self.began + ask.at;
            tokio::time::sleep_until(at.into()).await;
            for attempt in 0..=ask.retries {
                let nonce = format!("c{}-{nth}-{attempt}", self.number);
                // A client's bad manners are for its first attempt.
                let conduct = if attempt == 0 {
                    ask.conduct
                } else {
                    Conduct::Plain
                };
                if self.attempt(ask, conduct, &nonce).await != Came::ForNow {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn attempt(&self, ask: &PlannedRequest, conduct: Conduct, nonce: &str) -> Came {
        let Some(to) = (self.directory)(ask.proxy) else {
            return Came::ForNow;
        };
        let (request, errand) = dressed(ask, nonce);
        self.log.add(Event::Sent {
            nonce: nonce.to_owned(),
            resource: format!("order:{}", resource(ask.resource)),
            token: match ask.token {
                Shown::Token(token) => Some(token),
                Shown::None | Shown::Malformed(_) => None,
            },
            proxy: ask.proxy,
            errand,
        });
        let exchange = self.exchange(ask, conduct, nonce, to, &request);
        let patience = match conduct {
            Conduct::Drip => PATIENCE + DROPS * DROP,
            _ => PATIENCE,
        };
        let why = match tokio::time::timeout(patience, exchange).await {
            Ok(Ok(came)) => return came,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {patience:?}"),
        };
        self.left(nonce, why);
        Came::ForNow
    }

    async fn pause(&self, of: &str, millis: u64) {
        self.log.note(format!("pauses in the middle of the {of}"));
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    fn left(&self, nonce: &str, why: impl Into<String>) {
        let (nonce, why) = (nonce.to_owned(), why.into());
        self.log.add(Event::Left { nonce, why });
    }

    async fn exchange(
        &self,
        ask: &PlannedRequest,
        conduct: Conduct,
        nonce: &str,
        to: SocketAddr,
        request: &Request,
    ) -> std::io::Result<Came> {
        let pausing = matches!(conduct, Conduct::ReadStall(_) | Conduct::ReadKill);
        let mut wire = connect(to, pausing).await?;
        let head = request.head_bytes();
        let (half, rest) = head.split_at(head.len() / 2);
        wire.send(half).await?;
        match conduct {
            Conduct::HeadStall(pause) => self.pause("head", pause).await,
            Conduct::HeadKill => {
                wire.reset();
                self.left(nonce, "killed in the middle of the head");
                return Ok(Came::Gone);
            }
            _ => {}
        }
        wire.send(rest).await?;
        // A client that is refused early may find the connection closed for its body; the answer
        // counts.
        let sent = self.body(ask, conduct, &mut wire).await;
        if let Conduct::BodyKill = conduct
            && ask.size > 0
        {
            wire.reset();
            self.left(nonce, "killed in the middle of the body");
            return Ok(Came::Gone);
        }
        if let Conduct::Leave(pause) = conduct {
            let answered = tokio::time::timeout(Duration::from_millis(pause), wire.fill()).await;
            if answered.is_err() {
                drop(wire);
                self.left(nonce, "left before the answer");
                return Ok(Came::Gone);
            }
        }
        match self.answer(conduct, nonce, wire).await {
            Err(error) => Err(sent.err().unwrap_or(error)),
            came => came,
        }
    }

    async fn body(
        &self,
        ask: &PlannedRequest,
        conduct: Conduct,
        wire: &mut Wire,
    ) -> std::io::Result<()> {
        let bytes = vec![b'x'; ask.size];
        let (first, second) = bytes.split_at(ask.size / 2);
        let framed = |part: &[u8]| {
            if ask.chunked && !part.is_empty() {
                chunk(part)
            } else {
                part.to_vec()
            }
        };
        wire.send(&framed(first)).await?;
        match conduct {
            Conduct::BodyStall(pause) if ask.size > 0 => {
                if ask.size <= BUFFER {
                    // A buffered body is not judged before it is whole.
                    self.hub.pass(FaultPoint::BeforeCheck, ask.proxy);
                }
                self.pause("body", pause).await;
            }
            Conduct::BodyKill => return Ok(()),
            Conduct::Drip => {
                let (drops, last) = second.split_at(second.len() / 2);
                self.log.note("a body in drops");
                for drop in drops.chunks(drops.len().div_ceil(DROPS as usize)) {
                    wire.send(&framed(drop)).await?;
                    tokio::time::sleep(DROP).await;
                }
                return wire.send(&framed(last)).await;
            }
            _ => {}
        }
        wire.send(&framed(second)).await?;
        if ask.chunked && ask.size > 0 {
            wire.send(b"0\r\n\r\n").await?;
        }
        Ok(())
    }

    async fn answer(&self, conduct: Conduct, nonce: &str, mut wire: Wire) -> std::io::Result<Came> {
        let head = loop {
            let head = wire.head().await?;
            let head = head.ok_or(std::io::ErrorKind::UnexpectedEof)?;
            if !head.word(1).starts_with('1') {
                break head;
            }
        };
        let status: u16 = head.word(1).parse().expect("a status code");
        let outcome = head.get("x-fencing-outcome").map(str::to_owned);
        let framing = head.response_framing(false);
        let own = outcome.is_some();
        let answered = |mark| {
            self.log.add(Event::Answered {
                nonce: nonce.to_owned(),
                status,
                outcome: outcome.clone(),
                mark,
            });
        };
        if own {
            let mut body = Vec::new();
            let read = wire
                .body(framing, |bytes| body.extend_from_slice(bytes))
                .await;
            let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
            answered(problem["mark"].as_str().and_then(|mark| mark.parse().ok()));
            read?;
            let again =
                matches!(status, 502..=504) || outcome.as_deref() == Some("request-timeout");
            return Ok(if again { Came::ForNow } else { Came::Done });
        }
        answered(None);
        self.read_on(conduct, nonce, wire, framing).await
    }

    /// The body of the upstream's answer.
    async fn read_on(
        &self,
        conduct: Conduct,
        nonce: &str,
        mut wire: Wire,
        framing: Framing,
    ) -> std::io::Result<Came> {
        match conduct {
            Conduct::ReadKill => {
                wire.reset();
                self.left(nonce, "killed in the middle of the response");
                return Ok(Came::Gone);
            }
            Conduct::ReadStall(pause) => self.pause("response", pause).await,
            _ => {}
        }
        wire.body(framing, |_| ()).await?;
        Ok(Came::Done)
    }
}

/// The head as it goes onto the wire, with a forgery or two; and what it is.
fn dressed(ask: &PlannedRequest, nonce: &str) -> (Request, Errand) {
    let path = format!("/orders/{}", resource(ask.resource));
    let fenced = |keyed| match ask.token {
        Shown::Token(_) => Errand::Fenced { keyed },
        Shown::None | Shown::Malformed(_) => Errand::Wrong,
    };
    let (method, path, errand) = match ask.form {
        Form::Put => ("PUT", path, fenced(true)),
        Form::Post => ("POST", path, fenced(true)),
        Form::Delete => ("DELETE", path, fenced(true)),
        Form::Get if ask.token == Shown::None => ("GET", path, Errand::Unfenced),
        Form::Get => ("GET", path, fenced(false)),
        Form::Claim => (
            "POST",
            "/.well-known/fencing/claim".to_owned(),
            Errand::Claim,
        ),
        Form::Ambiguous => (
            "PUT",
            format!("/orders/x/../{}", resource(ask.resource)),
            Errand::Wrong,
        ),
        Form::NoRoute => (
            "PUT",
            format!("/nowhere/{}", resource(ask.resource)),
            Errand::Wrong,
        ),
        Form::WrongMethod => ("PATCH", path, Errand::Wrong),
        Form::TooLarge => ("PUT", path, Errand::Wrong),
    };
    let mut made = request(method, &path).header(NONCE, nonce);
    made = match ask.token {
        Shown::Token(token) => made.token(token),
        Shown::None => made,
        Shown::Malformed(text) => made.token(text),
    };
    if ask.form == Form::Claim {
        let target = format!("PUT /orders/{}", resource(ask.resource));
        made = made.header("X-Fencing-Target", target);
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

async fn connect(to: SocketAddr, pausing: bool) -> std::io::Result<Wire> {
    let socket = TcpSocket::new_v4()?;
    if pausing {
        // So that the proxy notices that nobody reads.
        socket.set_recv_buffer_size(4 << 10)?;
    }
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(Wire::new(Io::Tcp(stream)))
}

/// A small write that is to pass in the end; whether it did.
pub async fn probe(
    log: &Log,
    to: SocketAddr,
    proxy: usize,
    nonce: &str,
    of: usize,
    token: u64,
) -> bool {
    let path = format!("/orders/{}", resource(of));
    log.add(Event::Sent {
        nonce: nonce.to_owned(),
        resource: format!("order:{}", resource(of)),
        token: Some(token),
        proxy,
        errand: Errand::Fenced { keyed: true },
    });
    let put = request("PUT", &path).header(NONCE, nonce).token(token);
    let answer = tokio::time::timeout(PATIENCE, put.attempt(to)).await;
    let Ok(Ok(answer)) = answer else {
        let (nonce, why) = (nonce.to_owned(), "no whole answer".to_owned());
        log.add(Event::Left { nonce, why });
        return false;
    };
    let (status, outcome) = (answer.status(), answer.outcome().map(str::to_owned));
    let passed = status == 200 && outcome.is_none();
    let mark = outcome.as_ref().and_then(|_| {
        let problem: Value = serde_json::from_slice(&answer.body).ok()?;
        problem["mark"].as_str()?.parse().ok()
    });
    log.add(Event::Answered {
        nonce: nonce.to_owned(),
        status,
        outcome,
        mark,
    });
    passed
}
