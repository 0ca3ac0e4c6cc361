//! One fenced exchange, in a future of its own that owns the permit.
//!
//! A handler's future is dropped when its client leaves, but an exchange that has begun must be
//! followed to its end. So the exchange runs in its handler's task only while its client waits for
//! the answer's head. If the client leaves before that, or the answer did not come whole with its
//! head, the rest runs to its end in a spawned task ([`SpawnOnDrop`]). [`forward`] consumes the
//! [`Permit`], so that nothing fenced can be sent without one, and nothing can be sent twice.
//!
//! Nothing is queued: over HTTP/2 a connection is reserved before the request is sent. A request that
//! waits for one gives up as soon as a newer token is known or its client has left. Nothing of it has
//! been sent then.
//!
//! From [`Permit::begin`] on, the permit ends as settled in two cases. Nothing was sent. Or the
//! response has arrived whole, shows that the upstream has finished
//! ([`Conclusion`](super::conclusion::Conclusion)), and the upstream's host has acknowledged what was
//! sent of the request ([`taken`](crate::proxy::upstream::taken)). In every other case (a break, a
//! timeout, a reset, a panic) the permit is dropped, and counts as an unknown outcome. Before that,
//! the drop of the connection resets it, so that nothing more of the request arrives and the outcome
//! settles from then on.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::StatusCode;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::cuts::{Cut, ExchangeFailure, too_slow};
use super::open::OpenExchange;
use super::relay::AnsweredExchange;
use super::reserve::Ready;
use super::task::SpawnOnDrop;
use super::{Answered, Ended, Exchange, FenceTerms, HeadTx, refuse, unanswered};
use crate::fencing::Fencing;
use crate::fencing::permit::Permit;
use crate::proxy::refusal::{Refusal, Why};
use crate::proxy::response_watch::ResponseWatch;

/// Sends one request under its permit, and returns the head of the upstream's response with a
/// streaming body. Dropping this future, or the body, does not end the exchange.
pub(crate) async fn forward<G: Send + 'static, E: Ended>(
    permit: Permit,
    exchange: Exchange<G>,
    terms: FenceTerms<E>,
    fencing: &Arc<Fencing>,
    tasks: &TaskTracker,
) -> Result<Answered, Refusal> {
    let (tx, mut head) = oneshot::channel();
    let followed = follow(permit, exchange, terms, Arc::clone(fencing), tx);
    let mut exchange = SpawnOnDrop::new(followed, tasks);
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

/// Follows an exchange from its first step to its end: get ready, send, relay the response.
fn follow<G: Send + 'static, E: Ended>(
    permit: Permit,
    exchange: Exchange<G>,
    terms: FenceTerms<E>,
    fencing: Arc<Fencing>,
    mut head: HeadTx,
) -> impl Future<Output = ()> + Send + 'static {
    // Out here, so that the future holds each part once.
    let Exchange {
        request,
        span,
        opening: _,
        timeout: _,
        via,
        clock,
        held,
    } = exchange;
    async move {
        let ready = Ready {
            upstream: &terms.upstream,
            spend: terms.spend.as_deref(),
        };
        let reserved = match ready.wait(&permit, &fencing, &mut head).await {
            Ok(reserved) => reserved,
            Err(refusal) => {
                drop((permit, held));
                let _ = head.send(Err(unanswered(span, refusal)));
                return;
            }
        };
        let in_flight = terms.metrics.in_flight();
        let sending = permit.begin();
        let began = Instant::now();
        let open = OpenExchange {
            sending,
            counted: (in_flight, held),
            limits: terms.limits,
        };
        // Declared after the permit, and so dropped before it.
        let pending = reserved.send(request, false);
        let answered = tokio::select! {
            // Biased: the first poll sends a request that is in one piece. Its end is then known
            // before the deadline is polled, so its upload needs no timer and wakes no other task.
            biased;
            answered = pending.response() => answered.map_err(ExchangeFailure::Unanswered),
            () = too_slow(&terms.progress, terms.limits) => Err(ExchangeFailure::Cut(Cut::TooSlow)),
            cut = open.cuts().due() => Err(ExchangeFailure::Cut(cut)),
        };
        let response = match answered {
            Ok(response) => response,
            Err(failed) => {
                let refusal = open.unanswered(failed, &fencing, terms.spend).await;
                refuse(head, unanswered(span, refusal), terms.ended);
                return;
            }
        };
        let status = response.status();
        let watch = ResponseWatch::begin(&terms.metrics, began, status, clock.as_ref(), span);
        if status == StatusCode::SWITCHING_PROTOCOLS {
            // Nobody has asked for it: a fenced request opens no tunnel.
            drop((response, open));
            let why = Why::new("The upstream switched protocols unasked");
            refuse(head, Refusal::Broken(why), terms.ended);
            return;
        }
        let relay = AnsweredExchange {
            open,
            head,
            conclusion: terms.conclusion,
            via,
            memory: terms.memory,
            ended: terms.ended,
        };
        relay.hand_on(response, watch).await;
    }
}

#[cfg(test)]
mod tests;
