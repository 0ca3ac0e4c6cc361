//! The block `shutdown`: how the program ends on SIGTERM.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::Time;
use super::values::positive;
use crate::config::settings::ShutdownSettings;
use crate::config::yaml::Report;

/// The end of the program on SIGTERM.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Shutdown")]
pub struct ShutdownFile {
    /// Time from becoming unready to refusing new connections.
    pub delay: Time,
    /// Time for draining after that. Keep the sum of `delay` and this below the time after which
    /// SIGKILL is sent (Kubernetes: 30s).
    pub deadline: Time,
}

impl Default for ShutdownFile {
    fn default() -> Self {
        Self {
            delay: Time::seconds(0),
            deadline: Time::seconds(25),
        }
    }
}

/// The checks of the block. `grace`: that of the barrier.
pub(super) fn settings(
    file: &ShutdownFile,
    grace: Duration,
    report: &mut Report,
) -> ShutdownSettings {
    let deadline = positive("shutdown.deadline", file.deadline, report);
    if deadline < grace {
        report.warn(
            "shutdown.deadline",
            "shorter than `barrier.grace`: exchanges are cut that could have ended, and their \
             resources wait for `barrier.settle`",
            "at least barrier.grace",
        );
    }
    ShutdownSettings {
        delay: file.delay.0,
        deadline,
    }
}
