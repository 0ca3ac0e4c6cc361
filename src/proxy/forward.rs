//! One exchange with the upstream, in a future of its own that owns the permit.
//!
//! A handler's future is dropped when its client leaves, and an exchange that has begun must be
//! followed to its end. So the exchange runs in its handler's task only as long as its client waits
//! for the answer's head. If the client leaves before, or the answer did not come whole with its
//! head, the rest goes on in a spawned task ([`SpawnOnDrop`]): at the upstream's pace or the
//! client's, and to its end in any case. [`forward`] consumes the [`Permit`], so that nothing fenced
//! can be sent without one, and nothing can be sent twice.
//!
//! A request is sent only once it can go at once: over HTTP/2 a stream is reserved first. One that
//! waits for it lets go as soon as a newer token is known, or its client has left. Nothing of it has
//! been handed to anybody then.
//!
//! From [`Permit::begin`] on, the permit ends as settled when nothing was sent or the response has
//! arrived whole and is the upstream's last word ([`Conclusion`]). In every other case (a break, a
//! timeout, a reset, a panic) it is dropped, and counts as an unknown outcome. Before that, it is made
//! sure that nothing more of the request arrives ([`Hold`]): the outcome settles from then on.

mod client;
mod cuts;
mod ready;
mod task;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(super) use self::client::Followed;
use self::client::{AnswerFraming, Client};
use self::cuts::{Cut, Cuts, Failed, give_up, too_slow};
use self::ready::Ready;
pub(super) use self::ready::unreserved;
use self::task::SpawnOnDrop;
use super::body::{BoxError, UpstreamBody};
use super::conclusion::{Conclusion, Doubt, GrpcStatus};
use super::headers;
use super::headers::trailers::TrailerRules;
use super::headers::via::Via;
use super::memory::Share;
use super::reply::ClientBody;
use super::respond::{Refusal, Why};
use super::tunnel::{End, Opening, Tunnel};
use super::upstream::{Hold, RequestFate, ResponseBody, Upstream};
use crate::fencing::Fencing;
use crate::fencing::barrier::{Permit, Sending};
use crate::metrics::{Outcome, RouteMetrics};
use crate::routing::{ResourceKey, Token};

/// The limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From the last byte of the request to the response head.
    pub timeout: Duration,
    /// For the upload as a whole.
    pub upload: Duration,
    /// From the moment a newer token is known to the end of the exchange.
    pub grace: Duration,
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
    fencing: &Arc<Fencing>,
    tasks: &TaskTracker,
) -> Result<Answered, Refusal> {
    let (tx, mut head) = oneshot::channel();
    let mut exchange = SpawnOnDrop::new(follow(permit, exchange, Arc::clone(fencing), tx), tasks);
    poll_fn(|cx| {
        let over = exchange.poll(cx).is_ready();
        match head.try_recv() {
            Ok(answered) => Poll::Ready(answered),
            Err(TryRecvError::Empty) if !over => Poll::Pending,
            Err(_) => {
                let why = "The exchange was aborted";
                Poll::Ready(Err(Refusal::Broken(Why::new(why))))
            }
        }
    })
    .await
}

