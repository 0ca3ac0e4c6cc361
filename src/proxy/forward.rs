//! One exchange with the upstream, in a task of its own that owns the permit.
//!
//! The task is not the request handler: hyper drops a handler's future when its client leaves, and an
//! exchange that has begun must be followed to its end. [`forward`] consumes the [`Permit`], so that
//! nothing fenced can be sent without one, and nothing can be sent twice.
//!
//! A request is sent only once it can go at once: over HTTP/2 a stream is reserved first. One that
//! waits for it lets go as soon as a newer token is known, or its client has left. Nothing of it has
//! been handed to anybody then.
//!
//! From [`Permit::begin`] on, the permit ends as settled when nothing was sent or the response has
//! arrived whole and is the upstream's last word ([`Conclusion`]). In every other case (a break, a
//! timeout, a reset, a panic) it is dropped, and counts as an unknown outcome. Before that, it is made
//! sure that nothing more of the request arrives ([`Hold`]): the outcome settles from then on.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::admit::Gate;
use super::body::{BoxError, ClientBody, UpstreamBody};
use super::conclusion::{Conclusion, Doubt};
use super::headers;
use super::headers::trailers::TrailerRules;
use super::headers::via::Via;
use super::memory::Share;
use super::respond::Refusal;
use super::tunnel::{End, Opening, Tunnel};
use super::upstream::{Fate, Hold, ReserveError, Reserved, ResponseBody, SendError, Upstream};
use crate::barrier::{Permit, Sending};
use crate::fence::{ResourceKey, Token};
use crate::metrics::RouteMetrics;

/// Frames between the upstream and a client that reads them, each as long as the client of the upstream reads at
/// once.
const WINDOW: usize = 2;
/// What is kept for a client that has stalled while a newer token waits; beyond it, the client's
/// response is cut, so that the newer token is not held up.
const KEPT_FOR_STALLED: usize = 1 << 20;

/// The limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From the last byte of the request to the response head.
    pub timeout: Duration,
    /// For the upload as a whole.
    pub upload: Duration,
    /// From the moment a newer token is known to the end of the exchange.
    pub drain: Duration,
}

/// An exchange that is ready to begin.
pub(crate) struct Exchange<G> {
    pub request: Request<UpstreamBody>,
    /// The tunnel that it asks for.
    pub opening: Option<Opening>,
    /// Cancelled when nothing more of the request's body will be sent.
    pub sent: CancellationToken,
    /// To be cancelled when nothing more of the request's body may be sent.
    pub cut: CancellationToken,
    pub limits: Limits,
    /// Which responses end it.
    pub conclusion: Conclusion,
    pub upstream: Arc<Upstream>,
    pub metrics: Arc<RouteMetrics>,
    /// `reuse: once`: the name to spend the permit's token under before the send.
    pub spend: Option<String>,
    /// What this process calls itself to the client.
    pub via: Via,
    /// For what is kept of the response.
    pub memory: Share,
    /// Held until the exchange is over: places, guards.
    pub held: G,
}

/// What the upstream has answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub response: Response<ClientBody>,
    /// Why the outcome is unknown though the response may come whole.
    pub doubt: Option<Doubt>,
}

type Head = oneshot::Sender<Result<Answered, Refusal>>;

/// Sends one request under its permit, and returns the upstream's response head with a body that
/// follows. Dropping this future, or the body, does not end the exchange.
pub(crate) async fn forward<G: Send + 'static>(
    permit: Permit,
    exchange: Exchange<G>,
    gate: &Gate,
    tasks: &TaskTracker,
) -> Result<Answered, Refusal> {
    let (tx, head) = oneshot::channel();
    tasks.spawn(follow(permit, exchange, gate.clone(), tx));
    head.await
        .unwrap_or_else(|_| Err(Refusal::Broken("The exchange was aborted".into())))
}

