//! The conformance server: it answers as a fencepost does, lets correct clients pass and finds the
//! faults of others.

mod answers;

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::conformance::Conformance;
use crate::support::{Answer, get, post, soon};

const CLAIM: &str = "/.well-known/fencing/claim";
const TARGET: (&str, &str) = ("X-Fencing-Target", "PUT /orders/7");
const TOKEN: (&str, &str) = ("X-Fencing-Token", "41");

/// A fault that a client may have.
#[derive(Clone, Copy, PartialEq)]
enum ClientFault {
    None,
    ClaimsNothing,
    /// It sends no token with its writes.
    NoToken,
    /// It sends everything again that was refused.
    RepeatsAll,
    RepeatsDoubtful,
    Impatient,
    GivesUp,
    NewToken,
    NewBody,
    WritesAllTheSame,
}

/// A client that claims, reads and writes, with a fault.
struct FaultyClient<'a> {
    server: &'a Conformance,
    at: (&'a str, &'a str),
    fault: ClientFault,
    /// How often it sends a request.
    tries: usize,
}

impl FaultyClient<'_> {
    async fn run(&self) {
        if self.fault != ClientFault::ClaimsNothing {
            let claimed = self.fenced(("POST", CLAIM), &[TARGET], "").await;
            if !claimed && self.fault != ClientFault::WritesAllTheSame {
                return;
            }
        }
        let read = self.send(("GET", "/orders/7"), &[], "").await;
        assert_eq!(read.expect("reads pass").status(), 200);
        self.fenced(("PUT", "/orders/7"), &[], "paid").await;
    }

    async fn send(
        &self,
        line: (&str, &str),
        fields: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<Answer> {
        let send = self.server.send(self.at, line, fields, body);
        soon("the answer", send).await
    }

    /// Returns whether it was accepted.
    async fn fenced(&self, line: (&str, &str), more: &[(&str, &str)], body: &str) -> bool {
        let (mut token, mut body) = (TOKEN, body.to_owned());
        for _ in 0..self.tries {
            let mut fields = more.to_vec();
            if self.fault != ClientFault::NoToken {
                fields.push(token);
            }
            let answer = self.send(line, &fields, &body).await;
            let field = |name| answer.as_ref().ok()?.header(name).map(str::to_owned);
            let retry = match &answer {
                Err(_) => "check-first".to_owned(),
                Ok(_) => field("x-fencing-retry").unwrap_or_default(),
            };
            let again = match self.fault {
                ClientFault::GivesUp => false,
                ClientFault::RepeatsAll => !retry.is_empty(),
                ClientFault::RepeatsDoubtful => retry != "never" && !retry.is_empty(),
                _ => retry == "same-token",
            };
            if !again {
                return retry.is_empty();
            }
            let after = field("retry-after").map_or(0, |after| after.parse().expect("seconds"));
            if after > 10 {
                return false;
            }
            match self.fault {
                ClientFault::Impatient | ClientFault::RepeatsAll => {}
                _ => tokio::time::sleep(Duration::from_secs(after)).await,
            }
            match self.fault {
                ClientFault::NewToken => token = ("X-Fencing-Token", "42"),
                ClientFault::NewBody => body.push_str(", again"),
                _ => {}
            }
        }
        false
    }
}

async fn verdict_on(server: &Conformance, scenario: &str, fault: ClientFault) -> Value {
    let run = format!("run-{}", fault as u8);
    let tries = if fault == ClientFault::RepeatsAll {
        2
    } else {
        3
    };
    let client = FaultyClient {
        server,
        at: (scenario, &run),
        fault,
        tries,
    };
    client.run().await;
    server.verdict(scenario, &run).await
}

#[tokio::test]
async fn a_right_client_passes_every_scenario() {
    let server = Conformance::start().await;
    let scenarios = server.scenarios().await;
    assert!(scenarios.len() > 30, "{scenarios:?}");
    let verdicts = scenarios
        .iter()
        .map(|scenario| verdict_on(&server, scenario, ClientFault::None));
    for verdict in futures_util::future::join_all(verdicts).await {
        assert_eq!(verdict["passed"], json!(true), "{verdict:#}");
        let refused_claim =
            verdict["scenario"] == "claim-stale" || verdict["scenario"] == "unauthorized";
        assert_eq!(verdict["claimed"], json!(!refused_claim), "{verdict:#}");
    }
}

#[tokio::test]
async fn each_fault_is_found() {
    use ClientFault as Fault;
    let server = Conformance::start().await;
    let cases = [
        (
            Fault::RepeatsAll,
            "came after request 3",
            "stale-token token-required spent store-unavailable-spent",
        ),
        (Fault::Impatient, "Retry-After: 2", "older-in-flight"),
        (
            Fault::Impatient,
            "Retry-After: 1",
            "overloaded older-in-flight-forever claim-waits",
        ),
        (
            Fault::RepeatsDoubtful,
            "repeats request 3",
            "outcome-unknown outcome-unknown-504 connection-lost",
        ),
        (Fault::NewToken, "token 42 after 41", "upstream-unreachable"),
        (
            Fault::NewBody,
            "another body than request 3",
            "upstream-unreachable",
        ),
        (Fault::GivesUp, "was not sent again", "request-timeout"),
        (Fault::NoToken, "no X-Fencing-Token", "accepted"),
        (
            Fault::WritesAllTheSame,
            "came after request 1",
            "claim-stale unauthorized",
        ),
        (Fault::ClaimsNothing, "no claim came", "claim-stale"),
    ];
    let (server, mut verdicts) = (&server, Vec::new());
    for (fault, says, scenarios) in cases {
        for scenario in scenarios.split(' ') {
            let verdict = verdict_on(server, scenario, fault);
            verdicts.push(async move { (verdict.await, says) });
        }
    }
    for (verdict, says) in futures_util::future::join_all(verdicts).await {
        assert_eq!(verdict["passed"], json!(false), "{verdict:#}");
        let problems = verdict["problems"].to_string();
        assert!(problems.contains(says), "{says}: {verdict:#}");
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
    assert_eq!(
        (&verdict["passed"], &verdict["claimed"]),
        (&json!(true), &json!(false))
    );
    let first = verdict["requests"][0].take();
    for (name, value) in [
        ("method", json!("PUT")),
        ("path", json!(path)),
        ("token", json!("41")),
        ("after_ms", json!(0)),
        ("answered", json!("502 outcome-unknown, check-first")),
    ] {
        assert_eq!(first[name], value, "{first:#}");
    }
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