/// The whole of an exchange: get ready, send, follow the response to its end.
#[expect(
    clippy::too_many_lines,
    reason = "an exchange's life in one piece: what is dropped where decides when it counts as ended"
)]
async fn follow<G>(permit: Permit, exchange: Exchange<G>, fencing: Arc<Fencing>, mut head: Head) {
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
    let reserved = match ready.wait(&permit, &fencing, &mut head).await {
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
    let cuts = Cuts::of(&sending, limits);
    let began = Instant::now();
    let (pending, hold) = reserved.send(request);
    let answered = tokio::select! {
        // What is sent in one piece has no deadline to register, and wakes nobody here.
        biased;
        answered = pending.response() => answered.map_err(Failed::Unanswered),
        () = too_slow(&sent, limits) => Err(Failed::Cut(Cut::TooSlow)),
        cut = cuts.due() => Err(Failed::Cut(cut)),
    };
    let response = match answered {
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let timer = metrics.upstream(began, response.status().as_u16());
            let Some(opening) = opening.filter(|opening| opening.allows(response.headers())) else {
                let why = "The upstream switched protocols unasked";
                let _ = head.send(Err(Refusal::Broken(Why::new(why))));
                return;
            };
            let (answer, tunnel) = opening.switch(response, &via);
            let _ = head.send(Ok(Answered {
                response: answer,
                doubt: None,
            }));
            let counted = (in_flight, timer, held);
            let ours = (hold, upload);
            let through = through(tunnel, sending, ours, limits, (&key, token), counted);
            // It is long, and few have one.
            return Box::pin(through).await;
        }
        Ok(response) => response,
        Err(failed) => {
            drop(upload);
            let refusal = match failed.give_up(hold, cuts).await {
                RequestFate::WithoutEffect => {
                    sending.settled();
                    let given = match spend {
                        Some(name) => fencing.give_back(&key, token, name).await,
                        None => true,
                    };
                    failed.without_effect(!given)
                }
                RequestFate::Unknown => {
                    drop(sending);
                    failed.unknown(limits)
                }
            };
            drop((in_flight, held));
            let _ = head.send(Err(refusal));
            return;
        }
    };
    let timer = metrics.upstream(began, response.status().as_u16());
    let (mut parts, mut body) = response.into_parts();
    let mut later = conclusion.in_trailers(&parts);
    let last = |later: &GrpcStatus| later.doubt().filter(|_| body.is_end_stream());
    let doubt = conclusion
        .doubt(&parts)
        .or_else(|| later.as_ref().and_then(last));
    let trailers = headers::response_for_client(&mut parts.headers, parts.version, &via);
    parts.version = Version::default();
    let framing = AnswerFraming::of(&body);
    let answered = |body| Answered {
        response: Response::from_parts(parts, ClientBody::followed(body)),
        doubt,
    };
    // While the client still uploads, it gets the answer as it comes.
    let first = if sent.is_cancelled() {
        first_frame(&mut body).await
    } else {
        Poll::Pending
    };
    let mut reading = Relay {
        body: &mut body,
        rules: &trailers,
        later: &mut later,
    };
    let (mut whole, left) = match reading.at_once(first) {
        Ok(frame) => {
            let answered = answered(Followed::whole(framing, frame));
            (true, Remainder::Answer(head, answered))
        }
        Err(first) => {
            let (mut client, followed) = client::way(framing, memory);
            let _ = head.send(Ok(answered(followed)));
            let whole = reading.pump(first, &mut client, cuts).await;
            (whole, Remainder::Frames(client))
        }
    };
    drop(timer);
    let mut finish = std::pin::pin!(left.finish(whole));
    let mut finished = false;
    let early = !sent.is_cancelled();
    if whole && early {
        (whole, finished) = upload_ends(&sent, cuts, limits, finish.as_mut()).await;
    }
    let told = later.and_then(|status| status.doubt());
    let told = told.filter(|_| whole && doubt.is_none());
    if let Some(doubt) = told {
        say_unknown(&key, token, doubt);
    }
    if whole && doubt.is_none() && told.is_none() {
        hold.disarm();
        sending.settled();
        // Its stream is free before its client has taken the answer.
        drop(body);
    } else {
        drop((body, upload));
        if whole && !early {
            // All of the request was there before the answer, and nothing is wrong with the connection.
            hold.disarm();
        } else {
            // Nothing more is to arrive when the settling starts.
            give_up(hold, cuts).await;
        }
        drop(sending);
    }
    drop((in_flight, held));
    if whole && !finished {
        finish.await;
    }
}

/// The trailers have told what the head had not: the request is counted and logged by its head.
fn say_unknown(key: &ResourceKey, token: Token, doubt: Doubt) {
    tracing::warn!(
        outcome = Outcome::OutcomeUnknown.as_str(),
        resource = key.as_str(),
        token = token.to_string(),
        reason = doubt.to_string(),
        "the outcome is unknown"
    );
}

