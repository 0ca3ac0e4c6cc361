//! Sends spans to the collector, by the exporter of OpenTelemetry. Failures are logged.

use std::time::Duration;

use anyhow::Context as _;
use opentelemetry_otlp::{
    Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::context::TokioContext;

use crate::config::TracingSettings;
use crate::throttle::Throttle;

/// For one batch, retries included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A file with the CAs for the collector's certificate, instead of the system's: PEM. The exporter
/// reads `OTEL_EXPORTER_OTLP_HEADERS` itself.
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// The exporter that the settings ask for.
pub(super) fn exporter(settings: &TracingSettings) -> anyhow::Result<WatchedExporter> {
    let inner = OtlpExporter::builder()
        .with_http()
        .with_http_client(client()?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&settings.otlp.0)
        .with_timeout(TIMEOUT)
        .build()?;
    Ok(WatchedExporter {
        inner,
        collector: settings.otlp.0.clone(),
        runtime: Handle::current(),
        throttle: Throttle::of_repeats(),
    })
}

/// The HTTP client for the collector.
fn client() -> anyhow::Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(TIMEOUT);
    if let Some(file) = std::env::var_os(CERTIFICATE).filter(|file| !file.is_empty()) {
        let at = || format!("{CERTIFICATE}: {}", file.display());
        let pem = std::fs::read(&file).with_context(at)?;
        let authorities = reqwest::Certificate::from_pem_bundle(&pem).with_context(at)?;
        builder = builder.tls_certs_only(authorities);
    }
    Ok(builder.build()?)
}

/// The exporter of OpenTelemetry, on our runtime.
#[derive(Debug)]
pub(super) struct WatchedExporter {
    inner: OtlpExporter,
    collector: String,
    runtime: Handle,
    throttle: Throttle,
}

impl SpanExporter for WatchedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        // The SDK calls from a thread of its own, without a runtime.
        let sent = TokioContext::new(self.inner.export(batch), self.runtime.clone()).await;
        if let Err(error) = &sent
            && let Some(left_out) = self.throttle.say(Instant::now())
        {
            tracing::warn!(
                collector = self.collector,
                spans,
                %error,
                left_out = (left_out > 0).then_some(left_out),
                "spans could not be sent, and are lost"
            );
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
