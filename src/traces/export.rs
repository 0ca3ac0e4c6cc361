//! Sends spans to the collector, by the exporter of OpenTelemetry. Failures are logged and counted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{
    Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::config::{TraceProtocol, TracingSettings};
use crate::metrics::{Metrics, SpansSent, TraceMetrics};
use crate::throttle::Throttle;

/// For one batch, retries included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a collector's answer.
const ANSWER: usize = 64 << 10;

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
#[error("tracing: {0}")]
pub struct TracesError(String);

/// The exporter that the settings ask for.
pub(super) fn exporter(
    settings: &TracingSettings,
    metrics: &Metrics,
) -> Result<WatchedExporter, TracesError> {
    // An error says that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let refused = |error: &dyn fmt::Display| TracesError(error.to_string());
    let inner = match settings.protocol {
        TraceProtocol::Http => {
            let client = CollectorClient::new(settings).map_err(|error| refused(&error))?;
            OtlpExporter::builder()
                .with_http()
                .with_http_client(client)
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(&settings.endpoint)
                .with_timeout(TIMEOUT)
                .build()
        }
        TraceProtocol::Grpc => {
            let fields = MetadataMap::from_headers(settings.headers.clone());
            let builder = OtlpExporter::builder()
                .with_tonic()
                .with_endpoint(&settings.endpoint)
                .with_timeout(TIMEOUT)
                .with_metadata(fields);
            if settings.endpoint.starts_with("https:") {
                let tls = ClientTlsConfig::new();
                builder.with_tls_config(match &settings.ca {
                    Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
                    None => tls.with_native_roots(),
                })
            } else {
                builder
            }
            .build()
        }
    };
    Ok(WatchedExporter {
        inner: Arc::new(inner.map_err(|error| refused(&error))?),
        collector: settings.endpoint.clone(),
        runtime: Handle::current(),
        metrics: metrics.traces(),
        throttle: Throttle::of_repeats(),
    })
}

/// The exporter of OpenTelemetry, on our runtime.
pub(super) struct WatchedExporter {
    inner: Arc<OtlpExporter>,
    collector: String,
    runtime: Handle,
    metrics: TraceMetrics,
    throttle: Throttle,
}

impl SpanExporter for WatchedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let inner = Arc::clone(&self.inner);
        // The SDK calls from a thread of its own, without a runtime.
        let sent = self.runtime.spawn(async move { inner.export(batch).await });
        let sent = sent
            .await
            .unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        match &sent {
            Ok(()) => self.metrics.spans(SpansSent::Exported, spans),
            Err(error) => {
                self.metrics.spans(SpansSent::Failed, spans);
                if let Some(left_out) = self.throttle.say(Instant::now()) {
                    tracing::warn!(
                        collector = self.collector,
                        spans,
                        %error,
                        left_out = (left_out > 0).then_some(left_out),
                        "spans could not be sent, and are lost"
                    );
                }
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.set_resource(resource);
        }
    }
}

impl fmt::Debug for WatchedExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedExporter")
            .field("collector", &self.collector)
            .finish_non_exhaustive()
    }
}

/// The HTTP client for the collector.
struct CollectorClient {
    client: reqwest::Client,
    headers: http::HeaderMap,
}

impl CollectorClient {
    fn new(settings: &TracingSettings) -> reqwest::Result<Self> {
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT);
        let builder = match &settings.ca {
            Some(pem) => builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(pem)?),
            None => builder,
        };
        Ok(Self {
            client: builder.build()?,
            headers: settings.headers.clone(),
        })
    }
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        let (mut head, body) = request.into_parts();
        for (name, value) in &self.headers {
            head.headers.append(name, value.clone());
        }
        let request = reqwest::Request::try_from(http::Request::from_parts(head, body))?;
        let mut response = self.client.execute(request).await?;
        let mut whole = BytesMut::new();
        while let Some(part) = response.chunk().await? {
            if whole.len() + part.len() > ANSWER {
                return Err("the collector's answer is too long".into());
            }
            whole.extend_from_slice(&part);
        }
        let mut answer = http::Response::new(whole.freeze());
        *answer.status_mut() = response.status();
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        Ok(answer)
    }
}
