//! One exchange with the upstream: [under a permit](fenced), or [without](unfenced).

mod client_side;
pub(crate) mod conclusion;
mod cuts;
pub(crate) mod fenced;
mod open;
mod relay;
mod task;
pub(crate) mod unfenced;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use self::conclusion::Conclusion;
use super::facts::RequestFacts;
use super::headers::Via;
use super::limits::InFlightPermit;
use super::log::Noted;
use super::refusal::Refusal;
use super::routing_table::{Route, Snapshot};
use super::tunnel::TunnelOpening;
use crate::body::UploadProgress;
use crate::body::UpstreamRequest;
use crate::http1::Response;
use crate::metrics::Outcome;
use crate::proxy::client_body::ClientBody;
use crate::traces::UpstreamSpan;

/// An exchange that is ready to begin.
pub(crate) struct Exchange {
    pub request: UpstreamRequest,
    /// `None`: the request is not traced.
    pub span: Option<UpstreamSpan>,
    /// The tunnel that it asks for.
    pub opening: Option<TunnelOpening>,
    /// From the last byte of the request to the response head.
    pub timeout: Duration,
    /// The name of this process in `Via`.
    pub via: Via,
    /// Held until the exchange is over.
    pub held: InFlightPermit,
}

/// The terms of a fenced exchange.
pub(in crate::proxy) struct FenceTerms {
    pub snapshot: Arc<Snapshot>,
    pub route: Arc<Route>,
    pub facts: Arc<RequestFacts>,
    /// Tells when nothing more of the request's body will be sent. The time for the response's head
    /// runs from then on.
    pub progress: Arc<UploadProgress>,
    /// The outcome to count, if it becomes known.
    pub outcome: Outcome,
    /// See [`Conclusion`].
    pub head: bool,
    pub unsafe_method: bool,
    pub grpc: bool,
    /// `reuse: once`: the name to spend the permit's token under before the send.
    pub spend: Option<String>,
}

impl FenceTerms {
    fn limits(&self) -> ExchangeLimits {
        let settings = &self.route.settings;
        ExchangeLimits {
            timeout: settings.upstream_timeout,
            upload: settings.body.timeout,
            grace: settings.barrier_grace,
        }
    }

    fn conclusion(&self) -> Conclusion<'_> {
        Conclusion {
            unknown: &self.route.settings.unknown,
            head: self.head,
            unsafe_method: self.unsafe_method,
            grpc: self.grpc,
        }
    }

    /// An exchange has ended that was answered, or whose unknown outcome its client was not there to
    /// get: counts the request, and logs the reason if the outcome is `unknown`. `status`: of the
    /// answer.
    fn ended(&self, status: Option<StatusCode>, unknown: Option<&Refusal>) {
        let (route, facts) = (&self.route, &self.facts);
        let Some(refusal) = unknown else {
            return route.metrics.request(self.outcome);
        };
        route.metrics.request(refusal.outcome());
        let table = &self.snapshot.table;
        let noted = Noted {
            label: &route.settings.label,
            facts,
            status: Some(status.unwrap_or_else(|| refusal.status(table.style(facts.grpc)))),
            refusal,
        };
        self.snapshot.notes.note(&table.settings.log, noted);
    }
}

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

/// Ends the span of an exchange without a response. Returns why there is none.
fn unanswered(span: Option<UpstreamSpan>, refusal: Refusal) -> Refusal {
    if let Some(span) = span {
        span.failed(refusal.outcome().as_str());
    }
    refusal
}
