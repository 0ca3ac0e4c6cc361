//! The block `tracing`: spans of requests, sent to an OpenTelemetry collector.

use std::path::{Path, PathBuf};

use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{OffOr, Share};
use crate::config::pem;
use crate::config::tracing_settings::{TraceProtocol, TracingSettings};
use crate::config::yaml::{Report, Wrong, shown};

/// Spans of requests, sent to a collector by OTLP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Tracing", extend("required" = ["otlp"]))]
pub struct TracingFile {
    /// The collector: `http://host:4318` (4317 for gRPC), or `https://host`. Over HTTP, a URL
    /// without a path means `/v1/traces`.
    pub otlp: Option<String>,
    /// `http` (protobuf in a POST) or `grpc`.
    pub protocol: TraceProtocol,
    /// Of the requests without a valid `traceparent`, the share that is traced: 0 to 1. A request
    /// with one is traced if its caller traces it (the `sampled` flag).
    pub sample: Share,
    /// A file of header fields for the collector, such as an API key: `Name: value`, one on each
    /// line. Read again when it changes.
    pub headers_file: Option<PathBuf>,
    /// The CAs for the collector's certificate, instead of the system's: PEM.
    pub ca_file: Option<PathBuf>,
}

impl Default for TracingFile {
    fn default() -> Self {
        Self {
            otlp: None,
            protocol: TraceProtocol::default(),
            sample: Share(0.01),
            headers_file: None,
            ca_file: None,
        }
    }
}

/// By default it is off.
pub(super) const fn off() -> OffOr<TracingFile> {
    OffOr::Off
}

/// A longer file is not one of header fields.
const MAX_HEADERS_FILE: usize = 16 << 10;

const URL_HINT: &str = "write http://host:port or https://host, such as http://127.0.0.1:4318";

/// The checks of the block. `None`: no request is traced, or the block is wrong.
pub(super) fn settings(block: OffOr<TracingFile>, report: &mut Report) -> Option<TracingSettings> {
    let block = block.on()?;
    let endpoint = match &block.otlp {
        None => Err(("no collector is given".to_owned(), URL_HINT)),
        Some(url) => endpoint(url, block.protocol),
    };
    let endpoint = super::values::taken("tracing.otlp", endpoint, report);
    if let Some(endpoint) = &endpoint {
        warn_of_port(endpoint, block.protocol, report);
    }
    let headers = block
        .headers_file
        .map_or_else(|| Some(HeaderMap::new()), |file| headers(&file, report));
    let ca = match &block.ca_file {
        None => None,
        Some(_)
            if endpoint
                .as_deref()
                .is_some_and(|url| url.starts_with("http:")) =>
        {
            report.error(
                "tracing.ca_file",
                "the collector's URL is not https, so it shows no certificate",
                "write https:// in tracing.otlp, or remove this",
            );
            None
        }
        Some(file) => Some(pem::authorities("tracing.ca_file", file, report)?),
    };
    Some(TracingSettings {
        endpoint: endpoint?,
        protocol: block.protocol,
        sample: block.sample.0,
        headers: headers?,
        ca,
    })
}

/// The URL that spans are sent to.
fn endpoint(text: &str, protocol: TraceProtocol) -> Result<String, Wrong> {
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
            "put the collector's credentials into tracing.headers_file, as `Authorization: Basic …`",
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
    match (protocol, path) {
        (TraceProtocol::Http, "" | "/") => Ok(format!("{scheme}://{authority}/v1/traces")),
        (TraceProtocol::Http, path) => Ok(format!("{scheme}://{authority}{path}")),
        (TraceProtocol::Grpc, "" | "/") => Ok(format!("{scheme}://{authority}")),
        (TraceProtocol::Grpc, _) => Err((
            format!("{} has a path", shown(text)),
            "gRPC has its own: leave it out, or write protocol: http",
        )),
    }
}

