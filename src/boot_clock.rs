//! [`BootClock`]: the clock by which leases run. It counts the time that a machine is suspended.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A clock that never jumps, read as the time since some fixed moment.
#[derive(Clone)]
pub struct BootClock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl BootClock {
    /// Counts suspended time too.
    #[must_use]
    pub fn boottime() -> Self {
        // It is never negative.
        let now = || clock_gettime(ClockId::Boottime).try_into();
        Self::from_fn(move || now().unwrap_or_default())
    }

    #[must_use]
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl std::fmt::Debug for BootClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BootClock")
    }
}
