//! [`TracingSettings`]: the checked block `tracing`.

use http::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where spans are sent, and of which requests.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingSettings {
    /// The URL, with its path.
    pub endpoint: String,
    pub protocol: TraceProtocol,
    /// The share of the requests without a context that is traced: 0 to 1.
    pub sample: f64,
    /// Fields for the collector.
    pub headers: HeaderMap,
    /// The CAs for the collector's certificate, as PEM. `None`: the system's.
    pub ca: Option<Vec<u8>>,
}

/// How spans are sent (<https://opentelemetry.io/docs/specs/otlp/>).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TraceProtocol {
    /// Protobuf in a POST.
    #[default]
    Http,
    Grpc,
}
