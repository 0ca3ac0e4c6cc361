//! The scenarios: one for each problem type, and others. The answers are [`Refusal`]s of the data
//! path, which writes them, so nothing here repeats a status or a title.

use std::fmt;
use std::time::Duration;

use fencepost::metrics::DecidedBy;
use fencepost::proxy::headers::via::Loop;
use fencepost::proxy::{AnswerStyle, Refusal, Retry, Why};
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
    Refused {
        refusal: Refusal,
        style: AnswerStyle<'static>,
        /// It names resource and token. A request that is refused earlier has none yet.
        has_subject: bool,
    },
    /// A 503 of the upstream.
    UpstreamError,
    /// The connection ends after the request took effect.
    ConnectionLost,
}

/// The answers of a route without options.
const PLAIN: AnswerStyle<'_> = AnswerStyle {
    stale_status: 412,
    disclose: true,
    grpc: false,
    problems: None,
};

/// The reason of refusals that have one.
const WHY: &str = "This scenario refuses the request";

const LOWEST: Token = Token::new(0).expect("not negative");

/// The table of scenarios.
pub fn all() -> Vec<Scenario> {
    use Refusal as R;
    let conflict = AnswerStyle {
        stale_status: 409,
        ..PLAIN
    };
    let undisclosed = AnswerStyle {
        disclose: false,
        ..PLAIN
    };
    let undisclosed = styled(stale(LOWEST), undisclosed);
    let implausible = R::Implausible { mark: Some(LOWEST) };
    let not_allowed = R::MethodNotAllowed("GET, HEAD, OPTIONS".into());
    let not_in_time = R::ClientGone("The body did not come in time".into());
    let unreachable = |spent| R::unreachable(&WHY, spent);
    let too_slow = R::TooSlow(Duration::from_secs(30));
    vec![
        other("accepted", EVERY, Answer::Accepted),
        late("stale-token", EVERY, stale(LOWEST)),
        early("token-required", EVERY, R::TokenRequired),
        early("malformed-token", EVERY, R::MalformedToken(WHY.into())),
        late("implausible-token", EVERY, implausible),
        early("ambiguous-request", EVERY, R::Ambiguous(WHY.into())),
        early("no-route", EVERY, R::NoRoute),
        early("method-not-allowed", EVERY, not_allowed),
        early("client-refused", EVERY, R::ClientRefused),
        // A bearer token is required of claims only.
        of_claims(early("unauthorized", EVERY, R::Unauthorized)),
        late("content-too-large", EVERY, R::TooLarge(WHY.into())),
        early("head-too-large", EVERY, R::HeadTooLarge(WHY.into())),
        early("target-too-long", EVERY, R::TargetTooLong(WHY.into())),
        early("version-not-supported", EVERY, R::VersionNotSupported),
        early("loop-detected", EVERY, R::Loop(Loop::Own)),
        // The second try is not the last one.
        late("overloaded", 2, R::Overloaded(WHY)),
        late("store-unavailable", 1, store_unavailable(1, false)),
        late("older-in-flight", 1, older_in_flight(2)),
        late("upstream-unreachable", 1, unreachable(false)),
        late("outcome-unknown", 1, R::Broken(Why::new(WHY))),
        early("request-timeout", 1, not_in_time),
        early("upgrade-refused", EVERY, R::UpgradeRefused),
        // Other forms of the types.
        other("stale-token-409", EVERY, styled(stale(LOWEST), conflict)),
        other("stale-token-undisclosed", EVERY, undisclosed),
        // Beyond 2^53, and so beyond the numbers of JavaScript.
        late("large-numbers", EVERY, stale(Token::MAX)),
        late("spent", EVERY, R::Spent),
        late("store-unavailable-spent", EVERY, store_unavailable(1, true)),
        late("upstream-unreachable-spent", EVERY, unreachable(true)),
        late("outcome-unknown-504", 1, too_slow),
        late("older-in-flight-forever", EVERY, older_in_flight(1)),
        late("retry-after-long", EVERY, store_unavailable(3600, false)),
        of_claims(late("claim-stale", EVERY, stale(LOWEST))),
        of_claims(late("claim-waits", 1, older_in_flight(1))),
        // No refusals.
        other("connection-lost", 1, Answer::ConnectionLost),
        other("upstream-error", EVERY, Answer::UpstreamError),
    ]
}

