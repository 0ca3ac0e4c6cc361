//! Hand-made logs: one that is right, and for each rule ones that differ from it in what breaks it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::{FORGED, NONCE, Rule, check};
use super::log::{Errand, Event, LogEntry};

/// A log in the making: an entry each millisecond.
#[derive(Default)]
struct ScriptedLog(Vec<LogEntry>);

impl ScriptedLog {
    fn add(mut self, event: Event) -> Self {
        let at = Duration::from_millis(self.0.len() as u64);
        self.0.push(LogEntry { at, event });
        self
    }

    fn sent(self, nonce: &str, token: u64, errand: Errand) -> Self {
        self.add(Event::Sent {
            nonce: nonce.to_owned(),
            resource: "order:r0".to_owned(),
            token: Some(token),
            proxy: 0,
            errand,
        })
    }

    fn ask(self, nonce: &str, token: u64) -> Self {
        self.sent(nonce, token, Errand::Fenced { keyed: true })
    }

    fn answered(self, nonce: &str, status: u16, outcome: Option<&str>, mark: Option<u64>) -> Self {
        self.add(Event::Answered {
            nonce: nonce.to_owned(),
            status,
            outcome: outcome.map(str::to_owned),
            mark,
        })
    }

    /// The first byte, a look at the marks that finds `mark`, the head.
    fn began(self, arrival: usize, nonce: &str, token: u64, mark: u64) -> Self {
        self.add(Event::Began { arrival })
            .marks(arrival, mark)
            .head(arrival, &dress(nonce, token))
    }

    fn head(self, arrival: usize, headers: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(owned).collect();
        self.add(Event::Head { arrival, headers })
    }

    fn marks(self, look: usize, mark: u64) -> Self {
        let marks = BTreeMap::from([("order:r0".to_owned(), mark)]);
        self.add(Event::Look { look })
            .add(Event::Marks { look, marks })
    }

    fn ended(self, arrival: usize) -> Self {
        let how = "answered";
        self.add(Event::Ended { arrival, how })
    }

    fn done(self, nonce: &str) -> Self {
        self.answered(nonce, 200, None, None)
    }

    /// A request from its sending to its answer.
    fn whole(self, arrival: usize, nonce: &str, token: u64) -> Self {
        self.ask(nonce, token)
            .began(arrival, nonce, token, token)
            .ended(arrival)
            .done(nonce)
    }

    #[track_caller]
    fn breaks(self, rules: &[Rule], says: &str) {
        let found = check(&self.0);
        let broken: Vec<_> = found.iter().map(|violation| violation.rule).collect();
        assert_eq!(broken, rules, "{found:#?}");
        let said = found.first().map(ToString::to_string).unwrap_or_default();
        assert!(said.contains(says), "{said}");
    }
}

/// The headers that a proxy sends upstream; leaks nothing that a test would mind.
fn dress(nonce: &str, token: u64) -> Vec<(&'static str, &'static str)> {
    vec![
        (NONCE, nonce.to_owned().leak()),
        ("X-Fencing-Token", token.to_string().leak()),
        ("X-Fencing-Resource", "order:r0"),
        ("Idempotency-Key", "k"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("Via", "1.1 fencepost"),
    ]
}

fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    let mut headers = dress("a", 5);
    headers.retain(|(known, _)| *known != name);
    headers
}

#[test]
fn a_history_in_which_all_is_right_is_not_blamed() {
    ScriptedLog::default()
        .whole(0, "a", 5)
        .ask("b", 6)
        .ask("c", 5)
        .answered("c", 412, Some("stale-token"), Some(6))
        .began(1, "b", 6, 6)
        .ask("d", 6)
        .began(2, "d", 6, 6)
        .ended(1)
        .done("b")
        .ended(2)
        .answered("d", 502, Some("outcome-unknown"), None)
        .sent("e", 7, Errand::Claim)
        .answered("e", 204, Some("claimed"), None)
        .marks(9, 7)
        .add(Event::Recovered {
            resource: "order:r0".to_owned(),
            yes: true,
        })
        .breaks(&[], "");
}

