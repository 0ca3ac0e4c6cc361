//! [`ResponseWatch`]: measures and traces a response of the upstream, from its head to its end.

use http::StatusCode;
use tokio::time::Instant;

use super::access_log::{self, AccessClock};
use crate::metrics::{ResponseTimer, RouteMetrics};
use crate::traces::UpstreamSpan;

/// A response that has begun. Dropped without [`Self::end`], it was incomplete.
#[must_use = "the response ends where this is dropped"]
#[derive(Debug)]
pub(crate) struct ResponseWatch {
    _timer: ResponseTimer,
    span: Option<UpstreamSpan>,
}

impl ResponseWatch {
    /// The head of the response has arrived, for a request that was sent at `sent`.
    pub(super) fn begin(
        metrics: &RouteMetrics,
        sent: Instant,
        status: StatusCode,
        clock: Option<&AccessClock>,
        mut span: Option<UpstreamSpan>,
    ) -> Self {
        access_log::answered(clock, sent);
        if let Some(span) = &mut span {
            span.answered(status.as_u16());
        }
        Self {
            _timer: metrics.upstream(sent, status.as_u16()),
            span,
        }
    }

    /// The response has ended, whole or not.
    pub(crate) fn end(mut self, whole: bool) {
        if whole && let Some(span) = &mut self.span {
            span.whole();
        }
    }
}