/// Follows a tunnel to its end. Only the upstream's own end says that it is done with what it has read.
async fn through(
    tunnel: Tunnel,
    sending: Sending,
    (hold, upload): (Hold, DropGuard),
    limits: Limits,
    (key, token): (&ResourceKey, Token),
    counted: impl Sized,
) {
    match tunnel.run(Cuts::of(&sending, limits).at_once()).await {
        End::Upstream(rest) => {
            // The tunnel has been reset.
            hold.disarm();
            sending.settled();
            drop(counted);
            rest.finish().await;
        }
        End::Cut => {
            if sending.superseded().is_cancelled() {
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
/// request. The client gets the whole answer meanwhile: it may send no more until it has read it. An upstream
/// that takes no more of it has the time that an answer may take. Says whether the upload has ended by
/// itself, and whether the client has its answer.
async fn upload_ends(
    sent: &CancellationToken,
    cuts: Cuts<'_>,
    limits: Limits,
    mut finish: Pin<&mut impl Future<Output = ()>>,
) -> (bool, bool) {
    let mut cut = std::pin::pin!(cuts.due());
    let mut late = std::pin::pin!(tokio::time::sleep(limits.upload + limits.timeout));
    let mut finished = false;
    loop {
        tokio::select! {
            () = sent.cancelled() => return (true, finished),
            _ = &mut cut => return (false, finished),
            () = &mut late => return (false, finished),
            () = &mut finish, if !finished => finished = true,
        }
    }
}

/// What the client has not been handed yet.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for an exchange, and mostly it is the large one"
)]
enum Remainder {
    /// All of an answer that came whole with its head.
    Answer(Head, Answered),
    Frames(Client),
}

impl Remainder {
    /// Hands it over, if the response is `whole`.
    async fn finish(self, whole: bool) {
        match self {
            Self::Answer(head, answered) => {
                let _ = head.send(Ok(answered));
            }
            Self::Frames(client) => client.finish(whole).await,
        }
    }
}

type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

/// The first frame, if it is there already.
async fn first_frame(body: &mut ResponseBody) -> Poll<NextFrame> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await
}

/// A response that is being read.
struct Relay<'a> {
    body: &'a mut ResponseBody,
    rules: &'a TrailerRules,
    later: &'a mut Option<GrpcStatus>,
}

impl Relay<'_> {
    /// All of a response that is whole with its `first` frame.
    ///
    /// # Errors
    /// Yields the frame where it is not, or not yet known to be.
    fn at_once(&mut self, first: Poll<NextFrame>) -> Result<Option<Frame<Bytes>>, Poll<NextFrame>> {
        match first {
            Poll::Ready(None) => Ok(None),
            Poll::Ready(Some(Ok(mut frame))) if self.body.is_end_stream() => {
                self.strip(&mut frame);
                Ok(Some(frame))
            }
            first => Err(first),
        }
    }

    /// Takes from trailers what the client is not to have.
    fn strip(&mut self, frame: &mut Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_mut() {
            if let Some(status) = self.later {
                status.read(trailers);
            }
            self.rules.strip(trailers);
        }
    }

    /// Follows the response to its end, from its `first` frame on; `false` if it broke or was cut.
    async fn pump(
        &mut self,
        mut first: Poll<NextFrame>,
        client: &mut Client,
        cuts: Cuts<'_>,
    ) -> bool {
        let cut = cuts.due();
        let mut cut = std::pin::pin!(cut);
        loop {
            let frame = match std::mem::replace(&mut first, Poll::Pending) {
                Poll::Ready(frame) => frame,
                Poll::Pending => tokio::select! {
                    frame = self.body.frame() => frame,
                    _ = &mut cut => return false,
                },
            };
            let mut frame = match frame {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => frame,
            };
            self.strip(&mut frame);
            if self.body.is_end_stream() {
                // Whole already: the rest is between the proxy and its client.
                client.keep_last(frame);
                return true;
            }
            tokio::select! {
                () = client.give(frame, cuts.superseded) => {}
                _ = &mut cut => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests;
