//! One exchange with the upstream: [under a permit](fenced), or [without](unfenced).

mod client_side;
pub(crate) mod conclusion;
mod cuts;
pub(crate) mod fenced;
mod open;
mod relay;
mod reserve;
mod task;
pub(crate) mod unfenced;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::oneshot;

use self::conclusion::Conclusion;
use super::access_log::AccessClock;
use super::body::{ClientBody, MemoryShare, UploadProgress};
use super::headers::via::Via;
use super::message::{Response, UpstreamRequest};
use super::refusal::Refusal;
use super::tunnel::TunnelOpening;
use super::upstream::Upstream;
use crate::metrics::{Outcome, RouteMetrics};
use crate::traces::UpstreamSpan;

/// An exchange that is ready to begin.
pub(crate) struct Exchange<G> {
    pub request: UpstreamRequest,
    /// `None`: the request is not traced.
    pub span: Option<UpstreamSpan>,
    /// The tunnel that it asks for.
    pub opening: Option<TunnelOpening>,
    /// From the last byte of the request to the response head.
    pub timeout: Duration,
    /// The name of this process in `Via`.
    pub via: Via,
    pub clock: Option<AccessClock>,
    /// Held until the exchange is over: the request's in-flight permit.
    pub held: G,
}

/// The terms of a fenced exchange.
pub(crate) struct FenceTerms<E> {
    pub upstream: Arc<Upstream>,
    pub metrics: Arc<RouteMetrics>,
    /// Tells when nothing more of the request's body will be sent. The time for the response's head
    /// runs from then on.
    pub progress: Arc<UploadProgress>,
    pub limits: ExchangeLimits,
    /// Which responses end it.
    pub conclusion: Conclusion,
    /// `reuse: once`: the name to spend the permit's token under before the send.
    pub spend: Option<String>,
    /// For the part of the response that is kept for its client.
    pub memory: MemoryShare,
    /// Counts the request, and logs an unknown outcome: see [`Ended`].
    pub ended: E,
}

/// Called when an exchange has ended that was answered, or whose outcome its client was not there to
/// get. It gets the status of the answer, and the reason if the outcome is unknown.
pub(crate) trait Ended:
    FnOnce(Option<StatusCode>, Option<Refusal>) + Send + 'static
{
}

impl<E: FnOnce(Option<StatusCode>, Option<Refusal>) + Send + 'static> Ended for E {}

/// The limits of one fenced exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeLimits {
    /// From the last byte of the request to the response head.
    pub timeout: Duration,
    /// For the upload as a whole.
    pub upload: Duration,
    /// From the moment a newer token is known to the end of the exchange.
    pub grace: Duration,
}

/// The answer of the upstream.
#[derive(Debug)]
pub(crate) struct Answered {
    pub response: Response<ClientBody>,
    /// The outcome is unknown, though the response may come whole.
    pub in_doubt: bool,
}

/// Hands over the head of the answer, or the refusal in its place.
type HeadTx = oneshot::Sender<Result<Answered, Refusal>>;

/// Ends the span of an exchange without a response. Returns why there is none.
fn unanswered(span: Option<UpstreamSpan>, refusal: Refusal) -> Refusal {
    if let Some(span) = span {
        span.failed(refusal.outcome().as_str());
    }
    refusal
}

/// Refuses the request. If its client has left, an unknown outcome is reported here.
fn refuse(head: HeadTx, refusal: Refusal, ended: impl Ended) {
    if let Err(Err(refusal)) = head.send(Err(refusal))
        && refusal.outcome() == Outcome::OutcomeUnknown
    {
        ended(None, Some(refusal));
    }
}