#[test]
fn c1_a_first_byte_before_its_mark() {
    ScriptedLog::default()
        .ask("a", 5)
        .ask("b", 4)
        .began(0, "a", 5, 4)
        .ended(0)
        .done("a")
        .breaks(&[Rule::C1], "5 has arrived");
}

#[test]
fn c1_no_mark_at_all() {
    let no_marks = Event::Marks {
        look: 0,
        marks: BTreeMap::new(),
    };
    ScriptedLog::default()
        .ask("a", 5)
        .add(Event::Began { arrival: 0 })
        .add(Event::Look { look: 0 })
        .add(no_marks)
        .head(0, &dress("a", 5))
        .ended(0)
        .breaks(&[Rule::C1], "None, and 5");
}

#[test]
fn c1_a_mark_that_a_crash_has_lost() {
    ScriptedLog::default()
        .whole(0, "a", 4)
        .whole(1, "b", 5)
        .add(Event::Look { look: 7 })
        .add(Event::NoMarks {
            look: 7,
            why: "killed".to_owned(),
        })
        .marks(8, 4)
        .breaks(&[Rule::C1, Rule::C3], "5 has arrived");
}

#[test]
fn c1_a_first_byte_that_nobody_could_look_behind() {
    ScriptedLog::default()
        .whole(0, "a", 5)
        .ask("b", 5)
        .add(Event::Began { arrival: 1 })
        .head(1, &dress("b", 5))
        .ended(1)
        .breaks(&[Rule::C1], "nobody could read the marks");
}

#[test]
fn c1_a_look_that_began_before_the_first_byte_proves_nothing() {
    ScriptedLog::default()
        .ask("z", 4)
        .ask("a", 5)
        .add(Event::Look { look: 0 })
        .add(Event::Began { arrival: 0 })
        .add(Event::Marks {
            look: 0,
            marks: BTreeMap::from([("order:r0".to_owned(), 4)]),
        })
        .head(0, &dress("a", 5))
        .ended(0)
        .marks(1, 5)
        .breaks(&[], "");
}

#[test]
fn c2_work_that_overlaps() {
    ScriptedLog::default()
        .ask("a", 5)
        .ask("b", 6)
        .began(0, "a", 5, 6)
        .began(1, "b", 6, 6)
        .ended(0)
        .ended(1)
        .breaks(&[Rule::C2], "token 6 (#1) began");
}

#[test]
fn c2_an_older_token_that_arrives_last() {
    ScriptedLog::default()
        .whole(0, "b", 6)
        .ask("a", 5)
        .began(1, "a", 5, 6)
        .ended(1)
        .done("a")
        .breaks(&[Rule::C2], "while 5 (#1) was yet to be done with");
}

#[test]
fn c2_work_that_never_ends() {
    ScriptedLog::default()
        .ask("a", 5)
        .began(0, "a", 5, 5)
        .whole(1, "b", 6)
        .breaks(&[Rule::C2], "and never ended");
}

#[test]
fn c2_bytes_of_an_older_token_after_a_newer_one() {
    ScriptedLog::default()
        .ask("a", 5)
        .began(0, "a", 5, 5)
        .ended(0)
        .whole(1, "b", 6)
        .add(Event::Resumed { arrival: 0 })
        .ended(0)
        .breaks(&[Rule::C2], "while 5 (#0) was yet to be done with");
}

#[test]
fn c2_work_after_a_claim_was_granted() {
    ScriptedLog::default()
        .ask("a", 5)
        .began(0, "a", 5, 5)
        .sent("e", 7, Errand::Claim)
        .answered("e", 204, Some("claimed"), None)
        .ended(0)
        .done("a")
        .marks(9, 7)
        .breaks(&[Rule::C2], "the claim e of 7");
}

#[test]
fn c3_a_mark_that_falls() {
    ScriptedLog::default()
        .whole(0, "a", 4)
        .ask("b", 5)
        .marks(7, 5)
        .marks(8, 4)
        .breaks(&[Rule::C3], "5 was the mark before");
}

