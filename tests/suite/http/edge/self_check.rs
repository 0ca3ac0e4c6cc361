//! The corpus' own instruments: a wrong expectation must fail, and a server that checks nothing
//! must be found out.

use super::cases::{self, EdgeCase};
use super::recorder::Recorder;
use super::smuggling;
use super::stage::Stage;

/// The fault of each of these cases; `None`: it has none.
async fn judged(cases: &[String]) -> Vec<Option<String>> {
    let numbered = cases.iter().enumerate();
    let lines: Vec<String> = numbered
        .map(|(at, case)| format!("case.n{at:02} = {{ {case} }}"))
        .collect();
    let group = format!(
        "[[group]]\nbasis = \"policy: of the test\"\n{}",
        lines.join("\n")
    );
    let table = toml::from_str(&group).unwrap_or_else(|error| panic!("{error}: {group}"));
    let cases = cases::of_file("self", &table, 0);
    let failures = super::failures(&cases).await;
    let of = |case: &EdgeCase| {
        failures
            .iter()
            .find(|failure| failure.starts_with(&case.name))
            .cloned()
    };
    cases.iter().map(of).collect()
}

/// A request that passes, one that is refused, and one that ends its connection.
const SENT: &str = "send = \"{put}X-A: b\\r\\nContent-Length: 3\\r\\n\\r\\nabc\"";
const REFUSED: &str = "send = \"PUT /orders/{id} HTTP/1.1\\r\\nHost: app.test\\r\\n\\r\\n\"";
const CLOSES: &str = "send = \"{put}Connection: close\\r\\n\\r\\n\"";
const ARRIVES: &str = "status = 200, arrives = \"PUT /orders/{id}\"";

#[tokio::test]
async fn a_right_expectation_holds() {
    let right = [
        format!(
            "{SENT}, {ARRIVES}, body = \"abc\", framing = \"length\", with = [\"X-A: b\"], without = [\"X-B\"], then = \"open\""
        ),
        format!("{REFUSED}, status = 428, type = \"token-required\""),
        format!("{CLOSES}, {ARRIVES}, then = \"closed\""),
    ];
    let judged = judged(&right).await;
    assert!(judged.iter().all(Option::is_none), "{judged:#?}");
}

#[tokio::test]
async fn a_wrong_expectation_fails() {
    let required = "status = 428, type = \"token-required\"";
    let two = "status = [200, 200], arrives = \"PUT /orders/{id}\"";
    // What is sent, what is expected of it, and the complaint.
    let wrong = [
        (SENT, "status = 400, type = \"no-route\"", "HTTP/1.1 200"),
        (SENT, &ARRIVES.replace("200", "201"), "HTTP/1.1 200"),
        (SENT, "status = \"closed\"", "was to be closed"),
        (SENT, two, "instead of the answer"),
        (
            SENT,
            &format!("{ARRIVES}, then = \"closed\""),
            "was to be closed",
        ),
        (SENT, &ARRIVES.replace("{id}", "other"), "instead of"),
        (
            SENT,
            "status = 200, arrives = [\"PUT /orders/{id}\", \"GET /\"]",
            "instead of",
        ),
        (SENT, &format!("{ARRIVES}, body = \"ab\""), "the body"),
        (
            SENT,
            &format!("{ARRIVES}, framing = \"chunked\""),
            "framed by",
        ),
        (SENT, &format!("{ARRIVES}, with = [\"X-A: c\"]"), "X-A"),
        (SENT, &format!("{ARRIVES}, with = [\"X-B: c\"]"), "X-B"),
        (SENT, &format!("{ARRIVES}, without = [\"x-a\"]"), "x-a"),
        (
            SENT,
            &format!("{ARRIVES}, mark = 8"),
            "left the mark Some(7)",
        ),
        (SENT, &format!("{ARRIVES}, interim = [\"100\"]"), "interim"),
        (REFUSED, "status = 428, type = \"no-route\"", "of the type"),
        (
            REFUSED,
            "status = 428, type = \"token-required\", then = \"closed\"",
            "ends a connection",
        ),
        (
            REFUSED,
            &format!("{required}, mark = 7"),
            "left the mark None",
        ),
        (
            REFUSED,
            &format!("{required}, arrives = \"PUT /orders/{{id}}\""),
            "arrived, instead of",
        ),
        (
            CLOSES,
            &format!("{ARRIVES}, then = \"open\""),
            "closed, where the connection goes on",
        ),
    ];
    let cases = wrong.map(|(send, expected, _)| format!("{send}, {expected}"));
    for (case, (found, complaint)) in cases.iter().zip(
        judged(&cases)
            .await
            .into_iter()
            .zip(wrong.map(|(_, _, complaint)| complaint)),
    ) {
        let found = found.unwrap_or_default();
        assert!(found.contains(complaint), "{case}: {found:?}");
    }
}

/// A pipe to the upstream is what a proxy would be that checks nothing: nearly every mutation must
/// be seen to go wrong there, and a request without fault must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_checks_nothing_is_found_out() {
    let upstream = Recorder::start().await;
    let address = upstream
        .url()
        .strip_prefix("http://")
        .expect("it is on TCP");
    let address = address.parse().expect("an address");
    let mutations = smuggling::all();
    let some: Vec<_> = mutations.into_iter().step_by(17).collect();
    let played = Stage::play(&some, |mutation| mutation.play(address)).await;
    let arrivals = upstream.arrivals();
    let arrivals = smuggling::by_name(&arrivals);
    let wrong = played
        .into_iter()
        .filter(|(mutation, played)| mutation.judge(played.clone(), &arrivals, &[]).is_err())
        .count();
    assert!(
        wrong * 10 > some.len() * 9,
        "only {wrong} of {} are found wrong",
        some.len()
    );
}
