//! The metrics and the log line of an answer. [`ResponseWatch`] measures the upstream's response. The
//! line (`log.access`) is written when the client has taken the answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use crate::config::AccessLog;
use crate::metrics::{Outcome, ResponseTimer, RouteMetrics};
use crate::rejections::RequestText;
use crate::traces::UpstreamSpan;

/// The times of one request. It goes with the request to its exchange.
#[derive(Clone, Debug)]
pub(crate) struct AccessClock(Arc<AccessTimes>);

#[derive(Debug)]
struct AccessTimes {
    began: Instant,
    /// From the first byte to the upstream to the head of its response.
    upstream: OnceLock<Duration>,
}

impl AccessClock {
    /// The clock of a request that may be logged. `None`: no answered request is.
    pub(super) fn of(access: AccessLog) -> Option<Self> {
        matches!(access, AccessLog::Fenced | AccessLog::All).then(|| {
            Self(Arc::new(AccessTimes {
                began: Instant::now(),
                upstream: OnceLock::new(),
            }))
        })
    }

    /// The upstream has answered, after this time.
    pub(super) fn answered(&self, after: Duration) {
        let _ = self.0.upstream.set(after);
    }
}

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
        if let Some(clock) = clock {
            clock.answered(sent.elapsed());
        }
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

/// The line of one request. It is written when this is dropped.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    pub(super) clock: AccessClock,
    /// The route's label.
    pub(super) label: String,
    /// `None` if the check beside the exchange decides it.
    pub(super) outcome: Option<Outcome>,
    pub(super) status: StatusCode,
    pub(super) client: Arc<str>,
    /// The resource and the token.
    pub(super) subject: Option<(String, String)>,
    pub(super) request: RequestText,
    /// Of the response's body, as far as the client has taken it.
    pub(super) bytes: u64,
    /// The client has taken all of it.
    pub(super) whole: bool,
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        let (resource, token) = self
            .subject
            .as_ref()
            .map(|(key, token)| (key, token))
            .unzip();
        let millis = |span: Duration| (span.as_secs_f64() * 1e6).round() / 1e3;
        let AccessTimes { began, upstream } = &*self.clock.0;
        tracing::info!(
            outcome = self.outcome.map(Outcome::as_str),
            status = self.status.as_u16(),
            method = self.request.method.as_deref(),
            path = self.request.path.as_deref(),
            route = self.label,
            resource,
            token,
            client = &*self.client,
            forwarded_for = self.request.forwarded_for.as_deref(),
            user_agent = self.request.user_agent.as_deref(),
            request_id = self.request.request_id.as_deref(),
            trace_id = self.request.trace_id.as_deref(),
            bytes = self.bytes,
            whole = self.whole,
            duration_ms = millis(began.elapsed()),
            upstream_ms = upstream.get().copied().map(millis),
            "answered"
        );
    }
}
