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

const SENT: &str = "send = \"{put}X-A: b\\r\\nContent-Length: 3\\r\\n\\r\\nabc\"";

#[tokio::test]
async fn a_right_expectation_holds() {
    let right = [
        format!("{SENT}, status = 200, arrives = \"PUT /orders/{{id}}\", body = \"abc\", framing = \"length\", with = [\"X-A: b\"], without = [\"X-B\"], then = \"open\""),
        "send = \"PUT /orders/{id} HTTP/1.1\\r\\nHost: app.test\\r\\n\\r\\n\", status = 428, type = \"token-required\"".into(),
        "send = \"{put}Connection: close\\r\\n\\r\\n\", status = 200, arrives = \"PUT /orders/{id}\", then = \"closed\"".into(),
    ];
    let judged = judged(&right).await;
    assert!(judged.iter().all(Option::is_none), "{judged:#?}");
}

#[tokio::test]
async fn a_wrong_expectation_fails() {
    let arrives = "arrives = \"PUT /orders/{id}\"";
    let refused = "send = \"PUT /orders/{id} HTTP/1.1\\r\\nHost: app.test\\r\\n\\r\\n\"";
    let closes = "send = \"{put}Connection: close\\r\\n\\r\\n\"";
    let wrong = [
        (
            format!("{SENT}, status = 400, type = \"ambiguous-request\""),
            "HTTP/1.1 200",
        ),
        (format!("{SENT}, status = 201, {arrives}"), "HTTP/1.1 200"),
        (format!("{SENT}, status = \"closed\""), "was to be closed"),
        (
            format!("{SENT}, status = [200, 200], {arrives}"),
            "instead of the answer",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, then = \"closed\""),
            "was to be closed",
        ),
        (
            format!("{SENT}, status = 200, arrives = \"PUT /orders/other\""),
            "instead of",
        ),
        (
            format!("{SENT}, status = 200, arrives = [\"PUT /orders/{{id}}\", \"GET /\"]"),
            "instead of",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, body = \"ab\""),
            "the body",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, framing = \"chunked\""),
            "framed by",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, with = [\"X-A: c\"]"),
            "X-A",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, with = [\"X-B: c\"]"),
            "X-B",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, without = [\"x-a\"]"),
            "x-a",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, mark = 8"),
            "left the mark Some(7)",
        ),
        (
            format!("{SENT}, status = 200, {arrives}, interim = [\"100\"]"),
            "interim",
        ),
        (
            format!("{refused}, status = 428, type = \"no-route\""),
            "of the type",
        ),
        (
            format!("{refused}, status = 428, type = \"token-required\", mark = 7"),
            "left the mark None",
        ),
        (
            format!("{refused}, status = 428, type = \"token-required\", {arrives}"),
            "arrived, instead of",
        ),
        (
            format!("{closes}, status = 200, {arrives}, then = \"open\""),
            "closed, where the connection goes on",
        ),
    ];
    let cases: Vec<String> = wrong.iter().map(|(case, _)| case.clone()).collect();
    for ((case, complaint), found) in wrong.iter().zip(judged(&cases).await) {
        assert!(
            found
                .as_ref()
                .is_some_and(|found| found.contains(complaint)),
            "{case}: {found:?}"
        );
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
