//! [`Notes`]: what a process keeps for operators about its requests, whatever its settings are.

use std::sync::Arc;

use tokio::time::Instant;

use crate::active_requests::ActiveRequests;
use crate::metrics::Outcome;
use crate::rejections::Rejections;
use crate::throttle::Throttle;

/// The requests, refusals and unknown outcomes that operators see: in the log and in the admin API.
pub(crate) struct Notes {
    /// Limits the log lines, each outcome by itself: a line for each refusal of a storm would cost
    /// more than the refusal, and hide the other reasons. In the order of [`Outcome::ALL`].
    throttles: Vec<Throttle>,
    pub(super) rejections: Arc<Rejections>,
    pub(super) active: Arc<ActiveRequests>,
}

impl Notes {
    pub(super) fn new(rejections: Arc<Rejections>) -> Self {
        let throttle = |outcome: &Outcome| match outcome {
            Outcome::Overloaded => Throttle::of_many(10),
            _ => Throttle::of_many(100),
        };
        Self {
            throttles: Outcome::ALL.iter().map(throttle).collect(),
            rejections,
            active: Arc::default(),
        }
    }

    /// `Some` if a line about this outcome is logged, with the number of similar ones that were left
    /// out before it.
    pub(super) fn say(&self, outcome: Outcome) -> Option<u64> {
        self.throttles[outcome as usize].say(Instant::now())
    }
}
