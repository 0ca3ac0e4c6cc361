//! How a request is counted, and where.

use std::sync::Arc;

use http::Response;

use super::conclusion::Doubt;
use super::reply::ClientBody;
use super::table::{Route, RoutingTable};
use crate::metrics::{CLAIM, Outcome, RouteMetrics, UNMATCHED};

/// A request that was answered by the upstream, or a claim that was granted.
pub(super) struct Forwarded {
    pub response: Response<ClientBody>,
    pub counted: CountAs,
}

/// How a request is counted.
pub(super) enum CountAs {
    Outcome(Outcome),
    /// It was sent and answered, and the answer leaves open what became of it.
    InDoubt(Doubt),
    /// The check beside its exchange counts it.
    Beside,
}

/// Where a request is counted.
pub(super) enum Scope {
    /// `None`: no route matched.
    Route(Option<Arc<Route>>),
    Claims,
}

impl Scope {
    /// The series, and the label.
    pub(super) fn series<'a>(&'a self, table: &'a RoutingTable) -> (&'a RouteMetrics, &'a str) {
        match self {
            Self::Route(Some(route)) => (&route.metrics, &route.settings.label),
            Self::Route(None) => (&table.unmatched_metrics, UNMATCHED),
            Self::Claims => (&table.claim_metrics, CLAIM),
        }
    }
}
