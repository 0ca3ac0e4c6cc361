//! The scenarios: what is answered in each, and what a right client does. The answers themselves are
//! [`Refusal`]s of the data path, which writes them, so nothing here repeats a status or a title.

use std::time::Duration;

use crate::metrics::DecidedBy;
use crate::proxy::headers::via::Loop;
use crate::proxy::{AnswerStyle, Refusal, Retry, Why};
use crate::routing::Token;

/// A name in the URL, and what happens below it.
#[derive(Debug)]
pub(super) struct Scenario {
    pub name: &'static str,
    pub script: Script,
}

#[derive(Debug)]
pub(super) enum Script {
    /// The upstream accepts every write.
    Accept,
    Refuse(RefusalScript),
    /// The upstream itself answers each write with 503.
    UpstreamError,
    /// The connection ends after the first write was read and took effect.
    ConnectionLost,
}

/// Some requests are refused, the others are accepted.
#[derive(Debug)]
pub(super) struct RefusalScript {
    refusal: MakeRefusal,
    /// Claims are refused instead of writes.
    pub claims: bool,
    pub times: Times,
    pub stale_status: u16,
    pub disclose: bool,
}

/// Makes the refusal of a request with this token.
type MakeRefusal = fn(Token) -> Refusal;

/// The requests that are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    First(usize),
    Every,
}

/// The behaviour of a correct client, as far as a server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expectation {
    /// It claims before its first write.
    pub claims: bool,
    /// It may stop although it was asked to send the same request again.
    pub may_give_up: bool,
    /// One of its writes is accepted in the end.
    pub writes: bool,
}

/// Every scenario: one for each problem type, and others.
pub(super) fn all() -> Vec<Scenario> {
    let accept = Scenario {
        name: "accepted",
        script: Script::Accept,
    };
    let mut all = vec![accept];
    all.extend(TYPES.map(of_type));
    all.extend(variants());
    all
}

/// One refusal of each type.
const TYPES: [MakeRefusal; 21] = [
    |token| stale(Token::new(token.get().saturating_add(1)).unwrap_or(Token::MAX)),
    |_| Refusal::TokenRequired,
    |_| Refusal::MalformedToken("this scenario takes no token".into()),
    |_| Refusal::Implausible {
        mark: Token::new(0),
    },
    |_| Refusal::Ambiguous("This scenario can read the request in two ways.".into()),
    |_| Refusal::NoRoute,
    |_| Refusal::MethodNotAllowed("GET, HEAD, OPTIONS".into()),
    |_| Refusal::ClientRefused,
    |_| Refusal::Unauthorized,
    |_| Refusal::TooLarge("This scenario takes no bodies, not even empty ones.".into()),
    |_| Refusal::HeadTooLarge("The head of the request is too large for this scenario.".into()),
    |_| Refusal::TargetTooLong("The target is too long for this scenario.".into()),
    |_| Refusal::VersionNotSupported,
    |_| Refusal::Loop(Loop::Own),
    |_| Refusal::Overloaded("This scenario is too busy. Nothing was forwarded."),
    |_| store_unavailable(1, false),
    |_| older_in_flight(2),
    |_| unreachable(false),
    |_| Refusal::Broken(Why::new("The exchange with the upstream broke")),
    |_| Refusal::ClientGone("The body did not come in time".into()),
    |_| Refusal::UpgradeRefused,
];

/// A type is its own scenario. A verdict stands; what may pass later passes at the next try.
fn of_type(refusal: MakeRefusal) -> Scenario {
    let sample = refusal(Token::MAX);
    let times = match (&sample, sample.retry()) {
        (_, Retry::Never) => Times::Every,
        // The second try is not the last one.
        (Refusal::Overloaded(_), _) => Times::First(2),
        (_, Retry::SameToken | Retry::CheckFirst) => Times::First(1),
    };
    let mut script = RefusalScript::new(refusal, times);
    // A token of claims is asked of claims only.
    script.claims = matches!(sample, Refusal::Unauthorized);
    Scenario {
        name: sample.outcome().as_str(),
        script: Script::Refuse(script),
    }
}

/// Other forms of the types, and what is no refusal.
fn variants() -> Vec<Scenario> {
    let refuse = RefusalScript::new;
    let claims = |refusal, times| RefusalScript {
        claims: true,
        ..refuse(refusal, times)
    };
    let next = TYPES[0];
    let conflict = RefusalScript {
        stale_status: 409,
        ..refuse(next, Times::Every)
    };
    let undisclosed = RefusalScript {
        disclose: false,
        ..refuse(next, Times::Every)
    };
    let refusals = [
        ("stale-token-409", conflict),
        ("stale-token-undisclosed", undisclosed),
        // Beyond 2^53, and so beyond the numbers of JavaScript.
        ("large-numbers", refuse(|_| stale(Token::MAX), Times::Every)),
        ("spent", refuse(|_| Refusal::Spent, Times::Every)),
        (
            "store-unavailable-spent",
            refuse(|_| store_unavailable(1, true), Times::Every),
        ),
        (
            "upstream-unreachable-spent",
            refuse(|_| unreachable(true), Times::Every),
        ),
        (
            "outcome-unknown-504",
            refuse(
                |_| Refusal::TooSlow(Duration::from_secs(30)),
                Times::First(1),
            ),
        ),
        (
            "older-in-flight-forever",
            refuse(|_| older_in_flight(1), Times::Every),
        ),
        (
            "retry-after-long",
            refuse(|_| store_unavailable(3600, false), Times::Every),
        ),
        ("claim-stale", claims(next, Times::Every)),
        (
            "claim-waits",
            claims(|_| older_in_flight(1), Times::First(1)),
        ),
    ];
    let refusals = refusals.map(|(name, script)| Scenario {
        name,
        script: Script::Refuse(script),
    });
    let others = [
        ("connection-lost", Script::ConnectionLost),
        ("upstream-error", Script::UpstreamError),
    ];
    let others = others.map(|(name, script)| Scenario { name, script });
    refusals.into_iter().chain(others).collect()
}

