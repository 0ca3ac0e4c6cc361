//! The answers are those of a real fencepost.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{CLAIM, TARGET, TOKEN};
use crate::support::client::Exchange;
use crate::support::conformance::Conformance;
use crate::support::postgres::free_port;
use crate::support::{Answer, Config, Gate, Proxy, Step, Store, Upstream, fenced, post, put};

/// The answer of a scenario: to the claim if it refuses that, and else to a write.
async fn planned(server: &Conformance, scenario: &str) -> Answer {
    let claim = server.send((scenario, "1"), ("POST", CLAIM), &[TARGET, TOKEN], "");
    let claim = claim.await.expect("an answer");
    if claim.status() != 204 {
        return claim;
    }
    let write = server.send((scenario, "1"), ("PUT", "/orders/7"), &[TOKEN], "paid");
    write.await.expect("an answer")
}

/// The parts of an answer that must be the same.
fn parts(answer: &Answer) -> Value {
    let problem = answer.json();
    let members: Vec<_> = problem.as_object().expect("an object").keys().collect();
    let fields = "content-type x-fencing-outcome x-fencing-retry www-authenticate";
    let fields: Vec<_> = fields.split(' ').map(|name| answer.header(name)).collect();
    let there = ["retry-after", "allow"].map(|name| answer.header(name).is_some());
    let values = ["type", "title", "status", "retry"].map(|name| &problem[name]);
    json!([answer.status(), members, values, fields, there])
}

/// A route for each kind of refusal.
const REFUSING: &str = "
    upstream: { timeout: 1s }
    barrier: { wait: 100ms }
    limits: { header_bytes: 4KiB, target_bytes: 1KiB }
    routes:
      - { path: '/orders/{id}', resource: 'order:{id}' }
      - { path: '/once/{id}', resource: 'once:{id}', reuse: once }
      - { path: '/far/{id}', resource: 'far:{id}', token: { max_jump: 10 } }
      - { path: '/few/{id}', resource: 'few:{id}', methods: [DELETE] }
      - { path: '/small/{id}', resource: 'small:{id}', body: { max: 1KiB, buffer: 1KiB } }
";