/// The whole of an exchange: get ready, send, follow the response to its end.
#[expect(
    clippy::too_many_lines,
    reason = "an exchange's life in one piece: what is dropped where decides when it counts as ended"
)]
async fn follow<G>(permit: Permit, exchange: Exchange<G>, gate: Gate, mut head: Head) {
    let Exchange {
        request,
        opening,
        sent,
        cut,
        limits,
        conclusion,
        upstream,
        metrics,
        spend,
        via,
        memory,
        held,
    } = exchange;
    let ready = Ready {
        upstream: &upstream,
        within: limits.timeout,
        spend: spend.as_deref(),
    };
    let reserved = match ready.wait(&permit, &gate, &mut head).await {
        Ok(reserved) => reserved,
        Err(refusal) => {
            drop((permit, held));
            let _ = head.send(Err(refusal));
            return;
        }
    };
    let (key, token) = (permit.key().clone(), permit.token());
    let in_flight = metrics.in_flight();
    let sending = permit.begin();
    // However this ends, an upload that still runs ends before the settling starts: it is declared later, and so
    // dropped earlier, than the permit.
    let upload = cut.drop_guard();
    let cuts = Cuts {
        superseded: sending.superseded(),
        cutoff: sending.cutoff(),
        drain: limits.drain,
    };
    let began = Instant::now();
    let (pending, hold) = reserved.send(request);
    let answered = tokio::select! {
        answered = pending.response() => answered.map_err(Failed::Unanswered),
        () = too_slow(&sent, limits) => Err(Failed::Cut(Cut::TooSlow)),
        cut = cuts.due() => Err(Failed::Cut(cut)),
    };
    let response = match answered {
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            metrics.upstream(began.elapsed(), response.status().as_u16());
            let Some(opening) = opening.filter(|opening| opening.allows(response.headers())) else {
                let why = "The upstream switched protocols unasked";
                let _ = head.send(Err(Refusal::Broken(why.into())));
                return;
            };
            let (answer, tunnel) = opening.switch(response, &via);
            let _ = head.send(Ok(Answered {
                response: answer,
                doubt: None,
            }));
            let counted = (in_flight, held);
            let ours = (hold, upload);
            return through(tunnel, sending, ours, &cuts, (&key, token), counted).await;
        }
        Ok(response) => response,
        Err(failed) => {
            drop(upload);
            let refusal = match failed.give_up(hold, &cuts).await {
                Fate::WithoutEffect => {
                    sending.settled();
                    let given = match spend {
                        Some(name) => gate.give_back(&key, token, name).await,
                        None => true,
                    };
                    failed.without_effect(!given)
                }
                Fate::Unknown => {
                    drop(sending);
                    failed.unknown(limits)
                }
            };
            drop((in_flight, held));
            let _ = head.send(Err(refusal));
            return;
        }
    };
    metrics.upstream(began.elapsed(), response.status().as_u16());
    let (mut parts, mut body) = response.into_parts();
    let doubt = conclusion.doubt(&parts);
    let trailers = headers::response_for_client(&mut parts.headers, parts.version, &via);
    parts.version = Version::default();
    let (frames, receiver) = mpsc::channel(WINDOW);
    let followed = Followed {
        frames: receiver,
        over: body.is_end_stream(),
        hint: body.size_hint(),
    };
    let response = Response::from_parts(parts, followed.boxed_unsync());
    let _ = head.send(Ok(Answered { response, doubt }));
    let mut client = Client {
        frames: Some(frames),
        kept: VecDeque::new(),
        memory,
    };
    let mut whole = pump(&mut body, &trailers, &mut client, &cuts).await;
    let mut finish = std::pin::pin!(client.finish(whole));
    let mut finished = false;
    if whole && !sent.is_cancelled() {
        (whole, finished) = upload_ends(&sent, &cuts, finish.as_mut()).await;
    }
    if whole && doubt.is_none() {
        hold.disarm();
        sending.settled();
    } else {
        // Nothing more is to arrive when the settling starts.
        drop((body, upload));
        give_up(hold, &cuts).await;
        drop(sending);
    }
    drop((in_flight, held));
    if whole && !finished {
        finish.await;
    }
}

/// What has to be done before a permit begins.
struct Ready<'a> {
    upstream: &'a Upstream,
    /// How long it may wait for the upstream.
    within: Duration,
    /// See [`Exchange::spend`].
    spend: Option<&'a str>,
}

impl Ready<'_> {
    /// Reserves the way upstream, and spends the token. The permit holds newer tokens up meanwhile, so
    /// the wait ends as soon as one is known.
    async fn wait(
        self,
        permit: &Permit,
        gate: &Gate,
        head: &mut Head,
    ) -> Result<Reserved, Refusal> {
        let superseded = permit.superseded();
        let refused = || gate.superseded(permit.key(), permit.token());
        let reserved = tokio::select! {
            biased;
            () = superseded.cancelled() => return Err(refused()),
            () = head.closed() => {
                return Err(Refusal::ClientGone("The client has left".into()));
            }
            reserved = self.upstream.reserve(permit.generation(), self.within) => {
                reserved.map_err(|error| unreserved(&error))?
            }
        };
        if let Some(name) = self.spend {
            gate.spend(permit, name).await?;
            if superseded.is_cancelled() {
                // The token is stale now, spent or not.
                return Err(refused());
            }
        }
        Ok(reserved)
    }
}

