//! A client reads of trouble behind the proxy only how to go on, and nothing of how things are
//! named there. The errors of the store and of connections are in the log.

use serde_json::Value;

use super::before;
use crate::support::{Answer, Proxy, Request, Step, Store, eventually, fenced, get, post, put};

/// Fails where a body or a field names an address, an error of the system, or one of `secrets`.
#[track_caller]
pub fn assert_discreet(answer: &Answer, secrets: &[&str]) {
    let fields = answer.head.headers.iter();
    // The library that tells the date may say what it likes.
    let fields = fields.filter(|(name, _)| !name.eq_ignore_ascii_case("date"));
    let mut said: Vec<String> = fields
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    said.push(answer.text());
    let said = said.join("\n").to_lowercase();
    for secret in secrets
        .iter()
        .chain(&["127.0.0.1", "os error", "localhost", "/tmp/", "sql"])
    {
        assert!(!said.contains(&secret.to_lowercase()), "{secret}: {said}");
    }
}

/// The log says what the client is not told.
pub async fn is_logged(proxy: &Proxy, text: &str) {
    let says = |line: &Value| {
        line["reason"]
            .as_str()
            .is_some_and(|why| why.contains(text))
    };
    proxy.logged(&format!("{text} in the log"), says).await;
}

fn call(token: u64) -> Request {
    post("/orders/7")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .token(token)
}

/// A fenced write, one that nobody fences, and a gRPC call.
async fn ask(proxy: &Proxy) -> [Answer; 3] {
    [
        proxy.send(put("/orders/7").token(1)).await,
        proxy.send(get("/orders/7")).await,
        call(1).send_http2(proxy.data()).await,
    ]
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_has_no_name() {
    for disclose in [true, false] {
        for (scheme, authority, logged) in [
            ("http", "127.0.0.1:1", "refused"),
            ("h2c", "127.0.0.1:1", "refused"),
            ("http", "orders-db.invalid:8123", "lookup"),
        ] {
            let disclosing = format!("disclose: {disclose}");
            let proxy = before(&format!("{scheme}://{authority}"), &disclosing).await;
            for answer in ask(&proxy).await {
                assert_eq!(answer.outcome(), Some("upstream-unreachable"));
                let secrets = [":1\"", ":8123", "orders-db", "refused", "lookup", "dns"];
                assert_discreet(&answer, &secrets);
            }
            is_logged(&proxy, logged).await;
        }
    }
}

#[tokio::test]
async fn an_exchange_that_broke_does_not_say_how() {
    let (upstream, proxy) = fenced("{}").await;
    for step in [Step::Reset, Step::Close] {
        upstream.next([step]);
        let answer = proxy.send(get("/orders/7")).await;
        answer.assert_problem(502, "outcome-unknown");
        assert_discreet(&answer, &["reset", "eof", "incomplete", "connection"]);
    }
    is_logged(&proxy, "did not complete").await;
    is_logged(&proxy, "Cause: ").await;
}

#[tokio::test]
async fn a_store_that_is_given_up_has_no_path() {
    for disclose in [true, false] {
        let store = Store::sqlite();
        let (_upstream, proxy) = Proxy::before(&store, &format!("disclose: {disclose}")).await;
        let path = store.path();
        std::fs::rename(&path, path.with_extension("moved")).expect("it can be moved");
        let answer = eventually("a refusal", || async {
            let answer = put("/orders/7").token(1).attempt(proxy.data()).await;
            answer.ok().filter(|answer| answer.status() == 503)
        })
        .await;
        answer.assert_problem(503, "store-unavailable");
        let folder = path.parent().expect("a folder").display().to_string();
        assert_discreet(&answer, &[&folder, "moved", "file"]);
        let call = call(1).send_http2(proxy.data()).await;
        assert_eq!(call.header("grpc-status"), Some("14"));
        assert_discreet(&call, &[&folder, "moved", "file"]);
    }
}
