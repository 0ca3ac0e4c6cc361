//! [`BootClock`]: the clock by which leases run. It counts the time that a machine is suspended.

use std::sync::Arc;
use std::time::Duration;

/// A clock that never jumps, read as the time since some fixed moment.
#[derive(Clone)]
pub struct BootClock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl BootClock {
    /// Counts suspended time too.
    #[must_use]
    pub fn boottime() -> Self {
        Self::from_fn(|| {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            Duration::new(
                u64::try_from(t.tv_sec).unwrap_or(0),
                u32::try_from(t.tv_nsec).unwrap_or(0),
            )
        })
    }

    #[must_use]
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl std::fmt::Debug for BootClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BootClock")
    }
}
