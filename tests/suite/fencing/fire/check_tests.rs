//! Hand-made logs: one that is right, and for each rule ones that differ from it in what breaks it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::{FORGED, NONCE, check};
use super::log::{Answered, Errand, Event, LogEntry, Sent};

/// A log's name; its events, an entry each millisecond; the rules that it breaks, and a part of
/// the first violation.
///
/// All is about `order:r0`. `whole` is a request from its sending to its answer, and `arrives` its
/// arrival with a look at the marks behind the first byte, which finds the last number.
const LOGS: &str = r#"
all is right
whole 0 a 5, ask b 6, ask c 5, answer c 412 stale-token 6, arrives 1 b 6 6,
ask d 6, arrives 2 d 6 6, ended 1, answer b 200, ended 2, answer d 502 outcome-unknown,
claim e 7, answer e 204 claimed, look, marks 7

a first byte before its mark
ask a 5, ask b 4, arrives 0 a 5 4, ended 0, answer a 200
C1: 5 has arrived

no mark at all
ask a 5, first 0, look, marks, head 0 a 5, ended 0
C1: None, and 5

a mark that a crash has lost
whole 0 a 4, whole 1 b 5, look, look, marks 4
C1 C3: 5 has arrived

a first byte that nobody could look behind
whole 0 a 5, ask b 5, first 1, head 1 b 5, ended 1
C1: nobody could read the marks

a first byte whose only look failed
whole 0 a 5, ask b 5, first 1, look, head 1 b 5, ended 1
C1: nobody could read the marks

a look that began before the first byte proves nothing
ask z 4, ask a 5, look, first 0, marks 4, head 0 a 5, ended 0, look, marks 5

