//! The counters of spans. They are only made where requests are traced.

use prometheus::{IntCounter, IntCounterVec};

use super::labels::SpansSent;

/// Counts the spans that were sent to a collector.
#[derive(Debug)]
pub struct TraceMetrics {
    /// In the order of [`SpansSent::ALL`].
    spans: Vec<IntCounter>,
}

impl TraceMetrics {
    pub(super) fn new(spans: &IntCounterVec) -> Self {
        let words = SpansSent::ALL.iter().map(|result| result.as_str());
        Self {
            spans: words.map(|word| spans.with_label_values(&[word])).collect(),
        }
    }

    /// A batch of so many was sent, or was not.
    pub fn spans(&self, result: SpansSent, number: usize) {
        self.spans[result as usize].inc_by(number as u64);
    }
}