#[test]
fn c3_a_mark_that_was_told_and_is_not_there() {
    ScriptedLog::default()
        .ask("b", 5)
        .ask("a", 4)
        .answered("a", 412, Some("stale-token"), Some(5))
        .marks(8, 4)
        .breaks(&[Rule::C3], "5 was the mark before");
}

#[test]
fn c3_a_mark_that_nobody_presented() {
    ScriptedLog::default()
        .whole(0, "a", 5)
        .marks(8, 9)
        .breaks(&[Rule::C3], "nobody has presented it");
}

#[test]
fn c4_an_arrival_that_was_denied() {
    for (status, outcome) in [
        (503, "store-unavailable"),
        (412, "stale-token"),
        (502, "upstream-unreachable"),
    ] {
        ScriptedLog::default()
            .ask("a", 5)
            .began(0, "a", 5, 5)
            .ended(0)
            .answered("a", status, Some(outcome), None)
            .breaks(&[Rule::C4], "it arrived as #0");
    }
}

#[test]
fn c4_an_arrival_after_the_denial() {
    ScriptedLog::default()
        .ask("a", 5)
        .answered("a", 503, Some("older-in-flight"), None)
        .began(0, "a", 5, 5)
        .ended(0)
        .breaks(&[Rule::C4], "it arrived as #0");
}

#[test]
fn c4_an_answer_that_the_upstream_never_gave() {
    ScriptedLog::default()
        .ask("a", 5)
        .done("a")
        .breaks(&[Rule::C4], "never arrived there");
}

#[test]
fn c5_a_resource_that_stays_shut() {
    ScriptedLog::default()
        .whole(0, "a", 5)
        .add(Event::Recovered {
            resource: "order:r0".to_owned(),
            yes: false,
        })
        .breaks(&[Rule::C5], "takes no newer token");
}

#[test]
fn c6_a_request_that_is_sent_twice() {
    ScriptedLog::default()
        .whole(0, "a", 5)
        .began(1, "a", 5, 5)
        .ended(1)
        .breaks(&[Rule::C6], "arrived as #1 after [0]");
}

#[test]
fn c6_a_read_that_is_not_fenced_and_is_sent_three_times() {
    let mut headers = dress("a", 5);
    headers.retain(|(name, _)| !name.starts_with("X-Fencing"));
    let sent = |times: usize| {
        let asked = ScriptedLog::default().sent("a", 5, Errand::Unfenced);
        (0..times).fold(asked, |log, arrival| {
            let began = log.add(Event::Began { arrival });
            began.head(arrival, &headers).ended(arrival)
        })
    };
    sent(2).breaks(&[], "");
    sent(3).breaks(&[Rule::C6], "arrived as #2 after [0, 1]");
}

#[test]
fn c6_headers_that_the_proxy_did_not_set() {
    let forged = [dress("a", 5), vec![("X-Fencing-Other", FORGED)]].concat();
    let twice = [dress("a", 5), vec![("x-fencing-token", "5")]].concat();
    for (headers, says) in [
        (without("X-Fencing-Token"), "x-fencing-token []"),
        (without("X-Fencing-Resource"), "x-fencing-resource []"),
        (without("Idempotency-Key"), "0 idempotency keys"),
        (without("Via"), "via []"),
        (without("X-Forwarded-For"), "x-forwarded-for []"),
        (without(NONCE), "no client's nonce"),
        (dress("a", 6), "instead of [\"5\"]"),
        (dress("b", 5), "which nobody sent"),
        (forged, "the client's own"),
        (twice, "x-fencing-token [\"5\", \"5\"]"),
    ] {
        ScriptedLog::default()
            .ask("x", 6)
            .ask("a", 5)
            .add(Event::Began { arrival: 0 })
            .marks(0, 6)
            .head(0, &headers)
            .ended(0)
            .breaks(&[Rule::C6], says);
    }
}

#[test]
fn c6_what_ought_not_to_arrive_at_all() {
    for (errand, says) in [
        (Errand::Claim, "a claim"),
        (Errand::Wrong, "no rule lets through"),
    ] {
        ScriptedLog::default()
            .sent("a", 5, errand)
            .began(0, "a", 5, 5)
            .ended(0)
            .breaks(&[Rule::C6], says);
    }
}
