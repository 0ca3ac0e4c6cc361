//! The runs: what has come in each, so that it can be answered and judged. Memory is bounded: the
//! oldest runs are forgotten, and of a run the first requests are kept.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderValue;
use lru::LruCache;
use serde::Serialize;
use tokio::time::Instant;

use super::judge::{RunRequest, claimed, problems};
use super::scenarios::Scenario;

/// The most runs that are kept.
pub(super) const MOST_RUNS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// The most requests of a run that are kept.
pub(super) const MOST_REQUESTS: usize = 64;

/// Every run, by the name of its scenario and its own. Short sections, never across an await.
pub(super) struct ConformanceRuns(Mutex<LruCache<(&'static str, String), RunLog>>);

/// One run.
pub(super) struct RunLog {
    began: Instant,
    requests: Vec<RunRequest>,
    /// Requests that came after those that are kept.
    more: usize,
    /// How often the scenario's own answer was given.
    pub planned: usize,
    /// The last write that took effect.
    pub document: Option<Document>,
}

/// The content that a read of `target` shows.
#[derive(Clone)]
pub(super) struct Document {
    pub target: String,
    pub kind: Option<HeaderValue>,
    pub content: Bytes,
}

/// The verdict, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct RunVerdict {
    scenario: &'static str,
    run: String,
    passed: bool,
    expected: &'static str,
    /// A claim was granted before the first write.
    claimed: bool,
    requests: Vec<ShownRequest>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ShownRequest {
    method: String,
    path: String,
    token: Option<String>,
    after_ms: u128,
    answered: String,
}

impl ConformanceRuns {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MOST_RUNS)))
    }

    /// Hands out a run, which begins if it is new.
    pub(super) fn with<T>(
        &self,
        scenario: &'static str,
        run: &str,
        now: Instant,
        use_it: impl FnOnce(&mut RunLog) -> T,
    ) -> T {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scenario, run.to_owned());
        use_it(runs.get_or_insert_mut(key, || RunLog::new(now)))
    }

    /// The verdict about a run. A run that nobody began has not passed.
    pub(super) fn verdict(&self, scenario: &Scenario, run: &str) -> RunVerdict {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let log = runs.get(&(scenario.name, run.to_owned()));
        let (requests, more) = log.map_or((&[][..], 0), |log| (&log.requests[..], log.more));
        let mut problems = problems(scenario.expectation(), requests);
        if more > 0 {
            problems.push(format!(
                "{more} more requests came; the first {MOST_REQUESTS} of a run are kept"
            ));
        }
        RunVerdict {
            scenario: scenario.name,
            run: run.to_owned(),
            passed: problems.is_empty(),
            expected: scenario.expected(),
            claimed: claimed(requests),
            requests: requests.iter().map(shown).collect(),
            problems,
        }
    }
}

impl RunLog {
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            requests: Vec::new(),
            more: 0,
            planned: 0,
            document: None,
        }
    }

    /// When the first request came.
    pub(super) const fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn record(&mut self, request: RunRequest) {
        self.planned += usize::from(request.answer.is_planned());
        if self.requests.len() < MOST_REQUESTS {
            self.requests.push(request);
        } else {
            self.more += 1;
        }
    }
}

fn shown(request: &RunRequest) -> ShownRequest {
    ShownRequest {
        method: request.method.clone(),
        path: request.target.clone(),
        token: request.token.clone().ok(),
        after_ms: request.came.as_millis(),
        answered: request.answer.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::judge::{RequestKind, RunAnswer};
    use super::super::scenarios;
    use super::*;

    fn write() -> RunRequest {
        RunRequest {
            kind: RequestKind::Write,
            method: "PUT".into(),
            target: "/orders/7".into(),
            token: Ok("7".into()),
            content: [0; 32],
            came: Duration::ZERO,
            answered: Duration::ZERO,
            answer: RunAnswer::Accepted,
        }
    }

    fn accepted() -> Scenario {
        scenarios::all().swap_remove(0)
    }

    #[tokio::test]
    async fn of_a_run_the_first_requests_are_kept_and_more_do_not_pass() {
        let (runs, scenario) = (ConformanceRuns::new(), accepted());
        let take = || {
            runs.with(scenario.name, "1", Instant::now(), |log| {
                log.record(write());
            });
        };
        for _ in 0..MOST_REQUESTS {
            take();
        }
        let verdict = runs.verdict(&scenario, "1");
        assert!(verdict.passed, "{verdict:?}");
        take();
        let verdict = runs.verdict(&scenario, "1");
        assert_eq!(verdict.requests.len(), MOST_REQUESTS);
        assert!(!verdict.passed && verdict.problems[0].starts_with("1 more requests"));
    }

    #[tokio::test]
    async fn the_oldest_runs_are_forgotten() {
        let (runs, scenario) = (ConformanceRuns::new(), accepted());
        for run in 0..=MOST_RUNS.get() {
            runs.with(scenario.name, &run.to_string(), Instant::now(), |log| {
                log.record(write());
            });
        }
        let passed = |run: usize| runs.verdict(&scenario, &run.to_string()).passed;
        assert!(!passed(0) && passed(1) && passed(MOST_RUNS.get()));
    }
}
