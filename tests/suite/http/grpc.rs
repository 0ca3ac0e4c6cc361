//! gRPC through the proxy, with the gRPC library that most servers and clients have (Debian's
//! python3-grpcio): what a caller sees through the proxy is what it sees without, and refusals are
//! gRPC statuses to it.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::process::Process;
use crate::support::python::program;
use crate::support::skip::{is_skipped, lacks};
use crate::support::{Config, Proxy, Store, eventually, or_return, soon};

/// A Python that has grpcio; `None`, and a line that says so, if there is none.
fn python() -> Option<&'static str> {
    let has_grpcio = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-c", "import grpc"]);
        command.stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let mut pythons = ["python3", "/usr/bin/python3"].into_iter();
    let found = pythons.find(|python| !is_skipped("grpcio") && has_grpcio(python));
    if found.is_none() {
        lacks("grpcio");
    }
    found
}

/// The service that is fenced.
struct Service {
    python: &'static str,
    process: Process,
    address: String,
}

impl Service {
    async fn start() -> Option<Self> {
        let python = python()?;
        let process = Process::start(&mut program(python, "grpc/server.py"));
        let port = eventually("the gRPC server", || {
            let lines = process.lines();
            let port = lines.iter().find_map(|line| line.strip_prefix("port "));
            std::future::ready(port.map(str::to_owned))
        })
        .await;
        Some(Self {
            python,
            process,
            address: format!("127.0.0.1:{port}"),
        })
    }

    /// Its notes on calls and messages.
    fn said(&self) -> Vec<Value> {
        let lines = self.process.lines();
        lines
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    fn arrivals(&self) -> Vec<Value> {
        let mut said = self.said();
        said.retain(|line| line["arrived"].is_string());
        said
    }

    async fn until_said(&self, field: &str, value: &str) {
        eventually(&format!("the server to say {field}: {value}"), || async {
            let mut said = self.said().into_iter();
            said.find(|line| line[field] == value)
        })
        .await;
    }

    async fn proxy(&self, more: &str) -> Proxy {
        let routes =
            "routes: [{ path: '/test.Ledger/{method}', resource: 'ledger:{header.x-account}' }]";
        let config = Config::to(&format!("h2c://{}", self.address), &Store::sqlite()).with(routes);
        Proxy::start(&config.with(more)).await
    }

    /// Makes a call from a process of its own.
    fn call(&self, to: &impl ToString, method: &str, options: &[&str]) -> JoinHandle<Value> {
        let mut command = tokio::process::Command::from(program(self.python, "grpc/client.py"));
        command.args([&*to.to_string(), method, "meta.x-account=7"]);
        command.args(options).kill_on_drop(true);
        command.stdin(Stdio::null());
        let method = method.to_owned();
        tokio::spawn(async move {
            let output = soon(&format!("the end of {method}"), command.output()).await;
            let output = output.expect("the client runs").stdout;
            serde_json::from_slice(&output)
                .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output)))
        })
    }

    /// A call with this token gets its answer.
    async fn is_answered(&self, proxy: &Proxy, token: &str) {
        let answer = self.ask(&proxy.data(), "Unary", &[token]).await;
        assert_eq!(answer["code"], "OK", "{answer}");
    }

    async fn ask(&self, to: &impl ToString, method: &str, options: &[&str]) -> Value {
        self.call(to, method, options).await.expect("no panic")
    }
}

/// The value of one trailing field.
fn trailing<'a>(answer: &'a Value, name: &str) -> Option<&'a str> {
    let fields = answer["trailing"].as_array()?;
    let field = fields.iter().find(|field| field[0] == name)?;
    field[1].as_str()
}

/// A refusal of the proxy's own, as a caller sees it.
fn is_refused(answer: &Value, code: &str, outcome: &str) {
    assert_eq!(answer["code"], code, "{answer}");
    assert_eq!(
        trailing(answer, "x-fencing-outcome"),
        Some(outcome),
        "{answer}"
    );
    let details = answer["details"].as_str().unwrap_or_default();
    assert!(details.starts_with(outcome), "{answer}");
}

/// The fields of the proxy's that a caller may see besides the service's.
fn without_ours(mut answer: Value) -> Value {
    for part in ["initial", "trailing"] {
        if let Some(fields) = answer[part].as_array_mut() {
            fields
                .retain(|field| !["via", "date"].contains(&field[0].as_str().unwrap_or_default()));
        }
    }
    answer
}

#[tokio::test]
async fn a_caller_sees_what_it_would_see_without_the_proxy() {
    let service = or_return!(Service::start().await);
    // Only a machine that is slower than this could miss the end of a short call.
    let patient = "body: { timeout: 600s, progress_timeout: 9h }";
    let proxy = service.proxy(patient).await;
    for (method, options) in [
        ("Unary", &["say=one"][..]),
        ("Unary", &["say=one"]),
        ("Up", &["count=50"]),
        ("Down", &["say=50"]),
        ("Both", &["count=50"]),
        ("Fail", &["say=NOT_FOUND:no such account: 100% gone\u{fc}"]),
        ("Fail", &["say=UNAUTHENTICATED:who?"]),
        ("Half", &[]),
        ("Nowhere", &[]),
    ] {
        let direct = service.ask(&service.address, method, options).await;
        let options = [options, &["token=7"]].concat();
        let through = service.ask(&proxy.data(), method, &options).await;
        assert_eq!(without_ours(through), without_ours(direct), "{method}");
    }
    let arrivals = service.arrivals();
    let through: Vec<_> = arrivals
        .iter()
        .filter(|call| call["token"] == "7")
        .collect();
    assert_eq!(through.len(), 8, "{arrivals:#?}");
    // A call that is whole gets its idempotency key.
    assert!(through[0]["key"].is_string(), "{arrivals:#?}");
    assert_eq!(through[0]["key"], through[1]["key"]);
    for call in through {
        assert_eq!(call["resource"], "ledger:7");
        assert_eq!(call["metadata"]["x-bin-bin"], "00ff80");
        assert!(
            call["remaining"].is_number(),
            "the caller's deadline goes along: {call}"
        );
    }
}

