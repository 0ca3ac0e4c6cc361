//! The scenarios: one for each problem type, and others. The answers are [`Refusal`]s of the data
//! path, which writes them, so nothing here repeats a status or a title.

use std::fmt;
use std::time::Duration;

use fencepost::fencing::{Refused, Undecided};
use fencepost::metrics::{DecidedBy, Limit};
use fencepost::proxy::{AnswerStyle, Refusal, Retry};
use fencepost::routing::Token;

/// A name in the URL, and the answers below it.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// The answer to the first writes. Later ones, reads and claims are accepted.
    answer: Answer,
    /// The number of writes that get the answer.
    pub times: usize,
    /// Claims get the answer, and all writes are accepted.
    pub claims: bool,
}

/// Every write, or every claim.
const EVERY: usize = usize::MAX;

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// By the upstream: it is done.
    Accepted,
    Claimed,
    Refused(Refusal, Form),
    /// A 503 of the upstream.
    UpstreamError,
    /// The connection ends after the request took effect.
    ConnectionLost,
}

/// The form of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub style: AnswerStyle,
    /// It names resource and token.
    pub has_subject: bool,
}

/// A refusal on a route without options.
const LATE: Form = Form {
    style: AnswerStyle {
        stale_status: 412,
        disclose: true,
        grpc: false,
    },
    has_subject: true,
};
/// The same, before resource and token are known.
pub const EARLY: Form = Form {
    has_subject: false,
    ..LATE
};

/// The reason of refusals that have one.
const WHY: &str = "This scenario refuses the request";

const LOWEST: Token = Token::new(0).expect("not negative");

/// The table of scenarios.
pub fn all() -> Vec<Scenario> {
    use Refusal as R;
    let early = |refusal| Answer::Refused(refusal, EARLY);
    let late = |refusal| Answer::Refused(refusal, LATE);
    let why = || WHY.to_owned();
    let unreachable = || R::Unreachable(why());
    let (mut conflict, mut undisclosed) = (LATE, LATE);
    conflict.style.stale_status = 409;
    undisclosed.style.disclose = false;
    let conflict = Answer::Refused(stale(LOWEST), conflict);
    let undisclosed = Answer::Refused(stale(LOWEST), undisclosed);
    let implausible = Refused::Implausible { mark: Some(LOWEST) }.into();
    let not_allowed = R::MethodNotAllowed("GET, HEAD, OPTIONS".into());
    let not_in_time = R::ClientGone("The body did not come in time".into());
    let too_slow = R::TooSlow(Duration::from_secs(30));
    let table = [
        ("accepted", EVERY, Answer::Accepted),
        ("stale-token", EVERY, late(stale(LOWEST))),
        ("token-required", EVERY, early(R::TokenRequired)),
        ("malformed-token", EVERY, early(R::MalformedToken(why()))),
        ("implausible-token", EVERY, late(implausible)),
        ("ambiguous-request", EVERY, early(R::Ambiguous(why()))),
        ("no-route", EVERY, early(R::NoRoute)),
        ("method-not-allowed", EVERY, early(not_allowed)),
        ("client-refused", EVERY, early(R::ClientRefused)),
        // A bearer token is required of claims only.
        ("unauthorized", EVERY, early(R::Unauthorized)),
        ("content-too-large", EVERY, late(R::TooLarge(why()))),
        ("head-too-large", EVERY, early(R::HeadTooLarge(why()))),
        ("target-too-long", EVERY, early(R::TargetTooLong(why()))),
        (
            "version-not-supported",
            EVERY,
            early(R::VersionNotSupported),
        ),
        ("loop-detected", EVERY, early(R::Loop)),
        // The second try is not the last one.
        (
            "overloaded",
            2,
            late(Refused::Limited(Limit::InFlight).into()),
        ),
        ("store-unavailable", 1, late(no_store(Undecided::Lapsed))),
        ("older-in-flight", 1, late(older_in_flight(2))),
        ("upstream-unreachable", 1, late(unreachable())),
        ("outcome-unknown", 1, late(R::Broken(why()))),
        ("request-timeout", 1, early(not_in_time)),
        ("upgrade-refused", EVERY, early(R::UpgradeRefused)),
        ("operation-under-way", 1, late(R::OperationUnderWay)),
        ("operation-unknown", EVERY, late(R::OperationUnknown)),
        ("operation-mismatch", EVERY, late(R::OperationMismatch)),
        // Other forms of the types.
        ("stale-token-409", EVERY, conflict),
        ("stale-token-undisclosed", EVERY, undisclosed),
        // Beyond 2^53, and so beyond the numbers of JavaScript.
        ("large-numbers", EVERY, late(stale(Token::MAX))),
        ("spent", EVERY, late(Refused::Spent.into())),
        (
            "store-unavailable-spent",
            EVERY,
            late(no_store(Undecided::Lapsed).and_spent()),
        ),
        (
            "upstream-unreachable-spent",
            EVERY,
            late(unreachable().and_spent()),
        ),
        ("outcome-unknown-504", 1, late(too_slow)),
        ("older-in-flight-forever", EVERY, late(older_in_flight(1))),
        (
            "retry-after-long",
            EVERY,
            late(no_store(Undecided::Repairing(Duration::from_hours(1)))),
        ),
        ("claim-stale", EVERY, late(stale(LOWEST))),
        ("claim-waits", 1, late(older_in_flight(1))),
        // No refusals.
        ("connection-lost", 1, Answer::ConnectionLost),
        ("upstream-error", EVERY, Answer::UpstreamError),
    ];
    let scenarios = table.into_iter().map(|(name, times, answer)| Scenario {
        name,
        answer,
        times,
        claims: ["unauthorized", "claim-stale", "claim-waits"].contains(&name),
    });
    scenarios.collect()
}

