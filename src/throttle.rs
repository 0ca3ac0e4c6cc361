//! [`Throttle`]: limits how often a repeated line is logged. A line for every refusal under overload
//! would cost more than the refusal; a line for every failed try during an outage drowns the line
//! that says why. The counters have them all.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::locked::locked;

/// Says which lines are logged, and how many were left out before each.
#[derive(Debug)]
pub struct Throttle {
    /// The maximum number of lines in a span.
    most: u32,
    span: Duration,
    state: Mutex<ThrottleState>,
}

/// Held for a look and a count, never across an await.
#[derive(Debug, Default)]
struct ThrottleState {
    cause: &'static str,
    /// Since when the span runs.
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Throttle {
    /// For many different lines of one kind, such as the refusals of one reason: the first ones of
    /// each second.
    #[must_use]
    pub fn of_many(most: u32) -> Self {
        let (span, state) = (Duration::from_secs(1), Mutex::default());
        Self { most, span, state }
    }

    /// For tries that fail for the same cause, over and over: the first one of each ten seconds.
    #[must_use]
    pub fn of_repeats() -> Self {
        let span = Duration::from_secs(10);
        Self {
            span,
            ..Self::of_many(1)
        }
    }

    /// Returns how many were left out before this one; `None`: it is not logged.
    pub fn say(&self, now: Instant) -> Option<u64> {
        self.say_of("", now)
    }

    /// The same for one of several causes: another one than the last is logged at once.
    pub fn say_of(&self, cause: &'static str, now: Instant) -> Option<u64> {
        let mut state = locked(&self.state);
        let runs = state.since.is_some_and(|since| now - since < self.span);
        if !runs || state.cause != cause {
            (state.cause, state.since, state.said) = (cause, Some(now), 0);
        }
        if state.said == self.most {
            state.left_out += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.left_out))
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
    fn what_repeats_itself_is_said_every_ten_seconds() {
        let (throttle, began) = (Throttle::of_repeats(), Instant::now());
        let mut said = Vec::new();
        for half_seconds in 0..100 {
            let at = SEC / 2 * half_seconds;
            if let Some(left_out) = throttle.say(began + at) {
                said.push((at.as_secs(), left_out));
            }
        }
        assert_eq!(said, [(0, 0), (10, 19), (20, 19), (30, 19), (40, 19)]);
    }

    #[test]
    fn another_cause_and_one_that_comes_back_are_said_at_once() {
        let (throttle, began) = (Throttle::of_repeats(), Instant::now());
        assert_eq!(throttle.say_of("timeout", began), Some(0));
        assert_eq!(throttle.say_of("timeout", began), None);
        assert_eq!(throttle.say_of("connection", began), Some(1));
        assert_eq!(throttle.say_of("connection", began), None);
        assert_eq!(throttle.say_of("connection", began + 9 * SEC), None);
        assert_eq!(throttle.say_of("connection", began + 10 * SEC), Some(2));
        assert_eq!(throttle.say_of("timeout", began + 11 * SEC), Some(0));
    }
}