/// What a request is told that could not be sent.
pub(super) fn unreserved(error: &ReserveError) -> Refusal {
    match error {
        ReserveError::Full => Refusal::Overloaded(
            "No stream was free on the HTTP/2 connections to the upstream. Nothing was forwarded. \
             See upstream.http2_connections.",
        ),
        ReserveError::Retired => Refusal::Overloaded(
            "The configuration was reloaded while the request waited for the upstream. Nothing was \
             forwarded.",
        ),
        ReserveError::Unreachable(_) | ReserveError::Ended => Refusal::unreachable(error, false),
    }
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotSent(why) => Self::unreachable(&why, false),
            SendError::Refused(why) => Self::refused(&why, false),
            SendError::Broken(why) => {
                Self::Broken(format!("The exchange with the upstream broke: {why}"))
            }
        }
    }
}

/// Follows a tunnel to its end. Only the upstream's own end says that it is done with what it has read.
async fn through(
    tunnel: Tunnel,
    sending: Sending,
    (hold, upload): (Hold, DropGuard),
    cuts: &Cuts,
    (key, token): (&ResourceKey, Token),
    counted: impl Sized,
) {
    match tunnel.run(cuts.at_once()).await {
        End::Upstream(rest) => {
            // The tunnel has been reset.
            hold.disarm();
            sending.settled();
            drop(counted);
            rest.finish().await;
        }
        End::Cut => {
            if cuts.superseded.is_cancelled() {
                tracing::info!(
                    resource = key.as_str(),
                    token = token.to_string(),
                    "a tunnel was closed: a newer token is known"
                );
            }
            drop((hold, upload));
            drop(sending);
        }
    }
}

/// The upstream has answered early and the client still uploads: the connection still carries bytes of this
/// request. The client gets the whole answer meanwhile: it may send no more until it has read it. Says
/// whether the upload has ended by itself, and whether the client has its answer.
async fn upload_ends(
    sent: &CancellationToken,
    cuts: &Cuts,
    mut finish: Pin<&mut impl Future<Output = ()>>,
) -> (bool, bool) {
    let mut cut = std::pin::pin!(cuts.due());
    let mut finished = false;
    loop {
        tokio::select! {
            () = sent.cancelled() => return (true, finished),
            _ = &mut cut => return (false, finished),
            () = &mut finish, if !finished => finished = true,
        }
    }
}

/// Why there is no response head.
enum Failed {
    Unanswered(SendError),
    Cut(Cut),
}

impl Failed {
    /// Makes sure that nothing more of the request arrives.
    async fn give_up(&self, hold: Hold, cuts: &Cuts) -> Fate {
        if let Self::Unanswered(SendError::NotSent(_) | SendError::Refused(_)) = self {
            hold.disarm();
            return Fate::WithoutEffect;
        }
        give_up(hold, cuts).await
    }

    fn without_effect(self, spent: bool) -> Refusal {
        match self {
            Self::Unanswered(SendError::Refused(why)) => Refusal::refused(&why, spent),
            Self::Unanswered(SendError::NotSent(why) | SendError::Broken(why)) => {
                Refusal::unreachable(&why, spent)
            }
            Self::Cut(_) => {
                Refusal::unreachable(&"the connection took nothing of the request", spent)
            }
        }
    }

    fn unknown(self, limits: Limits) -> Refusal {
        match self {
            Self::Unanswered(error) => error.into(),
            Self::Cut(cut) => cut.refusal(limits),
        }
    }
}

/// Gives a request up whose lease may have ended: then there is no time to ask the upstream.
async fn give_up(hold: Hold, cuts: &Cuts) -> Fate {
    tokio::select! {
        biased;
        () = cuts.cutoff.cancelled() => Fate::Unknown,
        fate = hold.give_up() => fate,
    }
}

/// Follows the response to its end; `false` if it broke or was cut.
async fn pump(
    body: &mut ResponseBody,
    rules: &TrailerRules,
    client: &mut Client,
    cuts: &Cuts,
) -> bool {
    let cut = cuts.due();
    let mut cut = std::pin::pin!(cut);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = &mut cut => return false,
        };
        match frame {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    rules.strip(trailers);
                }
                let last = body.is_end_stream();
                if last {
                    // Whole already: the rest is between the proxy and its client.
                    client.keep_last(frame);
                    return true;
                }
                tokio::select! {
                    () = client.give(frame, &cuts.superseded) => {}
                    _ = &mut cut => return false,
                }
            }
        }
    }
}

/// Why an exchange was cut short.
enum Cut {
    Drain,
    Lease,
    TooSlow,
}

/// When an exchange is cut short, whatever its peer does.
struct Cuts {
    superseded: CancellationToken,
    cutoff: CancellationToken,
    drain: Duration,
}

impl Cuts {
    /// Resolves `drain` after a newer token is known, or when the lease has been lapsed for too long.
    async fn due(&self) -> Cut {
        let drained = async {
            self.superseded.cancelled().await;
            tokio::time::sleep(self.drain).await;
        };
        tokio::select! {
            () = drained => Cut::Drain,
            () = self.cutoff.cancelled() => Cut::Lease,
        }
    }

