//! The judge: a pure function from the requests of a run to what was wrong with them.

use std::time::Duration;

use super::scenarios::Expectation;
use crate::proxy::Retry;

/// By how much a request may come before `Retry-After` is over: timers round to milliseconds.
const TOLERANCE: Duration = Duration::from_millis(20);

/// A request as the server has seen it. Times count from the first request of the run.
#[derive(Clone, Debug)]
pub(super) struct RunRequest {
    pub kind: RequestKind,
    pub method: String,
    /// Below the base URL, with its query.
    pub target: String,
    /// The token; an error says what is wrong with its field.
    pub token: Result<String, String>,
    /// A digest of the body.
    pub content: [u8; 32],
    /// When its head had come.
    pub came: Duration,
    /// When the answer was made.
    pub answered: Duration,
    pub answer: RunAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// Judged by nothing: reads pass.
    Read,
    Write,
    /// With what it claims.
    Claim(String),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunAnswer {
    /// By the upstream: it is done.
    Accepted,
    Claimed,
    Refused {
        status: u16,
        outcome: &'static str,
        retry: Retry,
        after: Option<Duration>,
        /// The scenario is about this refusal, and the request did not earn it itself.
        planned: bool,
    },
    /// A 503 of the upstream.
    UpstreamError,
    /// The connection has ended.
    NoAnswer,
}

impl std::fmt::Display for RunAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Accepted => f.write_str("200"),
            Self::Claimed => f.write_str("204 claimed"),
            Self::UpstreamError => f.write_str("503 of the upstream"),
            Self::NoAnswer => f.write_str("nothing: the connection ended"),
            Self::Refused {
                status,
                outcome,
                retry,
                after,
                ..
            } => {
                write!(f, "{status} {outcome}, {}", retry.as_str())?;
                match after {
                    Some(after) => write!(f, ", Retry-After: {}", after.as_secs()),
                    None => Ok(()),
                }
            }
        }
    }
}

impl RunAnswer {
    /// It is what the scenario is about.
    pub(super) const fn is_planned(self) -> bool {
        match self {
            Self::Refused { planned, .. } => planned,
            Self::UpstreamError | Self::NoAnswer => true,
            Self::Accepted | Self::Claimed => false,
        }
    }
}

impl RunRequest {
    /// The thing that a retry repeats: `PUT /orders/7`.
    pub(super) fn subject(&self) -> String {
        match &self.kind {
            RequestKind::Claim(of) => format!("the claim of {of}"),
            RequestKind::Read | RequestKind::Write => format!("{} {}", self.method, self.target),
        }
    }

    fn is_claim(&self) -> bool {
        matches!(self.kind, RequestKind::Claim(_))
    }
}

/// Whether a claim was granted before the first write.
pub(super) fn claimed(requests: &[RunRequest]) -> bool {
    let mut first = requests
        .iter()
        .take_while(|one| one.kind != RequestKind::Write);
    first.any(|one| one.answer == RunAnswer::Claimed)
}

/// The faults of a run, in the order of its requests. Without one, the client has passed.
pub(super) fn problems(expectation: Expectation, requests: &[RunRequest]) -> Vec<String> {
    let mut problems = Vec::new();
    // Reads pass; a request's number counts them too.
    let fenced: Vec<(usize, &RunRequest)> = (1..)
        .zip(requests)
        .filter(|(_, one)| one.kind != RequestKind::Read)
        .collect();
    tokens(&fenced, &mut problems);
    for (at, &(number, refused)) in fenced.iter().enumerate() {
        let later = &fenced[at + 1..];
        obeys(expectation, (number, refused), later, &mut problems);
    }
    reaches_the_end(expectation, &fenced, &mut problems);
    problems
}

