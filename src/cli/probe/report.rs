//! [`DrillReport`]: the result of a fence drill, as text, JSON and metrics.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use prometheus::{Encoder as _, Gauge, GaugeVec, Opts, Registry, TextEncoder};
use reqwest::Url;
use serde::Serialize;

use super::asking::Asking;

/// The result of a drill.
#[derive(Debug, Serialize)]
pub(super) struct DrillReport {
    pub(super) passed: bool,
    pub(super) url: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) steps: Vec<DrillStep>,
}

/// One request of the drill.
#[derive(Debug, Serialize)]
pub(super) struct DrillStep {
    pub(super) check: DrillCheck,
    pub(super) passed: bool,
    pub(super) expected: String,
    pub(super) got: String,
}

impl DrillStep {
    pub(super) fn new(check: DrillCheck, expected: &str, got: Result<String, String>) -> Self {
        Self {
            check,
            passed: got.is_ok(),
            expected: expected.to_owned(),
            got: got.unwrap_or_else(|why| why),
        }
    }
}

/// What a request of the drill proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DrillCheck {
    /// The proxy passes a current holder's writes.
    CurrentToken,
    /// The proxy refuses a zombie's.
    StaleToken,
    /// Nobody reaches the upstream without the proxy.
    Direct,
}

impl DrillCheck {
    const ALL: [Self; 3] = [Self::CurrentToken, Self::StaleToken, Self::Direct];

    const fn as_str(self) -> &'static str {
        match self {
            Self::CurrentToken => "current-token",
            Self::StaleToken => "stale-token",
            Self::Direct => "direct",
        }
    }
}

impl DrillReport {
    pub(super) fn text(&self) -> String {
        let mut out = format!("{} {} at {}\n", self.method, self.path, self.url);
        for step in &self.steps {
            let verdict = if step.passed { "ok    " } else { "FAILED" };
            let _ = write!(
                out,
                "  {verdict}  {:<13}  {}",
                step.check.as_str(),
                step.got
            );
            if !step.passed {
                let _ = write!(out, " (expected: {})", step.expected);
            }
            out.push('\n');
        }
        out.push_str(if self.passed {
            "The fence held."
        } else {
            "The fence did not hold, or could not be tried."
        });
        if !self.tried(DrillCheck::Direct) {
            out.push_str(" No way around it was tried.");
        }
        out
    }

    fn tried(&self, check: DrillCheck) -> bool {
        self.steps.iter().any(|step| step.check == check)
    }

    /// In the text format of Prometheus.
    pub(super) fn metrics(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let registry = Registry::new();
        let passed = GaugeVec::new(
            Opts::new(
                "fencepost_drill_passed",
                "Whether the latest fence drill passed, by check",
            )
            .const_label("drill", name),
            &["check"],
        )?;
        registry.register(Box::new(passed.clone()))?;
        for check in DrillCheck::ALL {
            if self.tried(check) {
                let mut steps = self.steps.iter().filter(|step| step.check == check);
                let all = steps.all(|step| step.passed);
                let gauge = passed.with_label_values(&[check.as_str()]);
                gauge.set(if all { 1.0 } else { 0.0 });
            }
        }
        let when = Gauge::with_opts(
            Opts::new(
                "fencepost_drill_timestamp_seconds",
                "When the latest fence drill ran",
            )
            .const_label("drill", name),
        )?;
        registry.register(Box::new(when.clone()))?;
        when.set(since_1970().as_secs_f64().round());
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// The time of the machine.
#[expect(
    clippy::disallowed_methods,
    reason = "metrics and tokens of the drill are compared across machines"
)]
pub(super) fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Replaces the file at once, so that the collector never reads half of it.
pub(super) fn write_file(file: &Path, metrics: &[u8]) -> anyhow::Result<()> {
    let told = || format!("--metrics-file {}", file.display());
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The collector reads only names that end in .prom.
    let part = folder.join(format!(".fencepost-drill-{}", std::process::id()));
    std::fs::write(&part, metrics).with_context(told)?;
    if let Err(error) = std::fs::rename(&part, file) {
        let _ = std::fs::remove_file(&part);
        return Err(error).with_context(told);
    }
    Ok(())
}

/// Replaces the drill's metrics at the Pushgateway.
pub(super) async fn push(
    gateway: &Url,
    name: &str,
    metrics: Vec<u8>,
    asking: &Asking,
) -> anyhow::Result<()> {
    let told = || format!("--push {gateway}");
    let base = gateway.as_str().trim_end_matches('/');
    let url = format!("{base}/metrics/job/fencepost_drill/drill/{name}");
    let request = asking.client().with_context(told)?.put(url).body(metrics);
    let response = request
        .send()
        .await
        .map_err(reqwest::Error::without_url)
        .with_context(told)?;
    if !response.status().is_success() {
        bail!(
            "{}: it answered {}; is this a Pushgateway?",
            told(),
            response.status()
        );
    }
    Ok(())
}
