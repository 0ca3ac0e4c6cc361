//! The judge: from the requests of a run to what was wrong with them.

use std::time::Duration;

use fencepost::proxy::Retry;
use fencepost::routing::Token;
use serde::Serialize;

use crate::scenarios::{Answer, Scenario};

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Not judged: reads pass.
    Read,
    Write,
    /// With the target or resource that it claims.
    Claim(String),
}

impl RunRequest {
    /// The request that a retry repeats: `PUT /orders/7`.
    fn subject(&self) -> String {
        match &self.kind {
            RequestKind::Claim(of) => format!("the claim of {of}"),
            RequestKind::Read | RequestKind::Write => format!("{} {}", self.method, self.target),
        }
    }

    fn is_claim(&self) -> bool {
        matches!(self.kind, RequestKind::Claim(_))
    }
}

/// The verdict, as JSON.
#[derive(Debug, Serialize)]
pub struct Verdict<'a> {
    scenario: &'static str,
    run: &'a str,
    passed: bool,
    expected: &'static str,
    /// A claim was granted before the first write.
    claimed: bool,
    requests: Vec<ShownRequest<'a>>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ShownRequest<'a> {
    method: &'a str,
    path: &'a str,
    token: Option<String>,
    after_ms: u128,
    answered: String,
}

/// Judges a run by its first requests and by the number of others.
pub fn verdict<'a>(
    scenario: &Scenario,
    run: &'a str,
    requests: &'a [RunRequest],
    more: usize,
) -> Verdict<'a> {
    let mut problems = problems(scenario, requests);
    if more > 0 {
        let kept = requests.len();
        problems.push(format!(
            "{more} more requests came; the first {kept} of a run are kept"
        ));
    }
    let shown = requests.iter().map(|one| ShownRequest {
        method: &one.method,
        path: &one.target,
        token: one.token.as_ref().ok().map(Token::to_string),
        after_ms: one.came.as_millis(),
        answered: one.answer.to_string(),
    });
    Verdict {
        scenario: scenario.name,
        run,
        passed: problems.is_empty(),
        expected: scenario.expected(),
        claimed: claimed(requests),
        requests: shown.collect(),
        problems,
    }
}

fn claimed(requests: &[RunRequest]) -> bool {
    let mut first = requests
        .iter()
        .take_while(|one| one.kind != RequestKind::Write);
    first.any(|one| matches!(one.answer, Answer::Claimed))
}

/// The faults of a run. Without one, the client has passed.
fn problems(scenario: &Scenario, requests: &[RunRequest]) -> Vec<String> {
    let fenced: Vec<&RunRequest> = requests
        .iter()
        .filter(|one| one.kind != RequestKind::Read)
        .collect();
    let token = fenced.iter().find_map(|one| one.token.as_ref().ok());
    let tokens = fenced.iter().filter_map(|one| one_token(one, token));
    let obeyed = (1..)
        .zip(&fenced)
        .filter_map(|(next, one)| obeys(scenario, one, &fenced[next..]));
    let end = reaches_the_end(scenario, &fenced).map(str::to_owned);
    tokens.chain(obeyed).chain(end).collect()
}

/// Each request has a well-formed token, the one that the run began with.
fn one_token(one: &RunRequest, first: Option<&Token>) -> Option<String> {
    let (number, subject) = (one.number, one.subject());
    match (&one.token, first) {
        (Err(error), _) => Some(format!("request {number} ({subject}): {error}")),
        (Ok(token), Some(first)) if token != first => Some(format!(
            "request {number} ({subject}) has token {token} after {first}: a run is one hold of the \
             lock"
        )),
        (Ok(_), _) => None,
    }
}

/// The later requests do what the answer of this one asks for.
fn obeys(scenario: &Scenario, one: &RunRequest, later: &[&RunRequest]) -> Option<String> {
    let RunRequest { number, answer, .. } = one;
    let subject = one.subject();
    let mut same = later.iter().filter(|later| later.subject() == subject);
    // A request that was on its way already could not know the answer.
    let knew = |later: &&&RunRequest| later.came > one.answered;
    match answer.retry()? {
        Retry::Never => later.iter().find(knew).map(|next| {
            let (next, another) = (next.number, next.subject());
            format!(
                "request {next} ({another}) came after request {number} ({subject}) was answered with \
                 {answer}"
            )
        }),
        Retry::CheckFirst => same.find(knew).map(|again| {
            let again = again.number;
            format!(
                "request {again} ({subject}) repeats request {number}, which may have taken effect: \
                 it was answered with {answer}"
            )
        }),
        Retry::SameToken => match same.next() {
            Some(again) => is_the_same(one, again),
            None if scenario.may_give_up() => None,
            None => Some(format!(
                "request {number} ({subject}) was answered with {answer}, and was not sent again"
            )),
        },
    }
}

/// A retry has the body of the request that it repeats, and does not come early.
fn is_the_same(refused: &RunRequest, again: &RunRequest) -> Option<String> {
    let (number, next, subject) = (refused.number, again.number, again.subject());
    let waited = again.came.saturating_sub(refused.answered);
    let after = refused.answer.retry_after().unwrap_or_default();
    if again.content != refused.content {
        Some(format!(
            "request {next} ({subject}) has another body than request {number}, which it repeats"
        ))
    } else if waited + TOLERANCE < after {
        let (waited, after) = (waited.as_millis(), after.as_secs());
        Some(format!(
            "request {next} ({subject}) came {waited} ms after request {number} was refused, with \
             Retry-After: {after}"
        ))
    } else {
        None
    }
}

/// The run has met the answer of its scenario, and came to the right end.
fn reaches_the_end(scenario: &Scenario, fenced: &[&RunRequest]) -> Option<&'static str> {
    let any = |rule: fn(&RunRequest) -> bool| fenced.iter().any(|one| rule(one));
    let writes = scenario.ends_with_a_write();
    if fenced.is_empty() {
        Some("no write and no claim came")
    } else if scenario.claims && !fenced[0].is_claim() {
        Some("no claim came before the first write")
    } else if writes && !any(|one| matches!(one.answer, Answer::Accepted)) {
        Some("no write was accepted")
    } else if !writes && !any(|one| one.planned) {
        Some("no write came that the scenario could answer")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
