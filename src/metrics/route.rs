//! One route's series, looked up once, so that counting a request hashes no label.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::trace::TraceId;
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use tokio::time::Instant;

use super::exemplars::Exemplars;
use super::families::Families;
use super::labels::{CodeClass, DecidedBy, Outcome};
use super::route_kind::RouteKind;

/// A family of series, told apart by labels.
trait Family: Clone {
    type Series;

    /// The series with these values of the labels; made if there is none.
    fn series(&self, values: &[&str]) -> Self::Series;
}

impl<F: MetricVecBuilder> Family for MetricVec<F> {
    type Series = F::M;

    fn series(&self, values: &[&str]) -> F::M {
        self.with_label_values(values)
    }
}

/// One series. It is made at the start if it can count under its label, and otherwise not at all:
/// should [`RouteKind`] be wrong about it, its first count makes it.
struct LazySeries<F: Family> {
    family: F,
    route: Arc<str>,
    /// The value of the second label.
    word: Option<&'static str>,
    made: OnceLock<F::Series>,
}

impl<F: Family> LazySeries<F> {
    fn of(family: &F, route: &Arc<str>, word: Option<&'static str>) -> Self {
        Self {
            family: family.clone(),
            route: Arc::clone(route),
            word,
            made: OnceLock::new(),
        }
    }

    fn get(&self) -> &F::Series {
        self.made.get_or_init(|| match self.word {
            Some(word) => self.family.series(&[&*self.route, word]),
            None => self.family.series(&[&*self.route]),
        })
    }

    fn make_if(&self, can_count: bool) {
        if can_count {
            self.get();
        }
    }
}

impl<F: Family> fmt::Debug for LazySeries<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = (&self.route, self.word);
        f.debug_tuple("LazySeries").field(&words).finish()
    }
}

type LazyCounter = LazySeries<IntCounterVec>;
type LazyGauge = LazySeries<IntGaugeVec>;
type LazyHistogram = LazySeries<HistogramVec>;

/// The handles of one route.
#[derive(Debug)]
pub struct RouteMetrics {
    /// In the order of [`Outcome::ALL`].
    requests: Vec<LazyCounter>,
    /// In the order of [`DecidedBy::ALL`].
    stale: Vec<LazyCounter>,
    gap: LazyHistogram,
    barrier_wait: LazyHistogram,
    waiting: LazyGauge,
    in_flight: LazyGauge,
    /// In the order of [`CodeClass::ALL`].
    upstream_header: Vec<LazyHistogram>,
    /// In the order of [`CodeClass::ALL`].
    upstream_response: Vec<LazyHistogram>,
    duration: LazyHistogram,
    keyless: LazyCounter,
    exemplars: Exemplars,
}

impl RouteMetrics {
    /// Makes every series of a route that can count, at 0.
    pub(super) fn new(
        families: &Families,
        label: &str,
        kind: RouteKind,
        exemplars: &Exemplars,
    ) -> Self {
        let label = &Arc::from(label);
        let outcomes = Outcome::ALL.iter().map(|outcome| outcome.as_str());
        let deciders = DecidedBy::ALL.iter().map(|by| by.as_str());
        let metrics = Self {
            requests: outcomes
                .map(|word| LazySeries::of(&families.requests, label, Some(word)))
                .collect(),
            stale: deciders
                .map(|word| LazySeries::of(&families.stale_rejections, label, Some(word)))
                .collect(),
            gap: LazySeries::of(&families.stale_gap, label, None),
            barrier_wait: LazySeries::of(&families.barrier_wait_seconds, label, None),
            waiting: LazySeries::of(&families.waiting, label, None),
            in_flight: LazySeries::of(&families.in_flight, label, None),
            upstream_header: by_code(&families.upstream_header_seconds, label),
            upstream_response: by_code(&families.upstream_response_seconds, label),
            duration: LazySeries::of(&families.request_duration_seconds, label, None),
            keyless: LazySeries::of(&families.idempotency_keyless, label, None),
            exemplars: exemplars.clone(),
        };
        metrics.make(kind);
        metrics
    }

