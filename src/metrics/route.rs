//! One route's series, looked up once, so that counting a request hashes no label.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{Histogram, HistogramVec, IntCounter, IntGauge};
use tokio::time::Instant;

use super::families::{ByLabel, Families, FromFirst};
use super::labels::{CodeClass, DecidedBy, Label as _, Outcome};
use crate::config::Mode;

/// The handles of one route.
#[derive(Debug)]
pub struct RouteMetrics {
    /// In the order of [`Outcome::ALL`].
    requests: Vec<FromFirst<IntCounter>>,
    stale: ByLabel<DecidedBy, IntCounter>,
    gap: FromFirst<Histogram>,
    barrier_wait: FromFirst<Histogram>,
    waiting: IntGauge,
    in_flight: IntGauge,
    upstream_header: FromFirst<ByLabel<CodeClass, Histogram>>,
    upstream_response: FromFirst<ByLabel<CodeClass, Histogram>>,
    duration: FromFirst<Histogram>,
    /// Requests that went upstream without an idempotency key because none could be made for them.
    pub keyless: IntCounter,
}

impl RouteMetrics {
    pub(super) fn new(families: &Families, label: &str) -> Self {
        let alone = [label];
        let outcomes = Outcome::WORDS.iter();
        Self {
            requests: outcomes
                .map(|outcome| series(&families.requests, &[label, outcome]))
                .collect(),
            stale: ByLabel::of_family(&families.stale_rejections, &alone),
            gap: series(&families.stale_gap, &alone),
            barrier_wait: series(&families.barrier_wait_seconds, &alone),
            waiting: families.waiting.with_label_values(&alone),
            in_flight: families.in_flight.with_label_values(&alone),
            upstream_header: by_class(&families.upstream_header_seconds, label),
            upstream_response: by_class(&families.upstream_response_seconds, label),
            duration: series(&families.request_duration_seconds, &alone),
            keyless: families.idempotency_keyless.with_label_values(&alone),
        }
    }

    /// Makes the series that a route of this mode counts single events in, at 0.
    pub(super) fn start(&self, mode: Mode) {
        for (outcome, series) in Outcome::ALL.iter().zip(&self.requests) {
            if (mode == Mode::Observe || !outcome.is_observed()) && !outcome.is_of_an_operation() {
                LazyLock::force(series);
            }
        }
        if mode == Mode::Enforce {
            LazyLock::force(&self.gap);
            LazyLock::force(&self.barrier_wait);
        }
    }

    /// A request has ended. Called once per request, with its last outcome.
    pub fn request(&self, outcome: Outcome) {
        self.requests[outcome.index()].inc();
    }

    /// The number of requests that have ended with this outcome.
    pub(super) fn requests(&self, outcome: Outcome) -> u64 {
        let series = LazyLock::get(&self.requests[outcome.index()]);
        series.map_or(0, IntCounter::get)
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

/// A series that appears with its first event, or where [`RouteMetrics::start`] makes it.
fn series<B>(family: &MetricVec<B>, labels: &[&str]) -> FromFirst<B::M>
where
    B: MetricVecBuilder + 'static,
{
    let family = family.clone();
    let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
    LazyLock::new(Box::new(move || family.with_label_values(&labels)))
}

/// All classes appear with the first response, so that the first failure after it is a rise from 0.
fn by_class(family: &HistogramVec, label: &str) -> FromFirst<ByLabel<CodeClass, Histogram>> {
    let (family, label) = (family.clone(), label.to_owned());
    LazyLock::new(Box::new(move || ByLabel::of_family(&family, &[&label])))
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
