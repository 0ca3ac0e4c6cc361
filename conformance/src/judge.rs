//! The judge: from the requests of a run to what was wrong with them.

use std::fmt;
use std::time::Duration;

use fencepost::proxy::Retry;
use fencepost::routing::Token;
use serde_json::{Value, json};

use crate::scenarios::{Answer, Scenario};

/// The most requests that a run may have.
pub const MAX_REQUESTS: usize = 64;
/// By how much a request may come before `Retry-After` is over: timers round to milliseconds.
const TOLERANCE: Duration = Duration::from_millis(20);

/// A request as the server has seen it. Times count from the first request of the run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// Counts from 1.
    pub number: usize,
    pub kind: RequestKind,
    pub method: String,
    /// Below the base URL, with its query.
    pub target: String,
    /// What a retry repeats: `PUT /orders/7`.
    pub subject: String,
    /// An error says what is wrong with the field.
    pub token: Result<Token, String>,
    /// A hash of the body.
    pub content: u64,
    /// When its head had come.
    pub came: Duration,
    /// When the answer was made.
    pub answered: Duration,
    pub answer: Answer,
    /// The answer is the one that the scenario is about.
    pub planned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Not judged: reads pass.
    Read,
    Write,
    Claim,
}

impl fmt::Display for RunRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} ({})", self.number, self.subject)
    }
}

/// The verdict about a run, as JSON.
pub fn verdict(scenario: &Scenario, run: &str, requests: &[RunRequest]) -> Value {
    let problems = problems(scenario, requests);
    let shown = requests.iter().map(|one| {
        json!({
            "method": one.method,
            "path": one.target,
            "token": one.token.as_ref().ok().map(Token::to_string),
            "after_ms": one.came.as_millis(),
            "answered": one.answer.to_string(),
        })
    });
    json!({
        "scenario": scenario.name,
        "run": run,
        "passed": problems.is_empty(),
        "expected": scenario.expected(),
        "claimed": claimed(requests),
        "requests": shown.collect::<Vec<_>>(),
        "problems": problems,
    })
}

/// A claim was granted before the first write.
fn claimed(requests: &[RunRequest]) -> bool {
    let first = requests.iter().find(|one| match one.kind {
        RequestKind::Read => false,
        RequestKind::Write => true,
        RequestKind::Claim => matches!(one.answer, Answer::Claimed),
    });
    first.is_some_and(|one| one.kind == RequestKind::Claim)
}

/// The faults of a run. Without one, the client has passed.
fn problems(scenario: &Scenario, requests: &[RunRequest]) -> Vec<String> {
    let fenced = requests.iter().filter(|one| one.kind != RequestKind::Read);
    let fenced: Vec<&RunRequest> = fenced.collect();
    let token = fenced.iter().find_map(|one| one.token.as_ref().ok());
    let tokens = fenced.iter().filter_map(|one| one_token(one, token));
    let obeyed = (1..)
        .zip(&fenced)
        .filter_map(|(next, one)| obeys(scenario, one, &fenced[next..]));
    let end = whole_run(scenario, requests, &fenced);
    tokens.chain(obeyed).chain(end).collect()
}

/// Each request has a well-formed token, the one that the run began with.
fn one_token(one: &RunRequest, first: Option<&Token>) -> Option<String> {
    match (&one.token, first) {
        (Err(error), _) => Some(format!("{one}: {error}")),
        (Ok(token), Some(first)) if token != first => Some(format!(
            "{one} has token {token} after {first}: a run is one hold of the lock"
        )),
        (Ok(_), _) => None,
    }
}

/// The later requests do what the answer of this one asks for. A retry has the body of the request
/// that it repeats, and does not come early.
fn obeys(scenario: &Scenario, one: &RunRequest, later: &[&RunRequest]) -> Option<String> {
    let answer = &one.answer;
    let mut same = later.iter().filter(|next| next.subject == one.subject);
    // A request that was on its way already could not know the answer.
    let knew = |next: &&&RunRequest| next.came > one.answered;
    match answer.retry()? {
        Retry::Never => later
            .iter()
            .find(knew)
            .map(|next| format!("{next} came after {one} was answered with {answer}")),
        Retry::CheckFirst => same.find(knew).map(|again| {
            format!(
                "{again} repeats {one}, which may have taken effect: it was answered with {answer}"
            )
        }),
        Retry::SameToken => {
            let Some(again) = same.next() else {
                return (!scenario.may_give_up())
                    .then(|| format!("{one} was answered with {answer}, and was not sent again"));
            };
            let waited = again.came.saturating_sub(one.answered);
            let after = answer.retry_after().unwrap_or_default();
            if again.content != one.content {
                Some(format!(
                    "{again} has another body than {one}, which it repeats"
                ))
            } else if waited + TOLERANCE < after {
                let (waited, after) = (waited.as_millis(), after.as_secs());
                Some(format!(
                    "{again} came {waited} ms after {one} was refused, with Retry-After: {after}"
                ))
            } else {
                None
            }
        }
    }
}

/// The run has met the answer of its scenario, and came to the right end.
fn whole_run(
    scenario: &Scenario,
    requests: &[RunRequest],
    fenced: &[&RunRequest],
) -> Option<String> {
    let accepted = fenced
        .iter()
        .any(|one| matches!(one.answer, Answer::Accepted));
    let planned = fenced.iter().any(|one| one.planned);
    let claims_first = fenced
        .iter()
        .take(1)
        .all(|one| one.kind == RequestKind::Claim);
    let writes = scenario.ends_with_a_write();
    let faults = [
        (
            requests.len() > MAX_REQUESTS,
            "more requests came than a run may have",
        ),
        (fenced.is_empty(), "no write and no claim came"),
        (
            scenario.claims && !claims_first,
            "no claim came before the first write",
        ),
        (writes && !accepted, "no write was accepted"),
        (
            !writes && !planned,
            "no write came that the scenario could answer",
        ),
    ];
    let fault = faults.into_iter().find(|(found, _)| *found);
    fault.map(|(_, fault)| fault.to_owned())
}

#[cfg(test)]
mod tests;
