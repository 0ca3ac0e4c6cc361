//! What is said seldom: under overload a line for every refusal would cost more than the refusal, and drown the lines
//! that matter. The counters have them all.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How many are said in each [`SPAN`].
const MOST: u32 = 10;
const SPAN: Duration = Duration::from_secs(1);

/// Lets the first few of each second through.
#[derive(Default)]
pub(super) struct Seldom(Mutex<State>);

/// Held for a look and a count, never across an await.
#[derive(Default)]
struct State {
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Seldom {
    /// Whether this one is to be said; with how many were left out before it.
    pub(super) fn say(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now - since >= SPAN) {
            state.since = Some(now);
            state.said = 0;
        }
        if state.said == MOST {
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

    #[test]
    fn the_first_of_each_second_are_said_and_the_others_counted() {
        let (seldom, began) = (Seldom::default(), Instant::now());
        let said = (0..100).filter(|_| seldom.say(began) == Some(0)).count();
        assert_eq!(said, 10);
        assert_eq!(seldom.say(began + SPAN / 2), None);
        assert_eq!(seldom.say(began + SPAN), Some(91));
        assert_eq!(seldom.say(began + SPAN), Some(0));
    }
}
