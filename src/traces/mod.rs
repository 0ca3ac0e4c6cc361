//! Traces: spans of requests, sent to an OpenTelemetry collector by OTLP.
//!
//! A request whose caller traces it is traced, and a share of those without a context
//! (`tracing.sample`). A traced request has a span for itself, for the check of its token, for the
//! wait at the barrier and for its exchange with the upstream; the upstream gets the context of the
//! last one. Every other request passes as if there were no tracing.
//!
//! The SDK of OpenTelemetry makes the spans, and sends them from a thread of its own. If its queue
//! is full, it drops spans: no request waits for a collector.

mod export;
mod parent;
mod request;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, TracerProvider as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider};

pub use self::parent::parent;
pub use self::request::{RequestTrace, UpstreamSpan};
use crate::build_info::VERSION;
use crate::config::TracingSettings;
use crate::http1::RequestHead;

/// Decides which requests are traced, and sends their spans.
#[derive(Debug)]
pub struct Traces {
    settings: TracingSettings,
    tracer: SdkTracer,
    provider: SdkTracerProvider,
}

impl Traces {
    /// Begins to send spans, on the current runtime.
    pub fn start(settings: &TracingSettings, instance: &str) -> anyhow::Result<Arc<Self>> {
        let exporter = export::exporter(settings)?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).build())
            // A span is only made of a request that is traced.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource(instance))
            .build();
        Ok(Arc::new(Self {
            settings: settings.clone(),
            tracer: provider.tracer("fencepost"),
            provider,
        }))
    }

    /// True if these are its settings.
    pub fn has(&self, settings: Option<&TracingSettings>) -> bool {
        settings == Some(&self.settings)
    }

    /// Begins the span of a request, if it is traced. `client`: its address.
    pub fn request(
        &self,
        parent: Option<&SpanContext>,
        head: &RequestHead,
        client: &str,
    ) -> Option<Arc<RequestTrace>> {
        let traced = match parent {
            Some(parent) => parent.is_sampled(),
            None => rand::random::<f64>() < self.settings.sample.0,
        };
        traced.then(|| Arc::new(RequestTrace::begin(&self.tracer, parent, head, client)))
    }

    /// Sends the spans that have ended, for up to `within`.
    pub async fn finish(self: Arc<Self>, within: Duration) {
        let provider = self.provider.clone();
        let sent = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(within));
        if !matches!(sent.await, Ok(Ok(()))) {
            tracing::warn!("the last spans may not have reached the collector");
        }
    }
}

/// The last one sends what is left. That may take seconds, and no runtime waits for it.
impl Drop for Traces {
    fn drop(&mut self) {
        let provider = self.provider.clone();
        let last = std::thread::Builder::new().name("last-spans".to_owned());
        // Without a thread they are lost.
        let _ = last.spawn(move || provider.shutdown());
    }
}

/// The resource attributes of every span (semantic conventions, `service.*`).
/// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence over ours.
fn resource(instance: &str) -> Resource {
    let own = [
        KeyValue::new("service.name", "fencepost"),
        KeyValue::new("service.version", VERSION),
        KeyValue::new("service.instance.id", instance.to_owned()),
    ];
    let named = std::env::var("OTEL_SERVICE_NAME").ok();
    let named = named.filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_attributes(own)
        .with_detectors(&[
            Box::new(TelemetryResourceDetector),
            Box::new(EnvResourceDetector::new()),
        ])
        .with_attributes(named.map(|name| KeyValue::new("service.name", name)))
        .build()
}
