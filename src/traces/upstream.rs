//! [`UpstreamSpan`]: the span of an exchange with the upstream.

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status, TraceId};
use opentelemetry_sdk::trace::Span;

use super::clock::SpanClock;
use super::parent::{TRACEPARENT, TRACESTATE};
use crate::http1::Fields;

/// From before a connection is taken to the end of the response. It ends when it is dropped.
#[derive(Debug)]
pub struct UpstreamSpan(
    /// Boxed, since the future of every exchange has room for one.
    Box<OpenSpan>,
);

#[derive(Debug)]
struct OpenSpan {
    span: Span,
    clock: SpanClock,
    continued: bool,
    /// The error, if it ends now.
    error: Option<&'static str>,
}

impl UpstreamSpan {
    pub(super) fn new(span: Span, clock: SpanClock, continued: bool) -> Self {
        Self(Box::new(OpenSpan {
            span,
            clock,
            continued,
            error: Some("unanswered"),
        }))
    }

    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        self.0.span.span_context().trace_id()
    }

    /// Lets the upstream continue the trace. The `tracestate` of the caller's trace stays as it is;
    /// that of no valid trace goes (W3C Trace Context, 4.3).
    pub fn propagate(&self, fields: &mut Fields) {
        let context = self.0.span.span_context();
        let line = format!("00-{}-{}-01", context.trace_id(), context.span_id());
        fields.insert(TRACEPARENT, line);
        if !self.0.continued {
            fields.remove(TRACESTATE);
        }
    }

    /// The head of the response has arrived.
    pub fn answered(&mut self, status: u16) {
        let code = KeyValue::new("http.response.status_code", i64::from(status));
        self.0.span.set_attribute(code);
        self.0.error = Some("incomplete");
        if status >= 400 {
            // A client's span fails with such an answer, as the conventions have it.
            self.0
                .span
                .set_attribute(KeyValue::new("error.type", status.to_string()));
            self.0.span.set_status(Status::error(""));
        }
    }

    /// The response has ended, whole.
    pub fn whole(&mut self) {
        self.0.error = None;
    }

    /// There is no response, and the request ends with this outcome.
    pub fn failed(mut self, outcome: &'static str) {
        self.0.error = Some(outcome);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(error) = self.error {
            self.span.set_attribute(KeyValue::new("error.type", error));
            self.span.set_status(Status::error(""));
        }
        self.span.end_with_timestamp(self.clock.now());
    }
}
