//! One route's series, looked up once, so that counting a request hashes no label.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};
use tokio::time::Instant;

use super::families::{ByLabel, Families};
use super::labels::{CodeClass, DecidedBy, Outcome};

/// The handles of one route.
#[derive(Debug)]
pub struct RouteMetrics {
    requests: ByLabel<Outcome, IntCounter>,
    stale: ByLabel<DecidedBy, IntCounter>,
    gap: Histogram,
    barrier_wait: Histogram,
    waiting: IntGauge,
    in_flight: IntGauge,
    upstream_header: ByLabel<CodeClass, Histogram>,
    upstream_response: ByLabel<CodeClass, Histogram>,
    duration: Histogram,
    /// Requests that went upstream without an idempotency key because none could be made for them.
    pub keyless: IntCounter,
}

impl RouteMetrics {
    /// Makes every series of a route, at 0.
    pub(super) fn new(families: &Families, label: &str) -> Self {
        let alone = [label];
        Self {
            requests: ByLabel::of_family(&families.requests, &alone),
            stale: ByLabel::of_family(&families.stale_rejections, &alone),
            gap: families.stale_gap.with_label_values(&alone),
            barrier_wait: families.barrier_wait_seconds.with_label_values(&alone),
            waiting: families.waiting.with_label_values(&alone),
            in_flight: families.in_flight.with_label_values(&alone),
            upstream_header: ByLabel::of_family(&families.upstream_header_seconds, &alone),
            upstream_response: ByLabel::of_family(&families.upstream_response_seconds, &alone),
            duration: families.request_duration_seconds.with_label_values(&alone),
            keyless: families.idempotency_keyless.with_label_values(&alone),
        }
    }

    /// A request has ended. Called once per request, with its last outcome.
    pub fn request(&self, outcome: Outcome) {
        self.requests.of(outcome).inc();
    }

    /// The number of requests that have ended with this outcome.
    pub(super) fn requests(&self, outcome: Outcome) -> u64 {
        self.requests.of(outcome).get()
    }

    /// A stale request was refused (beside [`Self::request`]); `gap` is mark minus token.
    pub fn stale(&self, decided_by: DecidedBy, gap: u64) {
        self.stale.of(decided_by).inc();
        #[expect(clippy::cast_precision_loss, reason = "the buckets are decades wide")]
        self.gap.observe(gap as f64);
    }

    /// A request waited this long for older ones, whether or not they ended.
    pub fn barrier_wait(&self, waited: Duration) {
        self.barrier_wait.observe(waited.as_secs_f64());
    }

    /// Counts a request as waiting at the barrier for as long as the guard lives. One that need not
    /// wait touches no shared gauge.
    pub fn waiting(&self) -> InFlightGuard {
        InFlightGuard::over(&self.waiting)
    }

    /// Counts an exchange with the upstream for as long as the guard lives.
    pub fn in_flight(&self) -> InFlightGuard {
        InFlightGuard::over(&self.in_flight)
    }

    /// The head of the upstream's response has arrived, for a request that was sent at `sent`. Drop
    /// the timer at the end of the response.
    pub fn upstream(&self, sent: Instant, status: u16) -> ResponseTimer {
        let class = CodeClass::of(status);
        let header = self.upstream_header.of(class);
        header.observe(sent.elapsed().as_secs_f64());
        ResponseTimer::new(self.upstream_response.of(class), sent)
    }

    /// Measures a request whose head arrived at `began`. Drop the timer when its answer has been
    /// taken.
    pub fn duration(&self, began: Instant) -> ResponseTimer {
        ResponseTimer::new(&self.duration, began)
    }
}

/// Measures a response, or a request with its response; dropped at the end.
#[must_use = "the response ends where this is dropped"]
#[derive(Debug)]
pub struct ResponseTimer {
    began: Instant,
    seconds: Histogram,
}

impl ResponseTimer {
    fn new(series: &Histogram, began: Instant) -> Self {
        Self {
            began,
            seconds: series.clone(),
        }
    }
}

impl Drop for ResponseTimer {
    fn drop(&mut self) {
        self.seconds.observe(self.began.elapsed().as_secs_f64());
    }
}

/// One request that a gauge counts; it counts until this is dropped.
#[must_use = "the request counts for as long as this lives"]
#[derive(Debug)]
pub struct InFlightGuard(IntGauge);

impl InFlightGuard {
    pub fn over(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
