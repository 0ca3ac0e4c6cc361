//! The blocks `barrier` and `shutdown`: how newer tokens wait for older requests, and how the
//! program ends on SIGTERM.

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{Count, Positive, Time};
use super::yaml::Report;

/// The wait of newer tokens for older requests.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Barrier")]
pub struct BarrierSettings {
    /// The longest wait of a request for older ones of its resource; then it gets a 503.
    pub wait: Time,
    /// The time for older exchanges once a newer token waits. Then they are reset, and their
    /// outcome is unknown.
    pub grace: Positive,
    /// The time for which the upstream may work on a request after its last byte has arrived,
    /// whether its caller still waits or not. This is your promise about the upstream: after an
    /// unknown outcome, no newer token is admitted for this long. The default suits writes that the
    /// upstream has done within seconds, as most fenced ones are. If yours may take longer, raise
    /// this and `upstream.timeout` together. Leave room: a fifth if the upstream is on another
    /// machine, whose clock may run at another rate.
    pub settle: Positive,
    /// The maximum number of requests of one resource that may wait; more get a 503. Never more
    /// than `limits.in_flight_per_resource`.
    pub queue: Count,
}

impl Default for BarrierSettings {
    fn default() -> Self {
        Self {
            wait: Time::seconds(10),
            grace: Positive::seconds(10),
            settle: Positive::seconds(10),
            queue: Count(1024),
        }
    }
}

/// The end of the program on SIGTERM.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Shutdown")]
pub struct ShutdownSettings {
    /// Time from becoming unready to refusing new connections.
    pub delay: Time,
    /// Time for draining after that. Keep the sum of `delay` and this below the time after which
    /// SIGKILL is sent (Kubernetes: 30s).
    pub deadline: Positive,
}

impl Default for ShutdownSettings {
    fn default() -> Self {
        Self {
            delay: Time::seconds(0),
            deadline: Positive::seconds(25),
        }
    }
}

/// Checks both.
pub(super) fn check(barrier: &BarrierSettings, shutdown: &ShutdownSettings, report: &mut Report) {
    report.warn_if(
        barrier.wait.0.is_zero(),
        "barrier.wait",
        "requests never wait: a new holder gets a 503 while an older request is in flight",
        "",
    );
    report.warn_if(
        shutdown.deadline.0 < barrier.grace.0,
        "shutdown.deadline",
        "shorter than `barrier.grace`: exchanges are cut that could have ended, and their \
         resources wait for `barrier.settle`",
        "at least barrier.grace",
    );
}
