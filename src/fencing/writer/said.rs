//! Remembers recent log lines of the writer. During an outage, or after a failover, the same is
//! true of thousands of statements and resources.

use crate::throttle::Throttle;

#[derive(Debug)]
pub(super) struct Said {
    /// Batches that ran into a row lock.
    pub locked: Throttle,
    /// Batches that the store did not take, by the kind of the error.
    pub refused: Throttle,
    /// Unused tokens that could not be given back.
    pub kept: Throttle,
    /// Marks and epochs that the store has lost.
    pub lost: Throttle,
}

impl Default for Said {
    fn default() -> Self {
        Self {
            locked: Throttle::of_repeats(),
            refused: Throttle::of_repeats(),
            kept: Throttle::of_repeats(),
            lost: Throttle::of_many(),
        }
    }
}
