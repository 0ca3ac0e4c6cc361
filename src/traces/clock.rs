//! [`SpanClock`]: the wall clock of one request.

use std::time::SystemTime;

use tokio::time::Instant;

use crate::json_values::wall_clock;

/// One moment on both clocks: a span has times of the wall clock, and the parts of a request are
/// measured on the other one.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanClock {
    instant: Instant,
    time: SystemTime,
}

impl SpanClock {
    pub(super) fn new() -> Self {
        Self {
            instant: Instant::now(),
            time: wall_clock(),
        }
    }

    pub(super) fn at(self, instant: Instant) -> SystemTime {
        match instant.checked_duration_since(self.instant) {
            Some(later) => self.time + later,
            None => self.time - self.instant.duration_since(instant),
        }
    }

    pub(super) fn now(self) -> SystemTime {
        self.at(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_goes_on_and_back_as_the_other_clock_does() {
        let clock = SpanClock::new();
        let second = Duration::from_secs(1);
        assert_eq!(clock.at(clock.instant), clock.time);
        assert_eq!(clock.at(clock.instant + second), clock.time + second);
        assert_eq!(clock.at(clock.instant - second), clock.time - second);
    }
}
