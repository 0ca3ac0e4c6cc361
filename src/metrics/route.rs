//! One route's series, looked up once, so that counting a request hashes no label.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntGauge};
use tokio::time::Instant;

use super::families::Families;
use super::labels::{CodeClass, DecidedBy, Outcome};

/// The handles of one route.
#[derive(Debug)]
pub struct RouteMetrics {
    /// In the order of [`Outcome::ALL`].
    requests: Vec<IntCounter>,
    /// In the order of [`DecidedBy::ALL`].
    stale: Vec<IntCounter>,
    gap: Histogram,
    barrier_wait: Histogram,
    in_flight: IntGauge,
    /// In the order of [`CodeClass::ALL`].
    upstream_header: Vec<Histogram>,
    /// In the order of [`CodeClass::ALL`].
    upstream_response: Vec<Histogram>,
    keyless: IntCounter,
}

impl RouteMetrics {
    /// Makes every series of a route, at 0.
    pub(super) fn new(families: &Families, label: &str) -> Self {
        Self {
            requests: Outcome::ALL
                .iter()
                .map(|outcome| {
                    families
                        .requests
                        .with_label_values(&[label, outcome.as_str()])
                })
                .collect(),
            stale: DecidedBy::ALL
                .iter()
                .map(|by| {
                    families
                        .stale_rejections
                        .with_label_values(&[label, by.as_str()])
                })
                .collect(),
            gap: families.stale_gap.with_label_values(&[label]),
            barrier_wait: families.barrier_wait_seconds.with_label_values(&[label]),
            in_flight: families.in_flight.with_label_values(&[label]),
            upstream_header: by_code(&families.upstream_header_seconds, label),
            upstream_response: by_code(&families.upstream_response_seconds, label),
            keyless: families.idempotency_keyless.with_label_values(&[label]),
        }
    }

    /// A request has ended. Called once per request, with its last outcome.
    pub fn request(&self, outcome: Outcome) {
        self.requests[outcome as usize].inc();
    }

    /// A stale request was refused (beside [`Self::request`]); `gap` is mark minus token.
    pub fn stale(&self, decided_by: DecidedBy, gap: u64) {
        self.stale[decided_by as usize].inc();
        #[expect(clippy::cast_precision_loss, reason = "the buckets are decades wide")]
        self.gap.observe(gap as f64);
    }

    /// A request waited this long for older ones, whether or not they ended.
    pub fn barrier_wait(&self, waited: Duration) {
        self.barrier_wait.observe(waited.as_secs_f64());
    }

    /// Counts an exchange with the upstream for as long as the guard lives.
    pub fn in_flight(&self) -> InFlightGuard {
        self.in_flight.inc();
        InFlightGuard(self.in_flight.clone())
    }

    /// The head of the upstream's response has arrived, for a request that was sent at `sent`. Drop
    /// the timer at the end of the response.
    pub fn upstream(&self, sent: Instant, status: u16) -> ResponseTimer {
        let class = CodeClass::of(status) as usize;
        self.upstream_header[class].observe(sent.elapsed().as_secs_f64());
        ResponseTimer {
            sent,
            seconds: self.upstream_response[class].clone(),
        }
    }

    /// A request went upstream without an idempotency key because none could be made for it.
    pub fn keyless(&self) {
        self.keyless.inc();
    }
}

/// The histograms of one route, in the order of [`CodeClass::ALL`].
fn by_code(family: &HistogramVec, label: &str) -> Vec<Histogram> {
    let codes = CodeClass::ALL.iter();
    codes
        .map(|class| family.with_label_values(&[label, class.as_str()]))
        .collect()
}

/// Measures a response; dropped at its end.
#[must_use = "the response ends where this is dropped"]
#[derive(Debug)]
pub struct ResponseTimer {
    sent: Instant,
    seconds: Histogram,
}

impl Drop for ResponseTimer {
    fn drop(&mut self) {
        self.seconds.observe(self.sent.elapsed().as_secs_f64());
    }
}

/// One exchange in flight; it ends when this is dropped.
#[must_use = "the exchange counts as in flight for as long as this lives"]
#[derive(Debug)]
pub struct InFlightGuard(IntGauge);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
