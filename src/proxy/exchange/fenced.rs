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
//! sent of the request ([`taken`](crate::upstream::taken)). In every other case (a break, a
//! timeout, a reset, a panic) the permit is dropped, and counts as an unknown outcome. Before that,
//! the drop of the connection resets it, so that nothing more of the request arrives and the outcome
//! settles from then on.

use http::StatusCode;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::open::{Answered, FenceTerms, OpenExchange, Unanswered, hand_on};
use super::reply::ResponseWatch;
use super::{Outlives, SpawnOnDrop};
use crate::fencing::permit::Permit;
use crate::fencing::{Refused, Undecided};
use crate::metrics::Outcome;
use crate::proxy::answer::Forwarded;
use crate::proxy::limits::InFlightPermit;
use crate::proxy::refusal::Refusal;
use crate::proxy::upstream_request::{Exchange, unanswered};
use crate::upstream::{Reserved, SendError, Upstream};

/// Sends one request under its permit, and returns the head of the upstream's response with a
/// streaming body. Dropping this future does not end an exchange that has begun, and dropping the
/// body ends none.
pub(in crate::proxy) async fn forward(
    permit: Permit,
    exchange: Box<Exchange>,
    terms: FenceTerms,
    held: InFlightPermit,
    tasks: &TaskTracker,
) -> Result<Forwarded, Refusal> {
    let reserved = match reserve(&terms.context.snapshot.upstream, &permit).await {
        Ok(reserved) => reserved,
        Err(refusal) => return Err(unanswered(exchange.span, refusal)),
    };
    // Dropped behind the spawn below: a stop waits for the exchange without a gap.
    let mut followed = SpawnOnDrop::new(follow(permit, reserved, exchange, terms, held), tasks);
    match (&mut followed).await {
        Some(Ok(answered)) => {
            if let Some(rest) = answered.rest {
                tasks.spawn(rest);
            }
            Ok(answered.forwarded)
        }
        Some(Err(unanswered)) => Err(unanswered.refusal),
        None => Err(Refusal::Broken("the exchange was aborted".into())),
    }
}

/// Follows an exchange from its first step to the head of its answer, and further if that came
/// whole.
async fn follow(
    permit: Permit,
    reserved: Reserved,
    exchange: Box<Exchange>,
    terms: FenceTerms,
    held: InFlightPermit,
) -> Result<Answered, Unanswered> {
    if let Some(name) = &terms.spend
        && let Err(refusal) = spend(&permit, name).await
    {
        drop(permit);
        let refusal = unanswered(exchange.span, refusal);
        return Err(Unanswered { refusal, terms });
    }
    let open = OpenExchange {
        sending: permit.begin(),
        counted: (terms.route.metrics.in_flight(), held),
        terms,
    };
    let (began, timeout) = (Instant::now(), open.terms.route.settings.upstream_timeout);
    let upstream = &open.terms.context.snapshot.upstream;
    let answered = tokio::select! {
        // Biased: the first poll sends a request that is in one piece. Its end is then known
        // before the deadline is polled, so its upload needs no timer and wakes no other task. The
        // future is dropped before the permit ends.
        biased;
        answered = upstream.send(reserved, exchange.request, false) => answered.map_err(|error| {
            let without_effect = matches!(error, SendError::NotSent(_));
            (Refusal::from(error), without_effect)
        }),
        () = open.terms.progress.silent(began, timeout) => Err((Refusal::TooSlow(timeout), false)),
        refusal = open.cut() => Err((refusal, false)),
    };
    let response = match answered {
        Ok(response) => response,
        Err((refusal, without_effect)) => {
            let refusal = unanswered(exchange.span, refusal);
            return Err(if without_effect {
                open.without_effect(refusal).await
            } else {
                open.broken(refusal)
            });
        }
    };
    let (status, terms) = (response.status(), &open.terms);
    let metrics = &terms.route.metrics;
    let watch = ResponseWatch::begin(
        metrics,
        began,
        status,
        &terms.context.upstream,
        exchange.span,
    );
    if status == StatusCode::SWITCHING_PROTOCOLS {
        // Nobody has asked for it: a fenced request opens no tunnel.
        drop(response);
        let cause = "the upstream switched protocols unasked";
        return Err(open.broken(Refusal::Broken(cause.into())));
    }
    hand_on(open, response, watch).await
}

/// Reserves a connection upstream. The permit delays newer tokens meanwhile, so the wait
/// ends as soon as one is known.
async fn reserve(upstream: &Upstream, permit: &Permit) -> Result<Reserved, Refusal> {
    let reserved = tokio::select! {
        // Biased: mostly a connection is there, and nothing else need be waited for.
        biased;
        reserved = upstream.reserve(permit.incarnation()) => reserved?,
        () = permit.superseded().cancelled() => return Err(superseded(permit)),
        () = permit.cutoff().cancelled() => return Err(cut_off()),
    };
    if permit.cutoff().is_cancelled() {
        return Err(cut_off());
    }
    if permit.superseded().is_cancelled() {
        return Err(superseded(permit));
    }
    Ok(reserved)
}

/// The exchange was not begun before the lease ended.
fn cut_off() -> Refusal {
    Refused::unavailable(Undecided::ClosedUnsent).into()
}

fn superseded(permit: &Permit) -> Refusal {
    let superseded = permit.fencing().superseded(permit.key(), permit.token());
    superseded.into()
}

/// Spends the permit's token (`reuse: once`) under `name`. If the store does not answer, the token
/// counts as spent, and the answer to the client says so.
async fn spend(permit: &Permit, name: &str) -> Result<(), Refusal> {
    let spent = permit
        .fencing()
        .spend(permit.key(), permit.token(), name)
        .await;
    spent.map_err(|refused| match refused {
        Refused::Unavailable { .. } => Refusal::from(refused).and_spent(),
        decided => decided.into(),
    })?;
    if permit.superseded().is_cancelled() {
        // The token is stale now, spent or not.
        return Err(superseded(permit));
    }
    Ok(())
}

impl Outlives for Result<Answered, Unanswered> {
    async fn finish(self) {
        match self {
            Ok(Answered { forwarded, rest }) => {
                // First: what reads the rest must see that its client has left.
                drop(forwarded);
                if let Some(rest) = rest {
                    rest.await;
                }
            }
            // Its client is not there to get the refusal: an unknown outcome is reported here.
            Err(Unanswered { refusal, terms }) if refusal.outcome() == Outcome::OutcomeUnknown => {
                terms.ended(None, Some(&refusal));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