    /// Makes the series that can count under this kind, at 0. Those of another kind stay: routes can
    /// share a label, and a reload can change a mode.
    pub(super) fn make(&self, kind: RouteKind) {
        for (series, outcome) in self.requests.iter().zip(Outcome::ALL) {
            series.make_if(kind.can_end(*outcome));
        }
        for (series, by) in self.stale.iter().zip(DecidedBy::ALL) {
            series.make_if(kind.can_be_stale(*by));
        }
        self.gap.make_if(kind.is_fenced());
        self.barrier_wait.make_if(kind.is_fenced());
        self.waiting.make_if(kind.is_fenced());
        self.in_flight.make_if(kind.holds_permits());
        for series in self.upstream_header.iter().chain(&self.upstream_response) {
            series.make_if(kind.is_forwarded());
        }
        self.duration.make_if(true);
        self.keyless.make_if(kind.holds_permits());
    }

    /// A request has ended. Called once per request, with its last outcome.
    pub fn request(&self, outcome: Outcome) {
        self.requests[outcome as usize].get().inc();
    }

    /// A stale request was refused (beside [`Self::request`]); `gap` is mark minus token.
    pub fn stale(&self, decided_by: DecidedBy, gap: u64) {
        self.stale[decided_by as usize].get().inc();
        #[expect(clippy::cast_precision_loss, reason = "the buckets are decades wide")]
        self.gap.get().observe(gap as f64);
    }

    /// A request waited this long for older ones, whether or not they ended. `trace`: its own.
    pub fn barrier_wait(&self, waited: Duration, trace: Option<TraceId>) {
        let seconds = self.barrier_wait.get();
        self.exemplars.observe(seconds, waited.as_secs_f64(), trace);
    }

    /// Waits at the barrier, and counts the request as waiting from the first time that it is not
    /// let through at once. So a request that need not wait touches no shared gauge.
    pub async fn waiting<F: Future>(&self, entry: F) -> F::Output {
        let mut entry = pin!(entry);
        let mut counted = None;
        poll_fn(|context| {
            let polled = entry.as_mut().poll(context);
            if polled.is_pending() && counted.is_none() {
                counted = Some(InFlightGuard::over(self.waiting.get()));
            }
            polled
        })
        .await
    }

    /// Counts an exchange with the upstream for as long as the guard lives.
    pub fn in_flight(&self) -> InFlightGuard {
        InFlightGuard::over(self.in_flight.get())
    }

    /// The head of the upstream's response has arrived, for a request that was sent at `sent`. Drop
    /// the timer at the end of the response. `trace`: that of the request.
    pub fn upstream(&self, sent: Instant, status: u16, trace: Option<TraceId>) -> ResponseTimer {
        let class = CodeClass::of(status) as usize;
        let head = self.upstream_header[class].get();
        let took = sent.elapsed().as_secs_f64();
        self.exemplars.observe(head, took, trace);
        self.timer(&self.upstream_response[class], sent, trace)
    }

    /// Measures a request whose head arrived at `began`. Drop the timer when its answer has been
    /// taken. `trace`: that of the request.
    pub fn duration(&self, began: Instant, trace: Option<TraceId>) -> ResponseTimer {
        self.timer(&self.duration, began, trace)
    }

    fn timer(
        &self,
        series: &LazyHistogram,
        began: Instant,
        trace: Option<TraceId>,
    ) -> ResponseTimer {
        ResponseTimer {
            began,
            seconds: series.get().clone(),
            traced: trace.map(|trace| Box::new((self.exemplars.clone(), trace))),
        }
    }

    /// A request went upstream without an idempotency key because none could be made for it.
    pub fn keyless(&self) {
        self.keyless.get().inc();
    }
}

/// The histograms of one route, in the order of [`CodeClass::ALL`].
fn by_code(family: &HistogramVec, label: &Arc<str>) -> Vec<LazyHistogram> {
    let words = CodeClass::ALL.iter().map(|class| class.as_str());
    words
        .map(|word| LazySeries::of(family, label, Some(word)))
        .collect()
}

/// Measures a response, or a request with its response; dropped at the end.
#[must_use = "the response ends where this is dropped"]
#[derive(Debug)]
pub struct ResponseTimer {
    began: Instant,
    seconds: Histogram,
    /// The trace of the request, if it has one.
    traced: Option<Box<(Exemplars, TraceId)>>,
}

impl Drop for ResponseTimer {
    fn drop(&mut self) {
        let took = self.began.elapsed().as_secs_f64();
        match &self.traced {
            None => self.seconds.observe(took),
            Some(traced) => traced.0.observe(&self.seconds, took, Some(traced.1)),
        }
    }
}

/// One request that a gauge counts; it counts until this is dropped.
#[must_use = "the request counts for as long as this lives"]
#[derive(Debug)]
pub struct InFlightGuard(IntGauge);

impl InFlightGuard {
    pub(super) fn over(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
