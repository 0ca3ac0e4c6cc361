//! What `fencepost attach` says at its end: one log line, and gauges in a file for the node
//! exporter's textfile collector.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use prometheus::{Encoder as _, Gauge, Opts, Registry, TextEncoder};

use crate::proxy::attachment::AttachTotals;

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The command has ended by itself.
    Exited,
    /// A newer holder was found.
    Stale,
    /// `--max-runtime`.
    MaxRuntime,
    /// A claim was not granted.
    NotClaimed,
    /// A signal, without a command to pass it on to.
    Signal,
    /// The command could not be started.
    NotStarted,
}

impl Reason {
    const ALL: [Self; 6] = [
        Self::Exited,
        Self::Stale,
        Self::MaxRuntime,
        Self::NotClaimed,
        Self::Signal,
        Self::NotStarted,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Stale => "stale",
            Self::MaxRuntime => "max-runtime",
            Self::NotClaimed => "not-claimed",
            Self::Signal => "signal",
            Self::NotStarted => "not-started",
        }
    }
}

/// The numbers of one run.
#[derive(Debug)]
pub(super) struct RunReport {
    pub reason: Reason,
    pub code: u8,
    pub held: Duration,
    pub claims: u64,
    pub totals: AttachTotals,
}

impl RunReport {
    pub(super) fn log(&self) {
        let totals = &self.totals;
        let refused: u64 = totals.refused.values().sum();
        if refused > 0 {
            let by_outcome: Vec<String> = totals
                .refused
                .iter()
                .map(|(outcome, count)| format!("{outcome} {count}"))
                .collect();
            tracing::warn!(
                "requests without an answer of the service: {}",
                by_outcome.join(", ")
            );
        }
        if self.reason == Reason::Exited && totals.requests == self.claims {
            tracing::warn!(
                "the command sent no request through fencepost attach, so what it wrote was not \
                 fenced: its requests must go to FENCEPOST_URL, or use http_proxy (--http-proxy)"
            );
        }
        tracing::info!(
            end = self.reason.as_str(),
            exit_code = self.code,
            held_seconds = self.held.as_secs_f64(),
            claims = self.claims,
            requests = totals.requests,
            retries = totals.retries,
            stale = totals.stale,
            refused,
            "the hold has ended"
        );
    }

    /// Replaces the file at once, so that the exporter never reads half of it.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let at = || format!("--metrics-file {}", path.display());
        let text = self.text(&stem(path)?).with_context(at)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let name = format!(".fencepost-attach-{}", std::process::id());
        let beside = folder.unwrap_or(Path::new(".")).join(name);
        let written = std::fs::File::create(&beside)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&beside, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written.with_context(at)
    }

    fn text(&self, run: &str) -> anyhow::Result<Vec<u8>> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str, value: f64, reason: Option<&str>| {
            let opts = Opts::new(name, help).const_label("attach", run);
            let opts = match reason {
                Some(reason) => opts.const_label("reason", reason),
                None => opts,
            };
            let gauge = Gauge::with_opts(opts)?;
            gauge.set(value);
            registry.register(Box::new(gauge))
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "a run has fewer than 2^53 requests"
        )]
        let count = |count: u64| count as f64;
        #[expect(clippy::disallowed_methods, reason = "for people, not for fencing")]
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let totals = &self.totals;
        for (name, help, value) in [
            (
                "hold_seconds",
                "How long the last run held the lock.",
                self.held.as_secs_f64(),
            ),
            (
                "end_timestamp_seconds",
                "When the last run ended (Unix time).",
                now.as_secs_f64(),
            ),
            (
                "exit_code",
                "The exit code of the last run.",
                f64::from(self.code),
            ),
            (
                "claims",
                "Claims granted to the last run.",
                count(self.claims),
            ),
            (
                "requests",
                "Requests of the last run.",
                count(totals.requests),
            ),
            (
                "retries",
                "How often the last run sent a request again.",
                count(totals.retries),
            ),
            (
                "stale",
                "Requests of the last run that were refused as stale.",
                count(totals.stale),
            ),
        ] {
            gauge(&format!("fencepost_attach_{name}"), help, value, None)?;
        }
        for reason in Reason::ALL {
            let value = f64::from(u8::from(reason == self.reason));
            let help = "1 for how the last run ended.";
            gauge("fencepost_attach_end", help, value, Some(reason.as_str()))?;
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// Checks the name of a metrics file before anything starts.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    stem(path).map(drop)
}

/// The name of the run: that of the file. The exporter merges all files, so that two with the same
/// series would spoil each other.
fn stem(path: &Path) -> anyhow::Result<String> {
    let named = path
        .extension()
        .is_some_and(|extension| extension == "prom");
    ensure!(
        named,
        "--metrics-file {}: the node exporter reads only files that end with .prom",
        path.display()
    );
    let stem = path.file_stem().unwrap_or_default();
    Ok(stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_one_series_per_number_and_says_how_the_run_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("nightly.prom");
        let report = RunReport {
            reason: Reason::Stale,
            code: 75,
            held: Duration::from_millis(1500),
            claims: 1,
            totals: AttachTotals {
                requests: 9,
                retries: 2,
                stale: 1,
                ..AttachTotals::default()
            },
        };
        report.write(&path).expect("it is written");
        let text = std::fs::read_to_string(&path).expect("the file");
        for line in [
            "fencepost_attach_hold_seconds{attach=\"nightly\"} 1.5",
            "fencepost_attach_retries{attach=\"nightly\"} 2",
            "fencepost_attach_end{attach=\"nightly\",reason=\"stale\"} 1",
            "fencepost_attach_end{attach=\"nightly\",reason=\"exited\"} 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} in {text}");
        }
        let left = std::fs::read_dir(folder.path())
            .expect("the folder")
            .count();
        assert_eq!(left, 1, "nothing else is left there");
    }

    #[test]
    fn another_ending_is_refused() {
        let error = check(Path::new("/tmp/nightly.txt")).expect_err("nobody reads it");
        assert!(error.to_string().contains(".prom"), "{error}");
    }
}
