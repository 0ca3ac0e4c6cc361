//! The block `tracing`: spans of requests, sent to an OpenTelemetry collector.

use http::uri::{Authority, PathAndQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{OffOr, Share};
use crate::config::tracing_settings::TracingSettings;
use crate::config::yaml::{Report, Wrong, shown};

/// Spans of requests, sent to a collector by OTLP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Tracing", extend("required" = ["otlp"]))]
pub struct TracingFile {
    /// The collector, by OTLP over HTTP: `http://host:4318`, or `https://host`. A URL without a path
    /// means `/v1/traces`.
    pub otlp: Option<String>,
    /// Of the requests without a valid `traceparent`, the share that is traced: 0 to 1. A request
    /// with one is traced if its caller traces it (the `sampled` flag).
    pub sample: Share,
}

impl Default for TracingFile {
    fn default() -> Self {
        Self {
            otlp: None,
            sample: Share(0.01),
        }
    }
}

const URL_HINT: &str = "write http://host:port or https://host, such as http://127.0.0.1:4318";

/// The checks of the block. `None`: no request is traced, or the block is wrong.
pub(super) fn settings(block: OffOr<TracingFile>, report: &mut Report) -> Option<TracingSettings> {
    let block = block.on()?;
    let endpoint = match &block.otlp {
        None => Err(("no collector is given".to_owned(), URL_HINT)),
        Some(url) => endpoint(url),
    };
    let endpoint = super::values::taken("tracing.otlp", endpoint, report)?;
    let authority = endpoint.split('/').nth(2).unwrap_or_default();
    if authority.ends_with(":4317") {
        report.warn(
            "tracing.otlp",
            "this is the port that collectors usually have for gRPC, and spans go over HTTP",
            "write port 4318",
        );
    }
    Some(TracingSettings {
        endpoint,
        sample: block.sample.0,
    })
}

/// The URL that spans are sent to.
fn endpoint(text: &str) -> Result<String, Wrong> {
    let wrong = |what: &str| (format!("{} {what}", shown(text)), URL_HINT);
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| wrong("has no scheme"))?;
    if !matches!(scheme, "http" | "https") {
        return Err(wrong("has an unknown scheme"));
    }
    if rest.contains('@') {
        return Err((
            "the URL names a user".to_owned(),
            "set OTEL_EXPORTER_OTLP_HEADERS, to `authorization=Basic%20…`",
        ));
    }
    if rest.contains(['?', '#']) {
        return Err(wrong("has a query or a fragment"));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let parsed = Authority::try_from(authority).map_err(|_| wrong("has no valid host"))?;
    if parsed.host().is_empty() {
        return Err(wrong("has no host"));
    }
    if PathAndQuery::try_from(if path.is_empty() { "/" } else { path }).is_err() {
        return Err(wrong("has no valid path"));
    }
    let path = if matches!(path, "" | "/") {
        "/v1/traces"
    } else {
        path
    };
    Ok(format!("{scheme}://{authority}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_url() {
        for (url, expected) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("https://c/", "https://c/v1/traces"),
            ("https://c/api/otlp", "https://c/api/otlp"),
            ("http://[::1]:4317", "http://[::1]:4317/v1/traces"),
        ] {
            assert_eq!(endpoint(url).as_deref(), Ok(expected), "{url}");
        }
        for (url, why) in [
            ("c:4318", "has no scheme"),
            ("grpc://c", "has an unknown scheme"),
            ("http://", "has no valid host"),
            ("http://:4318", "has no"),
            ("http://u:p@c", "names a user"),
            ("http://c/v1?key=1", "has a query"),
            ("http://c d/", "has no valid host"),
        ] {
            let (message, hint) = endpoint(url).expect_err(url);
            assert!(message.contains(why), "{url}: {message}");
            assert!(!message.contains("u:p") && !hint.is_empty());
        }
    }
}
