//! One route's series, looked up once, so that counting a request hashes no label.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

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
    upstream: Vec<Histogram>,
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
            upstream: CodeClass::ALL
                .iter()
                .map(|class| {
                    families
                        .upstream_seconds
                        .with_label_values(&[label, class.as_str()])
                })
                .collect(),
            keyless: families.idempotency_keyless.with_label_values(&[label]),
        }
    }

    /// A request has ended. Once per request, with the last thing that became of it.
    pub fn request(&self, outcome: Outcome) {
        self.requests[outcome as usize].inc();
    }

    /// A stale request was refused (beside [`Self::request`]); `gap` is mark minus token.
    pub fn stale(&self, decided_by: DecidedBy, gap: u64) {
        self.stale[decided_by as usize].inc();
        #[expect(clippy::cast_precision_loss, reason = "the buckets are decades wide")]
        self.gap.observe(gap as f64);
    }

    /// A request waited so long for older ones, in vain or not.
    pub fn barrier_wait(&self, waited: Duration) {
        self.barrier_wait.observe(waited.as_secs_f64());
    }

    /// Counts an exchange with the upstream for as long as the guard lives.
    pub fn in_flight(&self) -> InFlightGuard {
        self.in_flight.inc();
        InFlightGuard(self.in_flight.clone())
    }

    /// The upstream answered with this status, in this time.
    pub fn upstream(&self, took: Duration, status: u16) {
        self.upstream[CodeClass::of(status) as usize].observe(took.as_secs_f64());
    }

    /// A request went upstream without an idempotency key because none could be made for it.
    pub fn keyless(&self) {
        self.keyless.inc();
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