fn other(name: &'static str, times: usize, answer: Answer) -> Scenario {
    Scenario {
        name,
        answer,
        times,
        claims: false,
    }
}

/// Refuses before resource and token are known.
fn early(name: &'static str, times: usize, refusal: Refusal) -> Scenario {
    other(name, times, Answer::refused(refusal))
}

fn late(name: &'static str, times: usize, refusal: Refusal) -> Scenario {
    other(name, times, styled(refusal, PLAIN))
}

fn styled(refusal: Refusal, style: AnswerStyle<'static>) -> Answer {
    Answer::Refused {
        refusal,
        style,
        has_subject: true,
    }
}

fn of_claims(scenario: Scenario) -> Scenario {
    Scenario {
        claims: true,
        ..scenario
    }
}

/// By this mark, or by a higher one if the token is not below it.
fn stale(mark: Token) -> Refusal {
    Refusal::Stale {
        mark,
        decided_by: DecidedBy::Store,
    }
}

fn store_unavailable(seconds: u64, spent: bool) -> Refusal {
    Refusal::StoreUnavailable {
        why: Why::new(WHY),
        retry_after: Duration::from_secs(seconds),
        spent,
    }
}

fn older_in_flight(seconds: u64) -> Refusal {
    Refusal::OlderInFlight {
        retry_after: Duration::from_secs(seconds),
        settling: false,
    }
}

impl Answer {
    /// For a fault of the request itself.
    pub fn refused(refusal: Refusal) -> Self {
        Self::Refused {
            refusal,
            style: PLAIN,
            has_subject: false,
        }
    }

    /// The advice to the client; `None`: it may go on.
    pub fn retry(&self) -> Option<Retry> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.retry()),
            Self::ConnectionLost => Some(Retry::CheckFirst),
            Self::Accepted | Self::Claimed | Self::UpstreamError => None,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { refusal, .. } => refusal.retry_after(),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (refusal, style) = match self {
            Self::Accepted => return f.write_str("200"),
            Self::Claimed => return f.write_str("204 claimed"),
            Self::UpstreamError => return f.write_str("503 of the upstream"),
            Self::ConnectionLost => return f.write_str("nothing: the connection ended"),
            Self::Refused { refusal, style, .. } => (refusal, *style),
        };
        let (status, retry) = (refusal.status(style).as_u16(), refusal.retry().as_str());
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
        if let Answer::Refused { refusal, .. } = &mut answer
            && let Refusal::Stale { mark, .. } = refusal
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
            Some(retry) => self.times < EVERY && retry == Retry::SameToken,
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
        match (self.answer.retry(), self.claims) {
            (None, _) if self.ends_with_a_write() => "writes with its token",
            (None, _) => "writes with its token, and treats the answer as its API's own",
            (Some(Retry::Never), true) => "claims, and writes nothing after the refusal",
            (Some(Retry::Never), false) => "sends no further writes after the refusal",
            (Some(Retry::CheckFirst), _) => "does not send the write again; it may read",
            (Some(Retry::SameToken), _) if self.may_give_up() => {
                "stops, or sends the same request again with the same token, never before Retry-After"
            }
            (Some(Retry::SameToken), true) => {
                "claims again with the same token, not before Retry-After, and then writes"
            }
            (Some(Retry::SameToken), false) => {
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
            let Answer::Refused { refusal, .. } = answer else {
                panic!("{answer:?}");
            };
            let above = Token::new(token + 1).expect("a token");
            assert!(matches!(refusal, Refusal::Stale { mark, .. } if mark == above));
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