/// What a real fencepost answers, by the scenario that must answer so.
async fn real() -> Vec<(&'static str, Answer)> {
    let upstream = Upstream::start().await;
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("claims");
    std::fs::write(&file, "only-for-claims-of-tests\n").expect("the directory is writable");
    let claim = format!("addresses: [127.0.0.2], token_file: '{}'", file.display());
    let config = Config::new(&upstream, &Store::sqlite()).with(REFUSING);
    let proxy = Proxy::start(&config.with(&format!("claim: {{ {claim} }}"))).await;
    let send = async |request| proxy.send(request).await;
    for path in ["/orders/7", "/once/7", "/far/7"] {
        send(put(path).token(42)).await.assert_forwarded();
    }
    let claim = || {
        post(CLAIM)
            .header("X-Fencing-Target", "PUT /orders/7")
            .token(43)
    };
    let upgrade = put("/orders/7").token(42).header("Connection", "upgrade");
    let there = Ipv4Addr::new(127, 0, 0, 2);
    let unauthorized = claim().send_from(there, proxy.data()).await;
    let mut real = vec![("unauthorized", unauthorized)];
    for (scenario, asks) in [
        ("stale-token", put("/orders/7").token(41)),
        ("large-numbers", put("/orders/7").token(41)),
        ("spent", put("/once/7").token(42)),
        ("token-required", put("/orders/7")),
        ("malformed-token", put("/orders/7").token("x")),
        ("implausible-token", put("/far/7").token(4711)),
        ("ambiguous-request", put("/orders//7").token(42)),
        ("no-route", put("/nowhere").token(42)),
        ("method-not-allowed", put("/few/7").token(42)),
        ("client-refused", claim()),
        ("upgrade-refused", upgrade.header("Upgrade", "websocket")),
        (
            "content-too-large",
            put("/small/7").token(42).body("x".repeat(2048)),
        ),
        (
            "head-too-large",
            put("/orders/7").header("X-Long", "x".repeat(8192)),
        ),
        (
            "target-too-long",
            put(&format!("/orders/{}", "7".repeat(2048))),
        ),
    ] {
        real.push((scenario, send(asks).await));
    }
    let passed = send(put("/orders/7").token(42)).await;
    let own = passed.header("via").expect("the proxy is named");
    let looped = put("/orders/7").token(42).header("Via", own);
    real.push(("loop-detected", send(looped).await));

    let mut newer = Exchange::open(proxy.data(), "PUT")
        .await
        .expect("it listens");
    let line = b"PUT /orders/7 HTTP/3.0\r\nHost: app.test\r\n\r\n";
    newer.wire.send(line).await.expect("it is taken");
    real.push(("version-not-supported", newer.finish().await));

    upstream.on_token(43, [Step::Close]);
    real.push(("outcome-unknown", send(put("/orders/8").token(43)).await));
    real.push(("older-in-flight", send(put("/orders/8").token(44)).await));
    let gate = Gate::shut();
    upstream.on_token(45, [Step::Wait(gate.clone()), Step::ok()]);
    real.push((
        "outcome-unknown-504",
        send(put("/orders/9").token(45)).await,
    ));
    gate.open();

    for (scenario, more) in [
        ("stale-token-409", "stale_status: 409"),
        ("stale-token-undisclosed", "disclose: false"),
    ] {
        let (_upstream, proxy) = fenced(more).await;
        proxy.forward(put("/orders/7").token(42)).await;
        real.push((scenario, proxy.send(put("/orders/7").token(41)).await));
    }

    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let cut_off = Proxy::start(&Config::to(&nowhere, &Store::sqlite())).await;
    let unreachable = cut_off.send(put("/orders/7").token(1)).await;
    real.push(("upstream-unreachable", unreachable));
    real
}

#[tokio::test]
async fn they_are_those_of_a_real_fencepost() {
    let server = Conformance::start().await;
    for (scenario, real) in real().await {
        let planned = planned(&server, scenario).await;
        // The variants of a type have names of their own.
        let word = real.outcome().expect("a refusal");
        let is_type = server.scenarios().await.iter().any(|name| name == word);
        assert!(is_type, "{word}: {}", real.text());
        assert_eq!(parts(&planned), parts(&real), "{scenario}");
    }
}

#[tokio::test]
async fn each_problem_type_is_a_scenario_with_the_status_and_the_advice_of_its_page() {
    let server = Conformance::start().await;
    let index = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/problems.md");
    let index = std::fs::read_to_string(index).expect("the index is there");
    let mut types = BTreeSet::new();
    for row in index.lines().filter(|line| line.starts_with("| [`")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let word = cells[0].split('`').nth(1).expect("a word");
        let answer = planned(&server, word).await;
        let status: u16 = cells[1][..3].parse().expect("a status");
        let problem = answer.assert_problem(status, word);
        let retry = problem["retry"].as_str().expect("a word");
        assert!(cells[3].starts_with(retry), "{row}: {problem}");
        let after = cells[1].contains("Retry-After");
        assert_eq!(answer.retry_after().is_some(), after, "{row}");
        types.insert(word.to_owned());
    }
    assert_eq!(types.len(), 24, "{types:?}");
}

/// A client that reads the numbers as JavaScript does would find others.
#[tokio::test]
async fn large_numbers_are_strings() {
    let server = Conformance::start().await;
    let token = ("X-Fencing-Token", "9007199254740993");
    let at = ("large-numbers", "1");
    let answer = server.send(at, ("PUT", "/orders/7"), &[token], "").await;
    let problem: Value = answer
        .expect("an answer")
        .assert_problem(412, "stale-token");
    let numbers = json!([problem["token"], problem["mark"], problem["gap"]]);
    let exact = "[\"9007199254740993\",\"9223372036854775807\",\"9214364837600034814\"]";
    assert_eq!(numbers.to_string(), exact);
}
