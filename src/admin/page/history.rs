//! [`History`]: how requests ended in the last hour, for the page's charts. It is sampled from the
//! counters, so no request pays for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::locked::locked;
use crate::metrics::{Metrics, Outcome};

/// The pause between two readings of the counters.
const EVERY: Duration = Duration::from_secs(30);

/// The readings of an hour.
pub(super) const HOUR: usize = 120;

/// The readings of the last hour.
#[derive(Debug, Default)]
pub struct History {
    /// The oldest first: how many requests had ended, in the order of [`Outcome::ALL`]. Held for a
    /// copy.
    readings: Mutex<VecDeque<Vec<u64>>>,
}

/// The requests of one span that ended, by [`EndKind`].
pub(super) type Ends = [u64; 3];

/// The three kinds of outcomes that the page tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndKind {
    Passed,
    Refused,
    Unknown,
}

pub(super) fn kind(outcome: Outcome) -> EndKind {
    match outcome {
        Outcome::Advanced | Outcome::Current | Outcome::Claimed | Outcome::Unfenced => {
            EndKind::Passed
        }
        Outcome::OutcomeUnknown => EndKind::Unknown,
        // Observe mode passes the requests that it would refuse.
        other if other.as_str().starts_with("observed-") => EndKind::Passed,
        _ => EndKind::Refused,
    }
}

impl History {
    /// Reads the counters every half minute, until the stop.
    pub async fn run(self: Arc<Self>, metrics: Arc<Metrics>, stop: CancellationToken) {
        loop {
            self.read(&metrics);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    fn read(&self, metrics: &Metrics) {
        let now = metrics.requests_by_outcome();
        let mut readings = locked(&self.readings);
        readings.push_back(now);
        while readings.len() > HOUR {
            readings.pop_front();
        }
    }

    /// The spans between the readings, the oldest first; the last one ends now.
    pub(super) fn spans(&self, metrics: &Metrics) -> Vec<Ends> {
        let readings = self.until_now(metrics);
        let pairs = readings.iter().zip(readings.iter().skip(1));
        pairs
            .map(|(before, after)| {
                let mut ends = Ends::default();
                for ((outcome, before), after) in Outcome::ALL.iter().zip(before).zip(after) {
                    ends[kind(*outcome) as usize] += after.saturating_sub(*before);
                }
                ends
            })
            .collect()
    }

    /// How many requests ended with each outcome: in the last readings that span five minutes, in
    /// the last hour, and since the start. Only those that are not 0.
    pub(super) fn outcomes(&self, metrics: &Metrics) -> Vec<(Outcome, [u64; 3])> {
        let readings = self.until_now(metrics);
        let five_minutes = readings.len().saturating_sub(11);
        let since = |index: usize, at: usize| {
            let now = readings.last().map_or(0, |last| last[at]);
            now.saturating_sub(readings.get(index).map_or(0, |first| first[at]))
        };
        let all = Outcome::ALL.iter().enumerate();
        all.map(|(at, outcome)| {
            let total = readings.last().map_or(0, |last| last[at]);
            (*outcome, [since(five_minutes, at), since(0, at), total])
        })
        .filter(|(_, [_, _, total])| *total > 0)
        .collect()
    }

    fn until_now(&self, metrics: &Metrics) -> Vec<Vec<u64>> {
        let now = metrics.requests_by_outcome();
        let readings = locked(&self.readings);
        readings.iter().cloned().chain([now]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mode;

    #[test]
    fn an_hour_is_kept_and_told_by_span_and_outcome() {
        let metrics = Metrics::new(&[("/a".into(), Mode::Enforce)]);
        let route = metrics.route("/a");
        let history = History::default();
        assert!(history.spans(&metrics).is_empty(), "no reading yet");
        for _ in 0..HOUR + 7 {
            history.read(&metrics);
            route.request(Outcome::Advanced);
            route.request(Outcome::StaleToken);
        }
        route.request(Outcome::OutcomeUnknown);
        let spans = history.spans(&metrics);
        assert_eq!(spans.len(), HOUR);
        let (last, first) = (spans[HOUR - 1], spans[0]);
        assert_eq!(first, [1, 1, 0]);
        assert_eq!(last, [1, 1, 1]);
        let outcomes = history.outcomes(&metrics);
        let of = |wanted| outcomes.iter().find(|(outcome, _)| *outcome == wanted);
        let counts = of(Outcome::StaleToken).map(|(_, counts)| *counts);
        assert_eq!(counts, Some([10, 120, 127]));
        assert_eq!(of(Outcome::TokenRequired), None);
    }

    #[test]
    fn what_would_be_refused_has_passed() {
        for outcome in Outcome::ALL {
            let observed = outcome.as_str().starts_with("observed-");
            assert!(!observed || kind(*outcome) == EndKind::Passed, "{outcome}");
        }
        assert_eq!(kind(Outcome::StaleToken), EndKind::Refused);
        assert_eq!(kind(Outcome::OutcomeUnknown), EndKind::Unknown);
    }
}