    /// Resolves as soon as a newer token is known: a tunnel has no end that one could wait for.
    async fn at_once(&self) {
        tokio::select! {
            () = self.superseded.cancelled() => {}
            () = self.cutoff.cancelled() => {}
        }
    }
}

impl Cut {
    fn refusal(&self, limits: Limits) -> Refusal {
        match self {
            Self::TooSlow => Refusal::TooSlow(limits.timeout),
            Self::Drain => Refusal::Broken(
                "A newer token waits, and the exchange did not end within barrier.drain".into(),
            ),
            Self::Lease => {
                Refusal::Broken("The proxy has lost its lease on the store, or is stopping".into())
            }
        }
    }
}

/// Resolves `timeout` after the request was handed over whole; an upload that does not get that far is
/// bounded by both limits together.
async fn too_slow(sent: &CancellationToken, limits: Limits) {
    let _ = tokio::time::timeout(limits.upload, sent.cancelled()).await;
    tokio::time::sleep(limits.timeout).await;
}

/// What the pump hands to the client's side.
enum Piece {
    Frame(Frame<Bytes>),
    /// The response is whole with this.
    Last(Frame<Bytes>),
    /// The response was whole.
    End,
}

fn length(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

/// The client's side of an exchange, seen from the pump.
struct Client {
    /// `None`: the client has left, or its response was cut.
    frames: Option<mpsc::Sender<Piece>>,
    /// What the client has not taken since a newer token waits.
    kept: VecDeque<Frame<Bytes>>,
    /// What is charged for it.
    memory: Share,
}

impl Client {
    /// Hands over a frame at the client's pace; once a newer token waits, at the upstream's.
    async fn give(&mut self, frame: Frame<Bytes>, superseded: &CancellationToken) {
        let Some(frames) = self.frames.clone() else {
            return;
        };
        if self.kept.is_empty() {
            tokio::select! {
                biased;
                place = frames.reserve() => {
                    match place {
                        Ok(place) => place.send(Piece::Frame(frame)),
                        Err(_) => self.frames = None,
                    }
                    return;
                }
                () = superseded.cancelled() => {}
            }
        }
        self.keep(frame);
        while !self.kept.is_empty() {
            match frames.try_reserve() {
                Ok(place) => {
                    if let Some(frame) = self.kept.pop_front() {
                        self.memory.give(length(&frame));
                        place.send(Piece::Frame(frame));
                    }
                }
                Err(mpsc::error::TrySendError::Full(())) => break,
                Err(mpsc::error::TrySendError::Closed(())) => {
                    self.frames = None;
                    break;
                }
            }
        }
        if self.memory.bytes() > KEPT_FOR_STALLED {
            self.cut();
        }
    }

    fn keep(&mut self, frame: Frame<Bytes>) {
        if self.memory.grow(length(&frame)) {
            self.kept.push_back(frame);
        } else {
            self.cut();
        }
    }

    /// Keeps the last frame of a response. It is one more at the most, and not charged: no response is cut for it.
    fn keep_last(&mut self, frame: Frame<Bytes>) {
        if self.frames.is_some() {
            self.kept.push_back(frame);
        }
    }

    fn cut(&mut self) {
        self.frames = None;
        self.kept.clear();
        self.memory.give(self.memory.bytes());
    }

    /// Hands over what is left of a `whole` response, and says that it was whole. Nobody's token waits
    /// for this.
    async fn finish(self, whole: bool) {
        let Some(frames) = self.frames.filter(|_| whole) else {
            return;
        };
        let mut kept = self.kept;
        // With its last frame, so that the request's place is free when its client sees the end.
        let end = kept.pop_back().map_or(Piece::End, Piece::Last);
        for frame in kept {
            if frames.send(Piece::Frame(frame)).await.is_err() {
                return;
            }
        }
        let _ = frames.send(end).await;
    }
}

/// The response's body as the client sees it: ends cleanly only if the upstream's did.
struct Followed {
    frames: mpsc::Receiver<Piece>,
    over: bool,
    hint: http_body::SizeHint,
}

impl Body for Followed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.over {
            return Poll::Ready(None);
        }
        match self.frames.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Piece::Frame(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Piece::Last(frame))) => {
                self.over = true;
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Piece::End)) => {
                self.over = true;
                Poll::Ready(None)
            }
            Poll::Ready(None) => {
                self.over = true;
                Poll::Ready(Some(Err("the upstream's response is incomplete".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }

    fn size_hint(&self) -> http_body::SizeHint {
        // Only at the start: hyper asks once, to frame the response as the upstream did.
        self.hint
    }
}

#[cfg(test)]
mod tests;
