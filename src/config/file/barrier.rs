//! The block `barrier`: how newer tokens wait for older requests.

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::Time;
use super::values::{count, positive};
use crate::config::settings::BarrierSettings;
use crate::config::yaml::Report;

/// The default of `queue`.
const QUEUE: u64 = 1024;

/// The wait of newer tokens for older requests.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Barrier")]
pub struct BarrierFile {
    /// The longest wait of a request for older ones of its resource; then it gets a 503.
    pub wait: Time,
    /// The time for older exchanges once a newer token waits. Then they are reset, and their
    /// outcome is unknown.
    pub grace: Time,
    /// The time for which the upstream may work on a request after its last byte has arrived,
    /// whether its caller still waits or not. This is your promise about the upstream: after an
    /// unknown outcome, no newer token is admitted for this long. The default suits writes that the
    /// upstream has done within seconds, as most fenced ones are. If yours may take longer, raise
    /// this and `upstream.timeout` together. Leave room: a fifth if the upstream is on another
    /// machine, whose clock may run at another rate.
    pub settle: Time,
    /// The maximum number of requests of one resource that may wait; more get a 503. Never more
    /// than `limits.in_flight_per_resource`.
    #[schemars(extend("default" = QUEUE))]
    pub queue: Option<u64>,
}

impl Default for BarrierFile {
    fn default() -> Self {
        Self {
            wait: Time::seconds(10),
            grace: Time::seconds(10),
            settle: Time::seconds(10),
            queue: None,
        }
    }
}

/// The checks of the block.
pub(super) fn settings(file: &BarrierFile, report: &mut Report) -> BarrierSettings {
    if file.wait.0.is_zero() {
        report.warn(
            "barrier.wait",
            "requests never wait: a new holder gets a 503 while an older request is in flight",
            "",
        );
    }
    BarrierSettings {
        wait: file.wait.0,
        grace: positive("barrier.grace", file.grace, report),
        settle: positive("barrier.settle", file.settle, report),
        queue: count("barrier.queue", file.queue.unwrap_or(QUEUE), report),
    }
}