work that overlaps
ask a 5, ask b 6, arrives 0 a 5 6, arrives 1 b 6 6, ended 0, ended 1
C2: token 6 (#1, from

an older token that arrives last
whole 0 b 6, ask a 5, arrives 1 a 5 6, ended 1, answer a 200
C2: was yet to be done with: token 5 (#1

work that never ends
ask a 5, arrives 0 a 5 5, whole 1 b 6
C2: and never ended

bytes of an older token after a newer one
ask a 5, arrives 0 a 5 5, ended 0, whole 1 b 6, resumed 0, ended 0
C2: was yet to be done with: token 5 (#0

work after a claim was granted
ask a 5, arrives 0 a 5 5, claim e 7, answer e 204 claimed, ended 0, answer a 200, look, marks 7
C2: Sent { nonce: "e"

a mark that falls
whole 0 a 4, ask b 5, look, marks 5, look, marks 4
C3: 5 was the mark before

a mark that was told and is not there
ask b 5, ask a 4, answer a 412 stale-token 5, look, marks 4
C3: 5 was the mark before

a mark that nobody presented
whole 0 a 5, look, marks 9
C3: nobody has presented it

an arrival of what the store could not judge
ask a 5, arrives 0 a 5 5, ended 0, answer a 503 store-unavailable
C4: it arrived as #0

an arrival of what was stale
ask a 5, arrives 0 a 5 5, ended 0, answer a 412 stale-token
C4: it arrived as #0

an arrival at an upstream that was out of reach
ask a 5, arrives 0 a 5 5, ended 0, answer a 502 upstream-unreachable
C4: it arrived as #0

an arrival after the denial
ask a 5, answer a 503 older-in-flight, arrives 0 a 5 5, ended 0
C4: it arrived as #0

an answer that the upstream never gave
ask a 5, answer a 200
C4: never arrived there

a resource that stays shut
whole 0 a 5, shut
C5: takes no newer token

a request that is sent twice
whole 0 a 5, arrives 1 a 5 5, ended 1
C6: arrived as #1 after [0]

a read that is not fenced, and is sent twice
read a 5, unfenced 0 a, ended 0, unfenced 1 a, ended 1

a read that is not fenced, and is sent three times
read a 5, unfenced 0 a, ended 0, unfenced 1 a, ended 1, unfenced 2 a, ended 2
C6: arrived as #2 after [0, 1]

a claim that arrives
claim a 5, arrives 0 a 5 5, ended 0
C6: a claim

a wrong request that arrives
wrong a 5, arrives 0 a 5 5, ended 0
C6: no rule lets through
"#;

#[test]
fn each_rule_that_a_log_breaks_is_found_and_no_other() {
    for log in LOGS.trim().split("\n\n") {
        let of_rules = |line: &&str| line.starts_with('C');
        let (verdict, script): (Vec<_>, Vec<_>) = log.lines().skip(1).partition(of_rules);
        let verdict = verdict.first().and_then(|line| line.split_once(": "));
        let (rules, says) = verdict.unwrap_or_default();
        breaks(events(&script.join(" ")), rules, says);
    }
}

#[test]
fn a_header_that_the_proxy_did_not_set_is_found() {
    let without = |name| {
        let mut headers = dress("a", "5");
        headers.retain(|(known, _)| known != name);
        headers
    };
    let with = |name: &str, value: &str| {
        let more = vec![(name.to_owned(), value.to_owned())];
        [dress("a", "5"), more].concat()
    };
    for (headers, says) in [
        (without("X-Fencing-Token"), "x-fencing-token []"),
        (without("X-Fencing-Resource"), "x-fencing-resource []"),
        (without("Idempotency-Key"), "0 idempotency keys"),
        (without("Via"), "via []"),
        (without("X-Forwarded-For"), "x-forwarded-for []"),
        (without(NONCE), "no client's nonce"),
        (dress("a", "6"), "instead of [\"5\"]"),
        (dress("b", "5"), "which nobody sent"),
        (with("X-Fencing-Other", FORGED), "the client's own"),
        (
            with("x-fencing-token", "5"),
            "x-fencing-token [\"5\", \"5\"]",
        ),
    ] {
        let mut log = events("ask x 6, ask a 5, first 0, look, marks 6");
        log.push(Event::Head(0, headers));
        log.push(Event::Ended(0, "answered"));
        breaks(log, "C6", says);
    }
}

/// Asserts that these rules are broken and no others, and that the first says so.
fn breaks(events: Vec<Event>, rules: &str, says: &str) {
    let stamped = events.into_iter().zip(0..);
    let log: Vec<LogEntry> = stamped
        .map(|(event, millis)| LogEntry {
            at: Duration::from_millis(millis),
            event,
        })
        .collect();
    let found = check(&log);
    let broken: Vec<_> = found.iter().map(|v| format!("{:?}", v.rule)).collect();
    assert_eq!(broken.join(" "), rules, "{log:#?}\n{found:#?}");
    let said = found.first().map(ToString::to_string).unwrap_or_default();
    assert!(said.contains(says), "{said}");
}

fn events(script: &str) -> Vec<Event> {
    script.split(", ").flat_map(parse).collect()
}

/// The events of one word of a script.
fn parse(step: &str) -> Vec<Event> {
    let resource = || "order:r0".to_owned();
    let number = |text: &str| text.parse().expect("a number");
    let words: Vec<&str> = step.split(' ').collect();
    let event = match words[..] {
        ["whole", id, nonce, token] => {
            return events(&format!(
                "ask {nonce} {token}, arrives {id} {nonce} {token} {token}, ended {id}, \
                 answer {nonce} 200"
            ));
        }
        ["arrives", id, nonce, token, mark] => {
            return events(&format!(
                "first {id}, look, marks {mark}, head {id} {nonce} {token}"
            ));
        }
        ["unfenced", id, nonce] => {
            let mut headers = dress(nonce, "");
            headers.retain(|(name, _)| !name.starts_with("X-Fencing"));
            let id = number(id);
            return vec![Event::Began(id), Event::Head(id, headers)];
        }
        [errand @ ("ask" | "read" | "claim" | "wrong"), nonce, token] => Event::Sent(Sent {
            nonce: nonce.to_owned(),
            resource: resource(),
            token: token.parse().ok(),
            proxy: 0,
            errand: match errand {
                "ask" => Errand::Fenced { keyed: true },
                "read" => Errand::Unfenced,
                "claim" => Errand::Claim,
                _ => Errand::Wrong,
            },
        }),
        ["answer", nonce, status, ref more @ ..] => Event::Answered(Answered {
            nonce: nonce.to_owned(),
            status: status.parse().expect("a status"),
            outcome: more.first().map(|outcome| (*outcome).to_owned()),
            mark: more.get(1).and_then(|mark| mark.parse().ok()),
        }),
        ["first", id] => Event::Began(number(id)),
        ["head", id, nonce, token] => Event::Head(number(id), dress(nonce, token)),
        ["ended", id] => Event::Ended(number(id), "answered"),
        ["resumed", id] => Event::Resumed(number(id)),
        ["look"] => Event::Look,
        ["marks"] => Event::Marks(BTreeMap::new()),
        ["marks", mark] => Event::Marks([(resource(), mark.parse().expect("a mark"))].into()),
        ["shut"] => Event::Unrecovered(format!("{} takes no newer token", resource())),
        _ => panic!("{step}"),
    };
    vec![event]
}

/// The headers that a proxy sends upstream.
fn dress(nonce: &str, token: &str) -> Vec<(String, String)> {
    [
        (NONCE, nonce),
        ("X-Fencing-Token", token),
        ("X-Fencing-Resource", "order:r0"),
        ("Idempotency-Key", "k"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("Via", "1.1 fencepost"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}