fn stale(mark: Token) -> Refusal {
    Refusal::Stale {
        mark,
        decided_by: DecidedBy::Store,
    }
}

fn store_unavailable(seconds: u64, spent: bool) -> Refusal {
    Refusal::StoreUnavailable {
        why: Why::new("The store of marks gave no answer that decides"),
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

fn unreachable(spent: bool) -> Refusal {
    Refusal::unreachable(&"this scenario has no upstream", spent)
}

impl RefusalScript {
    fn new(refusal: MakeRefusal, times: Times) -> Self {
        Self {
            refusal,
            claims: false,
            times,
            stale_status: 412,
            disclose: true,
        }
    }

    /// The refusal of a request with this token, after `before` others; `None`: it is accepted.
    pub(super) fn refusal(&self, before: usize, token: Token) -> Option<Refusal> {
        let refused = match self.times {
            Times::First(times) => before < times,
            Times::Every => true,
        };
        refused.then(|| (self.refusal)(token))
    }

    /// Whether the answers name resource and token: a request that is refused earlier has none yet.
    pub(super) fn knows_the_token(&self) -> bool {
        matches!(
            self.sample(),
            Refusal::Stale { .. }
                | Refusal::Spent
                | Refusal::Implausible { .. }
                | Refusal::TooLarge(_)
                | Refusal::Overloaded(_)
                | Refusal::StoreUnavailable { .. }
                | Refusal::OlderInFlight { .. }
                | Refusal::Unreachable { .. }
                | Refusal::Broken(_)
                | Refusal::TooSlow(_)
        )
    }

    pub(super) fn style(&self) -> AnswerStyle<'static> {
        AnswerStyle {
            stale_status: self.stale_status,
            disclose: self.disclose,
            grpc: false,
            problems: None,
        }
    }

    fn sample(&self) -> Refusal {
        (self.refusal)(Token::MAX)
    }
}

impl Scenario {
    pub(super) fn expectation(&self) -> Expectation {
        let (claims, may_give_up, writes) = match &self.script {
            Script::Accept => (false, false, true),
            Script::UpstreamError | Script::ConnectionLost => (false, false, false),
            Script::Refuse(script) => {
                let again = script.sample().retry() == Retry::SameToken;
                let for_ever = script.times == Times::Every;
                (script.claims, again && for_ever, again && !for_ever)
            }
        };
        Expectation {
            claims,
            may_give_up,
            writes,
        }
    }

    /// The answers, for people.
    pub(super) fn answers(&self) -> String {
        let script = match &self.script {
            Script::Accept => return "every write: 200".into(),
            Script::UpstreamError => {
                return "every write: 503 of the upstream, without X-Fencing-Outcome".into();
            }
            Script::ConnectionLost => {
                return "the first write: read, and the connection ends without an answer".into();
            }
            Script::Refuse(script) => script,
        };
        let what = if script.claims { "claim" } else { "write" };
        let which = match script.times {
            Times::Every => format!("every {what}"),
            Times::First(1) => format!("the first {what}"),
            Times::First(times) => format!("the first {times} {what}s"),
        };
        let sample = script.sample();
        let after = sample.retry_after().map_or_else(String::new, |after| {
            format!(", Retry-After: {}", after.as_secs())
        });
        let undisclosed = if script.disclose {
            ""
        } else {
            ", without resource, token and mark"
        };
        format!(
            "{which}: {} {}, retry: {}{after}{undisclosed}",
            sample.status(script.style()).as_u16(),
            sample.outcome(),
            sample.retry().as_str(),
        )
    }

    /// The behaviour of a correct client, for people.
    pub(super) fn expected(&self) -> &'static str {
        let script = match &self.script {
            Script::Accept => return "writes with its token",
            Script::UpstreamError => {
                return "writes with its token, and treats the answer as its API's own";
            }
            Script::ConnectionLost => return "does not send the write again; it may read",
            Script::Refuse(script) => script,
        };
        match (script.sample().retry(), script.claims, script.times) {
            (Retry::Never, true, _) => "claims, and writes nothing after the refusal",
            (Retry::Never, false, _) => "sends no further writes after the refusal",
            (Retry::CheckFirst, ..) => "does not send the write again; it may read",
            (Retry::SameToken, _, Times::Every) => {
                "stops, or sends the same request again with the same token, never before Retry-After"
            }
            (Retry::SameToken, true, _) => {
                "claims again with the same token, not before Retry-After, and then writes"
            }
            (Retry::SameToken, false, _) => {
                "sends the same request again with the same token, not before Retry-After"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::Outcome;

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
        let missing: Vec<_> = refusals
            .filter(|outcome| !names.contains(outcome.as_str()))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn what_may_pass_later_does_and_a_verdict_stands() {
        let token = Token::MAX;
        let tries = |name: &str| {
            let all = all();
            let scenario = all.iter().find(|scenario| scenario.name == name);
            match &scenario.expect("a scenario").script {
                Script::Refuse(script) => (0..4).map(|at| script.refusal(at, token).is_some()),
                other => panic!("{other:?}"),
            }
            .collect::<Vec<_>>()
        };
        assert_eq!(tries("overloaded"), [true, true, false, false]);
        assert_eq!(tries("outcome-unknown"), [true, false, false, false]);
        assert_eq!(tries("stale-token"), [true; 4]);
        assert_eq!(tries("older-in-flight-forever"), [true; 4]);
    }
}
