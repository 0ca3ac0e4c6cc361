//! A collector of OpenTelemetry that decodes what it gets: `tests/traces/receiver.py`.

use serde_json::Value;

use super::eventually;
use super::process::Process;
use super::python::{program, python};

/// The kind of a server's span.
pub const SERVER: u64 = 2;

/// A collector in a process of its own.
pub struct Collector {
    pub process: Process,
    pub http: u64,
}

impl Collector {
    /// `None` if Python has not what it needs.
    pub async fn start(tls: &[&str]) -> Option<Self> {
        let python = python()?;
        let mut process = Process::start(program(python, "traces/receiver.py").args(tls));
        let ports = |line: &str| serde_json::from_str::<Value>(line).ok()?["http"].as_u64();
        let http = process.says("the collector's ports", ports).await;
        Some(Self { process, http })
    }

    /// The URL for spans, without TLS.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Value> {
        let lines = self.process.lines();
        let spans = lines.iter().skip(1).map(|line| {
            let span: Value = serde_json::from_str(line).expect(line);
            assert!(span["wrong"].is_null(), "{span}");
            span
        });
        spans.collect()
    }

    /// Waits until a trace that this fits has so many spans; returns them, the server's first.
    pub async fn trace(&self, spans: usize, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut trace = eventually("a trace", || async {
            let all = self.spans();
            let id = all.iter().find(|span| fits(span))?["trace"].clone();
            let trace: Vec<_> = all.into_iter().filter(|span| span["trace"] == id).collect();
            (trace.len() >= spans).then_some(trace)
        })
        .await;
        trace.sort_by_key(|span| span["kind"] != SERVER);
        assert_eq!(trace.len(), spans, "{trace:#?}");
        trace
    }
}