#[tokio::test]
async fn who_waits_for_answers_between_messages_is_not_held_up() {
    let service = or_return!(Service::start().await);
    for more in [
        "{}",
        "body: { buffer: 0, timeout: 600s, progress_timeout: 9h }",
    ] {
        let proxy = service.proxy(more).await;
        // The client sends nothing at all until the service has spoken.
        let options = ["token=7", "count=2", "turns=1"];
        for (method, said) in [
            ("First", json!(["hello", "re:hi0", "re:hi1"])),
            ("Both", json!(["re:hi0", "re:hi1"])),
        ] {
            let answer = service.ask(&proxy.data(), method, &options).await;
            assert_eq!(answer["code"], "OK", "{answer}");
            assert_eq!(answer["messages"], said, "{answer}");
        }
        proxy.until_none("fencepost_upstream_in_flight").await;
        let unknown = proxy.sum("fencepost_unknown_outcomes", &[]).await;
        assert!(unknown < 1.0, "{unknown}");
    }
}

#[tokio::test]
async fn refusals_are_statuses_to_the_caller() {
    let service = or_return!(Service::start().await);
    let proxy = service.proxy("barrier: { wait: 300ms, grace: 300s }").await;
    service.is_answered(&proxy, "token=7").await;
    let stale = service.ask(&proxy.data(), "Unary", &["token=6"]).await;
    is_refused(&stale, "FAILED_PRECONDITION", "stale-token");
    for method in ["Up", "Down", "Both"] {
        let stale = service.ask(&proxy.data(), method, &["token=6"]).await;
        is_refused(&stale, "FAILED_PRECONDITION", "stale-token");
    }
    let missing = service.ask(&proxy.data(), "Unary", &[]).await;
    is_refused(&missing, "INVALID_ARGUMENT", "token-required");
    let malformed = service.ask(&proxy.data(), "Unary", &["token=0x7"]).await;
    is_refused(&malformed, "INVALID_ARGUMENT", "malformed-token");
    let older = service.call(&proxy.data(), "Slow", &["token=8", "say=12"]);
    service.until_said("arrived", "Slow").await;
    let newer = service.ask(&proxy.data(), "Unary", &["token=9"]).await;
    is_refused(&newer, "UNAVAILABLE", "older-in-flight");
    assert!(trailing(&newer, "retry-after").is_some(), "{newer}");
    assert_eq!(older.await.expect("no panic")["code"], "OK");
    let reached = service.arrivals().len();
    assert_eq!(reached, 2, "nothing that was refused has gone anywhere");
    let nowhere = "upstream: { url: 'h2c://127.0.0.1:1' }";
    let proxy = service.proxy(nowhere).await;
    let away = service.ask(&proxy.data(), "Unary", &["token=7"]).await;
    is_refused(&away, "UNAVAILABLE", "upstream-unreachable");
}

#[tokio::test]
async fn a_call_whose_caller_gives_up_is_followed_to_its_end() {
    let service = or_return!(Service::start().await);
    let proxy = service.proxy("barrier: { wait: 20s, settle: 300s }").await;
    let deadline = service
        .ask(&proxy.data(), "Slow", &["token=7", "say=6", "cancel=3"])
        .await;
    assert_eq!(deadline["code"], "CANCELLED", "{deadline}");
    // The newer one waits until the service is done with the older one, and no longer: that is
    // known.
    service.is_answered(&proxy, "token=8").await;
    service.until_said("slow", "done").await;
    let said = service.said();
    let said = said
        .iter()
        .map(|line| line["slow"].as_str().or(line["arrived"].as_str()));
    let order: Vec<&str> = said.flatten().collect();
    assert_eq!(order, ["Slow", "done", "Unary"]);
}

#[tokio::test]
async fn a_stream_that_is_taken_back_is_an_unknown_outcome() {
    let service = or_return!(Service::start().await);
    let proxy = service
        .proxy("barrier: { wait: 300ms, settle: 300s }")
        .await;
    let open = service.call(
        &proxy.data(),
        "First",
        &["token=7", "hold=1", "turns=1", "cancel=5"],
    );
    service.until_said("arrived", "First").await;
    assert_eq!(open.await.expect("no panic")["code"], "CANCELLED");
    proxy.until_some("fencepost_unknown_outcomes").await;
    let newer = service.ask(&proxy.data(), "Unary", &["token=8"]).await;
    is_refused(&newer, "UNAVAILABLE", "older-in-flight");
}

#[tokio::test]
async fn a_newer_token_ends_an_older_stream() {
    let service = or_return!(Service::start().await);
    let proxy = service
        .proxy("barrier: { wait: 20s, grace: 500ms, settle: 500ms }")
        .await;
    let open = service.call(&proxy.data(), "First", &["token=7", "hold=1", "turns=1"]);
    service.until_said("arrived", "First").await;
    service.is_answered(&proxy, "token=8").await;
    let ended = open.await.expect("no panic");
    assert_ne!(ended["code"], "OK", "{ended}");
    let late = service.ask(&proxy.data(), "Both", &["token=7"]).await;
    is_refused(&late, "FAILED_PRECONDITION", "stale-token");
}
