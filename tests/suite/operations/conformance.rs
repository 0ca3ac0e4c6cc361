//! The conformance server: it answers as a fencepost does, lets correct clients pass and finds the
//! faults of others.

mod answers;

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::support::conformance::Conformance;
use crate::support::{get, post, soon};

const CLAIM: &str = "/.well-known/fencing/claim";
const TARGET: (&str, &str) = ("X-Fencing-Target", "PUT /orders/7");
const TOKEN: (&str, &str) = ("X-Fencing-Token", "41");

/// Sends a request until it is accepted or must not come again, as a right client does. Returns
/// whether it was accepted.
async fn accepted(
    server: &Conformance,
    at: (&str, &str),
    line: (&str, &str),
    fields: &[(&str, &str)],
    body: &str,
) -> bool {
    for _ in 0..3 {
        let sent = soon("the answer", server.send(at, line, fields, body)).await;
        let Ok(answer) = sent else { return false };
        let after = answer.retry_after().unwrap_or(0);
        match answer.header("x-fencing-retry") {
            None => return true,
            Some("same-token") if after <= 10 => {
                tokio::time::sleep(Duration::from_secs(after)).await;
            }
            Some(_) => return false,
        }
    }
    false
}

#[tokio::test]
async fn a_right_client_passes_every_scenario() {
    let server = Conformance::start().await;
    let scenarios = server.scenarios().await;
    assert!(scenarios.len() > 30, "{scenarios:?}");
    let verdicts = scenarios.iter().map(async |scenario| {
        let at = (scenario.as_str(), "right");
        if accepted(&server, at, ("POST", CLAIM), &[TARGET, TOKEN], "").await {
            let read = server.send(at, ("GET", "/orders/7"), &[], "").await;
            assert_eq!(read.expect("reads pass").status(), 200);
            accepted(&server, at, ("PUT", "/orders/7"), &[TOKEN], "paid").await;
        }
        server.verdict(at.0, at.1).await
    });
    for verdict in futures_util::future::join_all(verdicts).await {
        assert_eq!(verdict["passed"], json!(true), "{verdict:#}");
        let refused_claim =
            verdict["scenario"] == "claim-stale" || verdict["scenario"] == "unauthorized";
        assert_eq!(verdict["claimed"], json!(!refused_claim), "{verdict:#}");
    }
}

/// What a client with a fault sends, at once and whatever the answers are; what its verdict says;
/// in which scenarios.
const FAULTS: &str = "\
claim get put put | came after request 3 | stale-token token-required spent store-unavailable-spent
claim get put put | Retry-After: 2 | older-in-flight
claim get put put | Retry-After: 1 | overloaded older-in-flight-forever
claim claim | Retry-After: 1 | claim-waits
claim get put put | repeats request 3 | outcome-unknown outcome-unknown-504 connection-lost
claim get put put-by-42 | token 42 after 41 | upstream-unreachable
claim get put put-more | another body than request 3 | upstream-unreachable
claim get put | was not sent again | request-timeout
put-by-nobody | no X-Fencing-Token | accepted
claim put | came after request 1 | claim-stale unauthorized
get put | no claim came | claim-stale
";

#[tokio::test]
async fn each_fault_is_found() {
    let server = Conformance::start().await;
    for row in FAULTS.lines() {
        let [sent, says, scenarios] = *row.split(" | ").collect::<Vec<_>>() else {
            panic!("{row}")
        };
        let run = sent.replace(' ', "-");
        for scenario in scenarios.split(' ') {
            for word in sent.split(' ') {
                let (line, fields, body) = match word {
                    "claim" => (("POST", CLAIM), &[TARGET, TOKEN][..], ""),
                    "get" => (("GET", "/orders/7"), &[][..], ""),
                    "put" => (("PUT", "/orders/7"), &[TOKEN][..], "paid"),
                    "put-more" => (("PUT", "/orders/7"), &[TOKEN][..], "paid, again"),
                    "put-by-42" => (("PUT", "/orders/7"), &[(TOKEN.0, "42")][..], "paid"),
                    _ => (("PUT", "/orders/7"), &[][..], "paid"),
                };
                // In some scenarios no answer comes.
                let _ = server.send((scenario, &run), line, fields, body).await;
            }
            let verdict = server.verdict(scenario, &run).await;
            assert_eq!(verdict["passed"], json!(false), "{verdict:#}");
            let problems = verdict["problems"].to_string();
            assert!(problems.contains(says), "{sent}, {says}: {verdict:#}");
        }
    }
}

#[tokio::test]
async fn a_verdict_shows_what_came_and_a_read_what_took_effect() {
    let server = Conformance::start().await;
    let at = ("outcome-unknown", "one");
    let nothing = server.verdict(at.0, at.1).await;
    assert_eq!(nothing["passed"], json!(false), "{nothing:#}");
    let path = "/orders/7?by=a";
    let fields = [TOKEN, ("Content-Type", "text/plain")];
    let lost = server.send(at, ("PUT", path), &fields, "paid").await;
    lost.expect("an answer")
        .assert_problem(502, "outcome-unknown");
    let read = server.send(at, ("GET", path), &[], "").await;
    let read = read.expect("an answer");
    let found = (read.status(), read.header("content-type"), &*read.text());
    assert_eq!(found, (200, Some("text/plain"), "paid"));
    let mut verdict = server.verdict(at.0, at.1).await;
    let first = verdict["requests"][0].take();
    let told = json!([
        verdict["passed"],
        verdict["claimed"],
        first["method"],
        first["path"],
        first["token"],
        first["after_ms"],
        first["answered"]
    ]);
    let answered = "502 outcome-unknown, check-first";
    assert_eq!(told, json!([true, false, "PUT", path, "41", 0, answered]));
    // Another run of the same scenario knows nothing of it.
    let other = server.verdict(at.0, "two").await;
    assert_eq!(other["requests"], json!([]), "{other:#}");
}

#[tokio::test]
async fn what_is_no_run_is_not_found() {
    let server = Conformance::start().await;
    for path in ["/nothing/1/orders", "/accepted", "/verdict/nothing/1"] {
        let answer = get(path).send(server.address).await;
        assert_eq!((answer.status(), answer.outcome()), (404, None), "{path}");
    }
    assert_eq!(post("/").send(server.address).await.status(), 404);
    let text = get("/").send(server.address).await.text();
    for part in ["every write: 412 stale-token, never", "/verdict/"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn it_ends_with_0_at_a_signal_whoever_is_connected() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = Conformance::start().await;
        let _connected = tokio::net::TcpStream::connect(server.address).await;
        server.process.signal(signal);
        assert_eq!(server.process.exit().await.code(), Some(0));
    }
}