/// By this mark, or by a higher one if the token is not below it.
fn stale(mark: Token) -> Refusal {
    Refused::stale(mark, DecidedBy::Store).into()
}

fn no_store(why: Undecided) -> Refusal {
    Refused::Unavailable(why).into()
}

fn older_in_flight(seconds: u64) -> Refusal {
    Refused::OlderInFlight {
        retry_after: Duration::from_secs(seconds),
        settling: false,
    }
    .into()
}

impl Answer {
    /// The advice to the client; `None`: it may go on.
    pub fn retry(&self) -> Option<Retry> {
        match self {
            Self::Refused(refusal, _) => Some(refusal.retry()),
            Self::ConnectionLost => Some(Retry::CheckFirst),
            Self::Accepted | Self::Claimed | Self::UpstreamError => None,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal, _) => refusal.retry_after(),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (refusal, form) = match self {
            Self::Accepted => return f.write_str("200"),
            Self::Claimed => return f.write_str("204 claimed"),
            Self::UpstreamError => return f.write_str("503 of the upstream"),
            Self::ConnectionLost => return f.write_str("nothing: the connection ended"),
            Self::Refused(refusal, form) => (refusal, form),
        };
        let (status, retry) = (
            refusal.status(form.style).as_u16(),
            refusal.retry().as_str(),
        );
        write!(f, "{status} {}, {retry}", refusal.outcome())?;
        match refusal.retry_after() {
            Some(after) => write!(f, ", Retry-After: {}", after.as_secs()),
            None => Ok(()),
        }
    }
}

impl Scenario {
    /// The planned answer to a request with this token.
    pub fn answer(&self, token: Token) -> Answer {
        let mut answer = self.answer.clone();
        if let Answer::Refused(Refusal::Fence(refused), _) = &mut answer
            && let Refused::Stale { mark, .. } = refused
        {
            let next = token.get().checked_add(1).and_then(Token::new);
            *mark = next.unwrap_or(Token::MAX).max(*mark);
        }
        answer
    }

    /// Every try gets `same-token`, so a correct client may stop.
    pub fn may_give_up(&self) -> bool {
        self.times == EVERY && self.answer.retry() == Some(Retry::SameToken)
    }

    /// A write of a correct client is accepted in the end.
    pub fn ends_with_a_write(&self) -> bool {
        match self.answer.retry() {
            None => matches!(self.answer, Answer::Accepted),
            Some(retry) => retry == Retry::SameToken && !self.may_give_up(),
        }
    }

    /// The answers, for people.
    pub fn answers(&self) -> String {
        let what = if self.claims { "claim" } else { "write" };
        let which = match self.times {
            EVERY => format!("every {what}"),
            1 => format!("the first {what}"),
            times => format!("the first {times} {what}s"),
        };
        format!("{which}: {}", self.answer)
    }

    /// The behaviour of a correct client, for people.
    pub fn expected(&self) -> &'static str {
        use Retry::{CheckFirst, Never, SameToken};
        match (self.answer.retry(), self.claims, self.ends_with_a_write()) {
            (None, _, true) => "writes with its token",
            (None, _, false) => "writes with its token, and treats the answer as its API's own",
            (Some(Never), true, _) => "claims, and writes nothing after the refusal",
            (Some(Never), false, _) => "sends no further writes after the refusal",
            (Some(CheckFirst), ..) => "does not send the write again; it may read",
            (Some(SameToken), _, false) => {
                "stops, or sends the same request again with the same token, never before Retry-After"
            }
            (Some(SameToken), true, true) => {
                "claims again with the same token, not before Retry-After, and then writes"
            }
            (Some(SameToken), false, true) => {
                "sends the same request again with the same token, not before Retry-After"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fencepost::metrics::Outcome;

    use super::*;

    #[test]
    fn each_refusal_has_a_scenario_and_each_name_is_used_once() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all.len());
        let passed = [
            Outcome::Advanced,
            Outcome::Current,
            Outcome::Unfenced,
            Outcome::Claimed,
            Outcome::Replayed,
        ];
        let refusals = Outcome::ALL.iter().filter(|outcome| {
            !passed.contains(outcome) && !outcome.as_str().starts_with("observed-")
        });
        for outcome in refusals {
            let name = outcome.as_str();
            let scenario = all.iter().find(|scenario| scenario.name == name);
            let answers = scenario.map(Scenario::answers).unwrap_or_default();
            assert!(answers.contains(&format!(" {name}, ")), "{name}: {answers}");
        }
    }

    #[test]
    fn a_mark_is_above_the_token() {
        let all = all();
        let scenario = all.iter().find(|scenario| scenario.name == "stale-token");
        let scenario = scenario.expect("a scenario");
        for token in [0, 41, i64::MAX - 1] {
            let answer = scenario.answer(Token::new(token).expect("a token"));
            let above = Token::new(token + 1).expect("a token");
            let Answer::Refused(refusal, _) = answer else {
                panic!("{answer:?}");
            };
            let Refusal::Fence(refused) = refusal else {
                panic!("{refusal:?}");
            };
            assert_eq!(refused, Refused::stale(above, DecidedBy::Store));
        }
    }

    #[test]
    fn every_try_is_refused_where_the_advice_is_never() {
        for scenario in all() {
            let never = scenario.answer.retry() == Some(Retry::Never);
            assert!(!never || scenario.times == EVERY, "{}", scenario.name);
        }
    }
}