/// Warns of the port that collectors usually have for the other protocol.
fn warn_of_port(endpoint: &str, protocol: TraceProtocol, report: &mut Report) {
    let (authority, _) = endpoint
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'))
        .unwrap_or((endpoint, ""));
    let (other, said, hint) = match protocol {
        TraceProtocol::Http => (":4317", "gRPC", "write `protocol: grpc`, or port 4318"),
        TraceProtocol::Grpc => (":4318", "HTTP", "write `protocol: http`, or port 4317"),
    };
    if authority.ends_with(other) {
        report.warn(
            "tracing.otlp",
            format!("this is the port that collectors usually have for {said}"),
            hint,
        );
    }
}

fn headers(file: &Path, report: &mut Report) -> Option<HeaderMap> {
    const HINT: &str = "one field on each line, such as `Authorization: Bearer …`";
    let at = "tracing.headers_file";
    if file.as_os_str().is_empty() {
        report.error(at, "the path is empty", HINT);
        return None;
    }
    report.reads(file);
    let read = std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"));
    match read.and_then(|text| fields(&text)) {
        Ok(headers) => Some(headers),
        Err(why) => {
            report.error(at, format!("{} {why}", file.display()), HINT);
            None
        }
    }
}

/// The fields of a file. An error names the line, and not what is in it.
fn fields(text: &str) -> Result<HeaderMap, String> {
    if text.len() > MAX_HEADERS_FILE {
        return Err(format!("is longer than {MAX_HEADERS_FILE} bytes"));
    }
    let mut headers = HeaderMap::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("has {what} in line {}", i + 1);
        let (name, value) = line.split_once(':').ok_or_else(|| wrong("no colon"))?;
        let name = HeaderName::from_bytes(name.trim().as_bytes());
        let name = name.map_err(|_| wrong("no valid field name"))?;
        let value = HeaderValue::from_str(value.trim());
        let mut value = value.map_err(|_| wrong("no valid field value"))?;
        if value.to_str().is_err() {
            return Err(wrong("a field value that is not ASCII"));
        }
        value.set_sensitive(true);
        headers.append(name, value);
    }
    if headers.is_empty() {
        return Err("has no field in it".to_owned());
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_url_and_http_has_a_path() {
        for (url, protocol, expected) in [
            (
                "http://c:4318",
                TraceProtocol::Http,
                "http://c:4318/v1/traces",
            ),
            ("https://c/", TraceProtocol::Http, "https://c/v1/traces"),
            (
                "https://c/api/otlp",
                TraceProtocol::Http,
                "https://c/api/otlp",
            ),
            (
                "http://[::1]:4317",
                TraceProtocol::Grpc,
                "http://[::1]:4317",
            ),
            ("https://c/", TraceProtocol::Grpc, "https://c"),
        ] {
            assert_eq!(endpoint(url, protocol).as_deref(), Ok(expected), "{url}");
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
            let (message, hint) = endpoint(url, TraceProtocol::Http).expect_err(url);
            assert!(message.contains(why), "{url}: {message}");
            assert!(!message.contains("u:p") && !hint.is_empty());
        }
        let (message, _) = endpoint("http://c/v1", TraceProtocol::Grpc).expect_err("a path");
        assert!(message.contains("has a path"), "{message}");
    }

    #[test]
    fn each_line_is_a_field_and_no_error_shows_a_value() {
        let headers = fields("# the key\nX-Key: sesame\n\n authorization :Bearer open \r\n");
        let headers = headers.expect("two fields");
        assert_eq!(headers["x-key"], "sesame");
        assert_eq!(headers["authorization"], "Bearer open");
        assert!(!format!("{headers:?}").contains("sesame"));
        for (text, why) in [
            ("", "no field"),
            ("# only\n", "no field"),
            ("X-Key sesame", "no colon in line 1"),
            ("a: b\nX Key: sesame", "no valid field name in line 2"),
            ("X-Key: ses\u{7f}ame", "no valid field value in line 1"),
            ("X-Key: sésame", "not ASCII in line 1"),
        ] {
            let error = fields(text).expect_err(text);
            assert!(error.contains(why) && !error.contains("same"), "{error}");
        }
        assert!(fields(&"a: b\n".repeat(5000)).is_err());
    }
}
