//! [`Throttle`] and [`Outage`]: limit how often a repeated line is logged. A line for every refusal
//! under overload would cost more than the refusal; a line for every failed try during an outage
//! drowns the line that says why. The counters have them all.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::locked::locked;

const SECOND: Duration = Duration::from_secs(1);
/// The longest pause between two lines of one cause.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Says which lines are logged, and how many were left out before each.
#[derive(Debug)]
pub struct Throttle {
    /// The maximum number of lines in a span.
    most: u32,
    /// The first span is a second. Each that was filled is followed by one of twice the length, up to
    /// this one.
    longest: Duration,
    state: Mutex<ThrottleState>,
}

/// Held for a look and a count, never across an await.
#[derive(Debug, Default)]
struct ThrottleState {
    cause: &'static str,
    /// Since when the span runs, and how long it is.
    span: Option<(Instant, Duration)>,
    said: u32,
    left_out: u64,
}

impl Throttle {
    /// For many different lines of one kind, such as the refusals of one reason: the first ones of
    /// each second.
    #[must_use]
    pub fn of_many(most: u32) -> Self {
        Self::new(most, SECOND)
    }

    /// For tries that fail for the same cause, over and over: the first one, and then at growing
    /// pauses.
    #[must_use]
    pub fn of_repeats() -> Self {
        Self::new(1, LONGEST_PAUSE)
    }

    fn new(most: u32, longest: Duration) -> Self {
        Self {
            most,
            longest,
            state: Mutex::default(),
        }
    }

    /// Returns how many were left out before this one; `None`: it is not logged.
    pub fn say(&self, now: Instant) -> Option<u64> {
        self.say_of("", now)
    }

    /// The same for one of several causes: another one than the last is logged at once.
    pub fn say_of(&self, cause: &'static str, now: Instant) -> Option<u64> {
        let mut state = locked(&self.state);
        if state.cause != cause {
            state.cause = cause;
            state.span = None;
        }
        let next = match state.span {
            Some((since, span)) if now - since < span => None,
            // After a span in which nothing happened it is news again.
            Some((since, span)) if now - since < span * 2 => Some((span * 2).min(self.longest)),
            _ => Some(SECOND),
        };
        if let Some(span) = next {
            state.span = Some((now, span));
            state.said = 0;
        }
        if state.said == self.most {
            state.left_out += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

/// Tries at one thing that fail over and over. They are logged at the first failure, for another
/// cause, and then at growing pauses, each time with how long and how often it has failed.
#[derive(Debug)]
pub struct Outage {
    throttle: Throttle,
    /// Since when it fails, and how often it has. Held for a look and a count, never across an
    /// await.
    failing: Mutex<Option<(Instant, u64)>>,
}

/// The duration of a failure, and the number of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    pub since: Duration,
    pub tries: u64,
}

impl Failing {
    /// The time for people: whole seconds.
    #[must_use]
    pub fn lasted(&self) -> String {
        let seconds = Duration::from_secs(self.since.as_secs());
        humantime::format_duration(seconds).to_string()
    }
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            throttle: Throttle::of_repeats(),
            failing: Mutex::default(),
        }
    }
}

impl Outage {
    /// A try has failed. `None`: that is not logged.
    pub fn failed(&self, cause: &'static str, now: Instant) -> Option<Failing> {
        let mut failing = locked(&self.failing);
        let (began, tries) = failing.get_or_insert((now, 0));
        *tries += 1;
        let failing = Failing {
            since: now - *began,
            tries: *tries,
        };
        self.throttle.say_of(cause, now).map(|_| failing)
    }

    /// A try has succeeded. Returns what is over, if it had failed before.
    pub fn over(&self, now: Instant) -> Option<Failing> {
        let mut failing = locked(&self.failing);
        let (began, tries) = failing.take()?;
        // The next failure is logged, whatever came before.
        *locked(&self.throttle.state) = ThrottleState::default();
        Some(Failing {
            since: now - began,
            tries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_of_each_second_are_said_and_the_others_counted() {
        let (throttle, began) = (Throttle::of_many(10), Instant::now());
        let said = (0..100).filter(|_| throttle.say(began) == Some(0)).count();
        assert_eq!(said, 10);
        assert_eq!(throttle.say(began + SEC / 2), None);
        assert_eq!(throttle.say(began + SEC), Some(91));
        assert_eq!(throttle.say(began + SEC), Some(0));
    }

    #[test]
    fn what_repeats_itself_is_said_at_growing_pauses() {
        let (throttle, began) = (Throttle::of_repeats(), Instant::now());
        let mut said = Vec::new();
        for half_seconds in 0..3600 {
            let at = SEC / 2 * half_seconds;
            if let Some(left_out) = throttle.say(began + at) {
                said.push((at.as_secs(), left_out));
            }
        }
        assert_eq!(said[..4], [(0, 0), (1, 1), (3, 3), (7, 7)]);
        let pauses = said.windows(2).map(|two| two[1].0 - two[0].0);
        assert_eq!(pauses.max(), Some(300));
        let total = said.iter().map(|(_, left_out)| left_out + 1).sum::<u64>();
        assert!((3000..=3600).contains(&total), "{total}");
    }

    #[test]
    fn an_outage_says_how_long_and_how_often() {
        let (outage, began) = (Outage::default(), Instant::now());
        assert_eq!(outage.over(began), None);
        let mut said = Vec::new();
        for half_seconds in 0..1200_u32 {
            let at = SEC / 2 * half_seconds;
            said.extend(outage.failed("connection", began + at));
        }
        let said: Vec<_> = said.iter().map(|one| (one.lasted(), one.tries)).collect();
        let said: Vec<_> = said.iter().map(|(time, tries)| (&**time, *tries)).collect();
        assert_eq!(said[..4], [("0s", 1), ("1s", 3), ("3s", 7), ("7s", 15)]);
        assert_eq!(said.last(), Some(&("8m 31s", 1023)));
        // Another cause is news, and the same outage.
        let other = outage.failed("timeout", began + 600 * SEC).expect("news");
        assert_eq!((other.lasted().as_str(), other.tries), ("10m", 1201));
        let over = outage.over(began + 601 * SEC).expect("it has failed");
        assert_eq!((over.lasted().as_str(), over.tries), ("10m 1s", 1201));
        // The next one is another one.
        let next = outage.failed("timeout", began + 602 * SEC).expect("news");
        assert_eq!(next.tries, 1);
    }

    #[test]
    fn another_cause_and_one_that_comes_back_are_said_at_once() {
        let (throttle, began) = (Throttle::of_repeats(), Instant::now());
        assert_eq!(throttle.say_of("timeout", began), Some(0));
        assert_eq!(throttle.say_of("timeout", began), None);
        assert_eq!(throttle.say_of("connection", began), Some(1));
        assert_eq!(throttle.say_of("connection", began), None);
        assert_eq!(throttle.say_of("connection", began + 10 * SEC), Some(1));
        assert_eq!(throttle.say_of("connection", began + 11 * SEC), Some(0));
    }
}
