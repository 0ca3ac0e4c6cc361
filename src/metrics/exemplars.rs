//! [`Exemplars`]: for each bucket of a histogram, the trace of the last observation that has one
//! (`OpenMetrics` 1.0, "Exemplars").

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::TraceId;
use prometheus::Histogram;
use prometheus::core::Collector;
use prometheus::proto::{LabelPair, Metric};

/// The trace of one observation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exemplar {
    pub trace: TraceId,
    pub value: f64,
    /// Since 1970.
    pub at: Duration,
}

/// A series: the name of its family, and its labels.
type SeriesName = (String, Vec<(String, String)>);

/// The exemplars of all histograms. Only traced requests come here.
#[derive(Clone, Debug, Default)]
pub(super) struct Exemplars(
    /// By series, then by the number of the bucket. Held for an entry, never across an await.
    Arc<Mutex<HashMap<SeriesName, BTreeMap<usize, Exemplar>>>>,
);

impl Exemplars {
    /// Observes a value, of a traced request or another one.
    pub(super) fn observe(&self, histogram: &Histogram, value: f64, trace: Option<TraceId>) {
        histogram.observe(value);
        if let Some(trace) = trace {
            self.keep(histogram, value, trace);
        }
    }

    fn keep(&self, histogram: &Histogram, value: f64, trace: TraceId) {
        let families = Collector::collect(histogram);
        let Some(family) = families.first() else {
            return;
        };
        let Some(metric) = family.get_metric().first() else {
            return;
        };
        let buckets = metric.get_histogram().get_bucket();
        let bucket = buckets.iter().position(|one| value <= one.upper_bound());
        #[expect(
            clippy::disallowed_methods,
            reason = "for people to read; nothing rests on it"
        )]
        let now = SystemTime::now();
        let exemplar = Exemplar {
            trace,
            value,
            at: now.duration_since(UNIX_EPOCH).unwrap_or_default(),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name(family.name(), metric))
            .or_default()
            .insert(bucket.unwrap_or(buckets.len()), exemplar);
    }

    /// Those of one series, by the number of the bucket; the last bucket is `+Inf`.
    pub(super) fn of(&self, family: &str, metric: &Metric) -> BTreeMap<usize, Exemplar> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&name(family, metric)).cloned().unwrap_or_default()
    }
}

fn name(family: &str, metric: &Metric) -> SeriesName {
    let pair = |label: &LabelPair| (label.name().to_owned(), label.value().to_owned());
    let labels = metric.get_label().iter().map(pair);
    (family.to_owned(), labels.collect())
}
