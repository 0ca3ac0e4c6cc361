//! Hand-made logs: one that is right, and for each rule ones that differ from it in what breaks it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::{NONCE, check};
use super::log::{Answered, Errand, Event, LogEntry, Sent};

/// A log's name, the rules that it breaks, and a part of the first violation; below that its
/// events, an entry each millisecond.
///
/// All is about `order:r0`. `whole` is a request from its sending to its answer, and `arrives` its
/// arrival with a look at the marks behind the first byte, which finds the last number.
const LOGS: &str = r#"
all is right
whole 0 a 5, ask b 6, ask c 5, answer c 412 stale-token 6, arrives 1 b 6 6,
ask d 6, arrives 2 d 6 6, ended 1, answer b 200, ended 2, answer d 502 outcome-unknown,
claim e 7, answer e 204 claimed, look, marks 7

a first byte before its mark: C1: 5 has arrived
ask a 5, ask b 4, arrives 0 a 5 4, ended 0, answer a 200

no mark at all: C1: None, and 5
ask a 5, first 0, look, marks, head 0 a 5, ended 0

a mark that a crash has lost: C1 C3: 5 has arrived
whole 0 a 4, whole 1 b 5, look, look, marks 4

a first byte whose only look failed: C1: nobody could read the marks
whole 0 a 5, ask b 5, first 1, look, head 1 b 5, ended 1

a look that began before the first byte proves nothing
ask z 4, ask a 5, look, first 0, marks 4, head 0 a 5, ended 0, look, marks 5

work that overlaps: C2: token 6 (#1, from
ask a 5, ask b 6, arrives 0 a 5 6, arrives 1 b 6 6, ended 0, ended 1

an older token that arrives last: C2: was yet to be done with: token 5 (#1
whole 0 b 6, ask a 5, arrives 1 a 5 6, ended 1, answer a 200

work that never ends: C2: and never ended
ask a 5, arrives 0 a 5 5, whole 1 b 6

bytes of an older token after a newer one: C2: was yet to be done with: token 5 (#0
ask a 5, arrives 0 a 5 5, ended 0, whole 1 b 6, resumed 0, ended 0

work after a claim was granted: C2: order:r0: Sent { nonce: "e"
ask a 5, arrives 0 a 5 5, claim e 7, answer e 204 claimed, ended 0, answer a 200, look, marks 7

a mark that falls: C3: 5 was the mark before
whole 0 a 4, ask b 5, look, marks 5, look, marks 4

a mark that was told and is not there: C3: 5 was the mark before
ask b 5, ask a 4, answer a 412 stale-token 5, look, marks 4

a mark that nobody presented: C3: nobody has presented it
whole 0 a 5, look, marks 9

an arrival of what the store could not judge: C4: it arrived as #0
ask a 5, arrives 0 a 5 5, ended 0, answer a 503 store-unavailable

an arrival after the denial: C4: it arrived as #0
ask a 5, answer a 503 older-in-flight, arrives 0 a 5 5, ended 0

an answer that the upstream never gave: C4: never arrived there
ask a 5, answer a 200

a resource that stays shut: C5: takes no newer token
whole 0 a 5, shut

a request that is sent twice: C6: arrived as #1 after [0]
whole 0 a 5, arrives 1 a 5 5, ended 1

a read that is not fenced, and is sent twice
read a 5, unfenced 0 a, ended 0, unfenced 1 a, ended 1

a read that is not fenced, and is sent three times: C6: arrived as #2 after [0, 1]
read a 5, unfenced 0 a, ended 0, unfenced 1 a, ended 1, unfenced 2 a, ended 2

a claim that arrives: C6: a claim
claim a 5, arrives 0 a 5 5, ended 0

a wrong request that arrives: C6: no rule lets through
wrong a 5, arrives 0 a 5 5, ended 0
"#;

/// Arrivals whose header the proxy did not set, or set wrongly; a part of the violation of C6.
const HEADERS: [(&str, &str); 10] = [
    ("a 5 -X-Fencing-Token", "x-fencing-token []"),
    ("a 5 -X-Fencing-Resource", "x-fencing-resource []"),
    ("a 5 -Idempotency-Key", "idempotency-key []"),
    ("a 5 -Via", "via []"),
    ("a 5 -X-Forwarded-For", "x-forwarded-for []"),
    ("a 5 -X-Nonce", "no client's nonce"),
    ("a 6", "instead of [\"5\"]"),
    ("b 5", "which nobody sent"),
    ("a 5 X-Fencing-Other=forged", "the client's own"),
    ("a 5 x-fencing-token=5", "x-fencing-token [\"5\", \"5\"]"),
];

#[test]
fn each_rule_that_a_log_breaks_is_found_and_no_other() {
    for log in LOGS.trim().split("\n\n") {
        let (heading, script) = log.split_once('\n').expect("a heading and events");
        let (_, verdict) = heading.split_once(": ").unwrap_or_default();
        let (rules, says) = verdict.split_once(": ").unwrap_or_default();
        breaks(&script.replace('\n', " "), rules, says);
    }
    for (arrival, says) in HEADERS {
        let log = format!("ask x 6, ask a 5, first 0, look, marks 6, head 0 {arrival}, ended 0");
        breaks(&log, "C6", says);
    }
}

/// Asserts that these rules are broken and no others, and that the first says so.
fn breaks(script: &str, rules: &str, says: &str) {
    let stamped = (0..).map(Duration::from_millis).zip(events(script));
    let log: Vec<_> = stamped.map(|(at, event)| LogEntry { at, event }).collect();
    let found = check(&log);
    let broken: Vec<_> = found.iter().map(|said| &said[..2]).collect();
    assert_eq!(broken.join(" "), rules, "{script}\n{log:#?}\n{found:#?}");
    let said = found.first().map_or("", |said| said);
    assert!(said.contains(says), "{script}: {said}");
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
            let head = "-X-Fencing-Token -X-Fencing-Resource";
            return events(&format!("first {id}, head {id} {nonce} 5 {head}"));
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
        ["head", id, nonce, token, ref change @ ..] => {
            let mut headers = dress(nonce, token);
            for change in change {
                match change.split_once('=') {
                    Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
                    None => headers.retain(|(name, _)| change[1..] != *name),
                }
            }
            Event::Head(number(id), headers)
        }
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
    let fields = [
        (NONCE, nonce),
        ("X-Fencing-Token", token),
        ("X-Fencing-Resource", "order:r0"),
        ("Idempotency-Key", "k"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("Via", "1.1 fencepost"),
    ];
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}