/// Each request has one well-formed token, and it is that of the first.
fn tokens(fenced: &[(usize, &RunRequest)], problems: &mut Vec<String>) {
    let mut held: Option<&str> = None;
    for (number, one) in fenced {
        let subject = one.subject();
        match (&one.token, held) {
            (Err(error), _) => problems.push(format!("request {number} ({subject}): {error}")),
            (Ok(token), None) => held = Some(token),
            (Ok(token), Some(held)) if token != held => problems.push(format!(
                "request {number} ({subject}) has token {token} after {held}: a run is one hold of \
                 the lock"
            )),
            (Ok(_), Some(_)) => {}
        }
    }
}

/// The later requests do what the answer of this one asks for.
fn obeys(
    expectation: Expectation,
    (number, one): (usize, &RunRequest),
    later: &[(usize, &RunRequest)],
    problems: &mut Vec<String>,
) {
    let subject = one.subject();
    let answer = one.answer;
    let same = later.iter().find(|(_, later)| later.subject() == subject);
    // A request that was on its way already could not know the answer.
    let after_it = |later: &&(usize, &RunRequest)| later.1.came > one.answered;
    match answer {
        RunAnswer::Accepted | RunAnswer::Claimed | RunAnswer::UpstreamError => {}
        RunAnswer::NoAnswer
        | RunAnswer::Refused {
            retry: Retry::CheckFirst,
            ..
        } => {
            let again = |one: &&(usize, &RunRequest)| one.1.subject() == subject && after_it(one);
            if let Some((again, _)) = later.iter().find(again) {
                problems.push(format!(
                    "request {again} ({subject}) repeats request {number}, which may have taken \
                     effect: it was answered with {answer}"
                ));
            }
        }
        RunAnswer::Refused {
            retry: Retry::Never,
            ..
        } => {
            if let Some((next, another)) = later.iter().find(after_it) {
                problems.push(format!(
                    "request {next} ({}) came after request {number} ({subject}) was answered with \
                     {answer}",
                    another.subject()
                ));
            }
        }
        RunAnswer::Refused {
            retry: Retry::SameToken,
            after,
            ..
        } => match same {
            Some(same) => same_again((number, one), *same, after, problems),
            None if expectation.may_give_up => {}
            None => problems.push(format!(
                "request {number} ({subject}) was answered with {answer}, and was not sent again"
            )),
        },
    }
}

/// `again` is the same request, and does not come early.
fn same_again(
    (number, refused): (usize, &RunRequest),
    (next, again): (usize, &RunRequest),
    after: Option<Duration>,
    problems: &mut Vec<String>,
) {
    let subject = refused.subject();
    if again.content != refused.content {
        problems.push(format!(
            "request {next} ({subject}) has another body than request {number}, which it repeats"
        ));
    }
    let waited = again.came.saturating_sub(refused.answered);
    let asked = after.unwrap_or_default();
    if waited + TOLERANCE < asked {
        problems.push(format!(
            "request {next} ({subject}) came {} ms after request {number} was refused, with \
             Retry-After: {}",
            waited.as_millis(),
            asked.as_secs()
        ));
    }
}

/// The run has met what its scenario is about, and came to the right end.
fn reaches_the_end(
    expectation: Expectation,
    fenced: &[(usize, &RunRequest)],
    problems: &mut Vec<String>,
) {
    let mut say = |problem: &str| problems.push(problem.to_owned());
    let answers = || fenced.iter().map(|(_, one)| one.answer);
    let claim = fenced.iter().position(|(_, one)| one.is_claim());
    let write = fenced.iter().position(|(_, one)| !one.is_claim());
    if fenced.is_empty() {
        say("no write and no claim came");
    } else if expectation.claims && claim.is_none_or(|at| write.is_some_and(|write| write < at)) {
        say("no claim came before the first write");
    } else if expectation.writes && !answers().any(|one| one == RunAnswer::Accepted) {
        say("no write was accepted");
    } else if !expectation.writes && !answers().any(RunAnswer::is_planned) {
        say("no write came that the scenario could answer");
    }
}

#[cfg(test)]
mod tests;
