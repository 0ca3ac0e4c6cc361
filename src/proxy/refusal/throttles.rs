//! Limits the log lines for refusals: a line for each refusal of a storm would cost more than the
//! refusal, and hide the other reasons.

use crate::metrics::Outcome;
use crate::throttle::Throttle;

/// Limits the lines for refusals, each reason by itself.
#[derive(Debug)]
pub(crate) struct RefusalThrottles(Vec<Throttle>);

impl Default for RefusalThrottles {
    fn default() -> Self {
        let of = |outcome: &Outcome| match outcome {
            Outcome::Overloaded => Throttle::of_many(),
            _ => Throttle::of_refusals(),
        };
        Self(Outcome::ALL.iter().map(of).collect())
    }
}

impl RefusalThrottles {
    /// `Some` if a refusal of this kind is logged, with the number of similar ones left out before
    /// it.
    pub(crate) fn say(&self, outcome: Outcome) -> Option<u64> {
        // In the order of `Outcome::ALL`.
        self.0[outcome as usize].say(tokio::time::Instant::now())
    }
}
