//! [`DrillReport`]: the result of a fence drill, as text and JSON.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde::Serialize;

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
        if self
            .steps
            .iter()
            .all(|step| step.check != DrillCheck::Direct)
        {
            out.push_str(" No way around it was tried.");
        }
        out
    }
}

/// The time of the machine.
#[expect(
    clippy::disallowed_methods,
    reason = "tokens of the drill are compared across machines"
)]
pub(super) fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}
