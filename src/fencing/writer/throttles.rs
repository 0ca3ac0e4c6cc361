//! [`WriterThrottles`]: limits the writer's log lines. An outage or a failover fails thousands of
//! statements and resources in the same way.

use crate::throttle::Throttle;

#[derive(Debug)]
pub(super) struct WriterThrottles {
    /// Batches that ran into a row lock.
    pub locked: Throttle,
    /// Batches that the store did not take, by the kind of the error.
    pub refused: Throttle,
    /// Unused tokens that could not be given back.
    pub kept: Throttle,
    /// Marks and epochs that the store has lost.
    pub lost: Throttle,
}

impl Default for WriterThrottles {
    fn default() -> Self {
        Self {
            locked: Throttle::of_repeats(),
            refused: Throttle::of_repeats(),
            kept: Throttle::of_repeats(),
            lost: Throttle::of_many(),
        }
    }
}
