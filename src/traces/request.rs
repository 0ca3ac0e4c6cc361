//! [`RequestTrace`]: the spans of one traced request. The names are those of the semantic
//! conventions (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>).

use std::borrow::Cow;

use http::uri::Authority;
use http::{Method, StatusCode};
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanKind, SpanRef, Status, TraceContextExt, TraceId, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;
use tokio::time::Instant;

use super::parent::{TRACEPARENT, TRACESTATE, state};
use crate::http1::names::USER_AGENT;
use crate::http1::{Fields, RequestHead};
use crate::json_values::wall_clock;

/// One traced request. Its span ends when this is dropped.
#[derive(Debug)]
pub struct RequestTrace {
    tracer: SdkTracer,
    /// Has the request's own span, the parent of the spans in it.
    context: Context,
    method: Method,
}

impl RequestTrace {
    /// `client`: its address.
    pub(super) fn begin(
        tracer: &SdkTracer,
        parent: Option<&SpanContext>,
        head: &RequestHead,
        client: &str,
    ) -> Self {
        let outside = parent.map_or_else(Context::new, |parent| {
            let (trace, span) = (parent.trace_id(), parent.span_id());
            let state = state(&head.fields);
            let parent = SpanContext::new(trace, span, parent.trace_flags(), true, state);
            Context::new().with_remote_span_context(parent)
        });
        let method = head.method.as_str().to_owned();
        let mut attributes = vec![
            KeyValue::new("http.request.method", method.clone()),
            KeyValue::new("client.address", client.to_owned()),
            // Without its query.
            KeyValue::new("url.path", head.target.path().to_owned()),
        ];
        if let Some(agent) = head.fields.get(USER_AGENT) {
            let agent = String::from_utf8_lossy(agent).into_owned();
            attributes.push(KeyValue::new("user_agent.original", agent));
        }
        let builder = SpanBuilder::from_name(method).with_kind(SpanKind::Server);
        let span = tracer.build_with_context(builder.with_attributes(attributes), &outside);
        Self {
            tracer: tracer.clone(),
            context: Context::new().with_span(span),
            method: head.method.clone(),
        }
    }

    pub fn trace_id(&self) -> TraceId {
        self.context.span().span_context().trace_id()
    }

    /// A part of the request that began then and ends now.
    pub fn part(&self, name: &'static str, began: Instant, attributes: Vec<KeyValue>) {
        // Read first: no part begins before the request.
        let lasted = began.elapsed();
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(wall_clock() - lasted)
            .with_attributes(attributes);
        drop(self.tracer.build_with_context(builder, &self.context));
    }

    /// Begins the span of the exchange with the upstream. `address`: that of the upstream.
    pub fn upstream(&self, address: &Authority) -> UpstreamSpan {
        let method = self.method.as_str().to_owned();
        let mut attributes = vec![
            KeyValue::new("http.request.method", method.clone()),
            KeyValue::new("server.address", address.host().to_owned()),
        ];
        if let Some(port) = address.port_u16() {
            attributes.push(KeyValue::new("server.port", i64::from(port)));
        }
        let builder = SpanBuilder::from_name(method).with_kind(SpanKind::Client);
        let builder = builder.with_attributes(attributes);
        let span = self.tracer.build_with_context(builder, &self.context);
        UpstreamSpan {
            context: Context::new().with_span(span),
            error: Some("unanswered"),
        }
    }

    /// Says how the request is answered. `route`: the path of its route, as it is configured.
    pub fn answered(
        &self,
        route: Option<&str>,
        status: StatusCode,
        outcome: Option<&'static str>,
        more: impl IntoIterator<Item = KeyValue>,
    ) {
        let span = self.context.span();
        if let Some(route) = route {
            span.update_name(format!("{} {route}", self.method));
            span.set_attribute(KeyValue::new("http.route", route.to_owned()));
        }
        let code = status.as_u16();
        set_status_code(&span, code);
        if let Some(outcome) = outcome {
            span.set_attribute(KeyValue::new("fencepost.outcome", outcome));
        }
        span.set_attributes(more);
        if status.is_server_error() {
            // The status of a server's span is only an error where the server failed.
            let error = outcome.map_or_else(|| code.to_string().into(), Cow::from);
            fail(&span, error);
        }
    }
}

/// The span of an exchange with the upstream: from before a connection is taken to the end of the
/// response. It ends when it is dropped.
#[derive(Debug)]
pub struct UpstreamSpan {
    /// Has the span.
    context: Context,
    /// The error, if it ends now.
    error: Option<&'static str>,
}

impl UpstreamSpan {
    /// Lets the upstream continue the trace. A valid `tracestate` of the caller's trace stays as it
    /// is; any other goes (W3C Trace Context, 4.3).
    pub fn propagate(&self, fields: &mut Fields) {
        let span = self.context.span();
        let context = span.span_context();
        let line = format!("00-{}-{}-01", context.trace_id(), context.span_id());
        fields.insert(TRACEPARENT, line);
        if context.trace_state().header().is_empty() {
            fields.remove(TRACESTATE);
        }
    }

    /// The head of the response has arrived.
    pub fn answered(&mut self, status: u16) {
        set_status_code(&self.context.span(), status);
        self.error = Some("incomplete");
        if status >= 400 {
            // A client's span fails with such an answer, as the conventions have it.
            fail(&self.context.span(), status.to_string().into());
        }
    }

    /// The response has ended, whole.
    pub fn whole(&mut self) {
        self.error = None;
    }

    /// There is no response, and the request ends with this outcome.
    pub fn failed(mut self, outcome: &'static str) {
        self.error = Some(outcome);
    }
}

impl Drop for UpstreamSpan {
    fn drop(&mut self) {
        if let Some(error) = self.error {
            fail(&self.context.span(), error.into());
        }
    }
}

fn set_status_code(span: &SpanRef<'_>, status: u16) {
    let code = KeyValue::new("http.response.status_code", i64::from(status));
    span.set_attribute(code);
}

fn fail(span: &SpanRef<'_>, error: Cow<'static, str>) {
    span.set_attribute(KeyValue::new("error.type", error));
    span.set_status(Status::error(""));
}
