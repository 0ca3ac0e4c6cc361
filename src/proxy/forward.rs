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
//! sure that nothing more of the request arrives ([`ExchangeHold`]): the outcome settles from then on.

mod answered;
mod client;
mod cuts;
mod limits;
mod ready;
mod relay;
mod task;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::{Request, StatusCode};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) use self::answered::Answered;
use self::answered::HeadTx;
pub(super) use self::client::Followed;
use self::cuts::{Cut, Cuts, ExchangeFailure, too_slow};
pub(crate) use self::limits::ExchangeLimits;
use self::ready::Ready;
pub(super) use self::ready::unreserved;
use self::relay::AnsweredExchange;
use self::task::SpawnOnDrop;
use super::body::UpstreamBody;
use super::conclusion::Conclusion;
use super::headers::via::Via;
use super::memory::Share;
use super::refusal::{Refusal, Why};
use super::tunnel::{Tunnel, TunnelEnd, TunnelOpening};
use super::upstream::{ExchangeHold, RequestFate, Upstream};
use crate::fencing::Fencing;
use crate::fencing::barrier::{Permit, Sending};
use crate::metrics::RouteMetrics;
use crate::routing::{ResourceKey, Token};

/// An exchange that is ready to begin.
pub(crate) struct Exchange<G> {
    pub request: Request<UpstreamBody>,
    /// The tunnel that it asks for.
    pub opening: Option<TunnelOpening>,
    /// Cancelled when nothing more of the request's body will be sent.
    pub sent: CancellationToken,
    /// To be cancelled when nothing more of the request's body may be sent.
    pub cut: CancellationToken,
    pub limits: ExchangeLimits,
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
async fn follow<G>(permit: Permit, exchange: Exchange<G>, fencing: Arc<Fencing>, mut head: HeadTx) {
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
        answered = pending.response() => answered.map_err(ExchangeFailure::Unanswered),
        () = too_slow(&sent, limits) => Err(ExchangeFailure::Cut(Cut::TooSlow)),
        cut = cuts.due() => Err(ExchangeFailure::Cut(cut)),
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
            let _ = head.send(Ok(Answered::switched(answer)));
            let counted = (in_flight, timer, held);
            let ours = (hold, upload);
            let through = through(tunnel, sending, ours, limits, (&key, token), counted);
            // It is long, and few have one.
            return Box::pin(through).await;
        }
        Ok(response) => response,
        Err(failed) => {
            drop(upload);
            let ours = (sending, hold);
            let refusal = unanswered(failed, ours, limits, (&fencing, spend), (&key, token)).await;
            drop((in_flight, held));
            let _ = head.send(Err(refusal));
            return;
        }
    };
    let timer = metrics.upstream(began, response.status().as_u16());
    let relay = AnsweredExchange {
        hold,
        upload,
        sending,
        counted: (in_flight, held),
        head,
        key,
        token,
        sent,
        limits,
        conclusion,
        via,
        memory,
    };
    relay.hand_on(response, timer).await;
}

/// Makes sure that nothing more of a request without an answer arrives, ends its permit, and says
/// what its client is told.
async fn unanswered(
    failed: ExchangeFailure,
    (sending, hold): (Sending, ExchangeHold),
    limits: ExchangeLimits,
    (fencing, spend): (&Fencing, Option<String>),
    (key, token): (&ResourceKey, Token),
) -> Refusal {
    let cuts = Cuts::of(&sending, limits);
    match failed.give_up(hold, cuts).await {
        RequestFate::WithoutEffect => {
            sending.settled();
            let given = match spend {
                Some(name) => fencing.give_back(key, token, name).await,
                None => true,
            };
            failed.without_effect(!given)
        }
        RequestFate::Unknown => {
            drop(sending);
            failed.unknown(limits)
        }
    }
}

/// Follows a tunnel to its end. Only the upstream's own end says that it is done with what it has read.
async fn through(
    tunnel: Tunnel,
    sending: Sending,
    (hold, upload): (ExchangeHold, DropGuard),
    limits: ExchangeLimits,
    (key, token): (&ResourceKey, Token),
    counted: impl Sized,
) {
    match tunnel.run(Cuts::of(&sending, limits).at_once()).await {
        TunnelEnd::Upstream(rest) => {
            // The tunnel has been reset.
            hold.disarm();
            sending.settled();
            drop(counted);
            rest.finish().await;
        }
        TunnelEnd::Cut => {
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

#[cfg(test)]
mod tests;
