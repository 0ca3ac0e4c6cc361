//! [`RequestTrace`]: the spans of one traced request.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use http::uri::Authority;
use http::{Method, StatusCode, Version};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceId, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;
use tokio::time::Instant;

use super::clock::SpanClock;
use super::{TraceParent, Traces, UpstreamSpan};
use crate::http1::Fields;
use crate::http1::names::USER_AGENT;
use crate::locked::locked;

/// The facts of a request when its head has arrived. The names are those of the semantic
/// conventions (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>).
#[derive(Clone, Copy, Debug)]
pub struct TraceHead<'a> {
    pub began: Instant,
    pub method: &'a Method,
    /// Without its query.
    pub path: &'a str,
    pub version: Version,
    pub fields: &'a Fields,
    pub client: &'a str,
}

/// One traced request.
pub struct RequestTrace {
    traces: Arc<Traces>,
    /// The request's own span, held for one change, never across an await.
    span: Mutex<Span>,
    /// The parent of the spans in it.
    inside: Context,
    context: SpanContext,
    method: Method,
    /// It continues the trace of its caller.
    continued: bool,
    clock: SpanClock,
}

impl RequestTrace {
    pub(super) fn begin(
        traces: &Arc<Traces>,
        parent: Option<&TraceParent<'_>>,
        head: TraceHead<'_>,
    ) -> Self {
        let outside = parent.map_or_else(Context::new, |parent| {
            Context::new().with_remote_span_context(parent.context(head.fields))
        });
        let clock = SpanClock::new();
        let mut attributes = vec![
            KeyValue::new("http.request.method", head.method.as_str().to_owned()),
            KeyValue::new("network.protocol.version", version(head.version)),
            KeyValue::new("client.address", head.client.to_owned()),
        ];
        attributes.push(KeyValue::new("url.path", head.path.to_owned()));
        if let Some(agent) = head.fields.get(USER_AGENT) {
            let agent = String::from_utf8_lossy(agent).into_owned();
            attributes.push(KeyValue::new("user_agent.original", agent));
        }
        let builder = SpanBuilder::from_name(head.method.as_str().to_owned())
            .with_kind(SpanKind::Server)
            .with_start_time(clock.at(head.began))
            .with_attributes(attributes);
        let span = traces.tracer.build_with_context(builder, &outside);
        let context = span.span_context().clone();
        Self {
            traces: Arc::clone(traces),
            span: Mutex::new(span),
            inside: Context::new().with_remote_span_context(context.clone()),
            context,
            method: head.method.clone(),
            continued: parent.is_some(),
            clock,
        }
    }

    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        self.context.trace_id()
    }

    /// A part of the request that began then and ends now.
    pub fn part(&self, name: &'static str, began: Instant, attributes: Vec<KeyValue>) {
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(self.clock.at(began))
            .with_attributes(attributes);
        let tracer = &self.traces.tracer;
        let mut span = tracer.build_with_context(builder, &self.inside);
        span.end_with_timestamp(self.clock.now());
    }

    /// Begins the span of the exchange with the upstream. `address`: that of the upstream.
    #[must_use]
    pub fn upstream(&self, address: &Authority) -> UpstreamSpan {
        let method = self.method.as_str().to_owned();
        let mut attributes = vec![
            KeyValue::new("http.request.method", method.clone()),
            KeyValue::new("server.address", address.host().to_owned()),
        ];
        if let Some(port) = address.port_u16() {
            attributes.push(KeyValue::new("server.port", i64::from(port)));
        }
        let builder = SpanBuilder::from_name(method)
            .with_kind(SpanKind::Client)
            .with_start_time(self.clock.now())
            .with_attributes(attributes);
        let tracer = &self.traces.tracer;
        let span = tracer.build_with_context(builder, &self.inside);
        UpstreamSpan::new(span, self.clock, self.continued)
    }

    /// Says how the request is answered. `route`: the path of its route, as it is configured.
    pub fn answered(
        &self,
        route: Option<&str>,
        status: StatusCode,
        outcome: Option<&'static str>,
        more: impl IntoIterator<Item = KeyValue>,
    ) {
        let mut span = locked(&self.span);
        if let Some(route) = route {
            span.update_name(format!("{} {route}", self.method));
            span.set_attribute(KeyValue::new("http.route", route.to_owned()));
        }
        let code = i64::from(status.as_u16());
        span.set_attribute(KeyValue::new("http.response.status_code", code));
        if let Some(outcome) = outcome {
            span.set_attribute(KeyValue::new("fencepost.outcome", outcome));
        }
        span.set_attributes(more);
        if status.is_server_error() {
            // The status of a server's span is only an error where the server failed.
            let kind = outcome.map_or_else(|| Cow::from(code.to_string()), Cow::from);
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(""));
        }
    }

    /// Ends the request's span where it is dropped.
    pub fn guard(self: &Arc<Self>) -> RequestSpanGuard {
        RequestSpanGuard(Arc::clone(self))
    }

    fn end(&self) {
        let now = self.clock.now();
        let mut span = locked(&self.span);
        span.end_with_timestamp(now);
    }
}

impl fmt::Debug for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.trace_id();
        f.debug_tuple("RequestTrace").field(&id).finish()
    }
}

/// Ends the span of a request where it is dropped.
#[must_use = "the span ends where this is dropped"]
#[derive(Debug)]
pub struct RequestSpanGuard(Arc<RequestTrace>);

impl Drop for RequestSpanGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
