//! Exchanges that break, and clients and upstreams that misbehave. Nothing is sent twice, no half
//! response passes as whole, and an unknown outcome stays in flight (guarantee G5).

use serde_json::{Value, json};

use crate::support::{Gate, Proxy, Step, fenced, put, request, soon};

/// Nothing settles within a test.
pub const STAYS_UNKNOWN: &str = "barrier: { wait: 200ms, settle: 300s }";

#[tokio::test]
async fn an_exchange_that_breaks_is_sent_exactly_once() {
    for break_off in [Step::Reset, Step::Close] {
        let (upstream, proxy) = fenced("{}").await;
        // Over a connection that is already open and idle, where clients like to try again.
        proxy.forward(put("/orders/6").token(1)).await;
        for method in ["PUT", "POST", "DELETE"] {
            let path = format!("/orders/{method}");
            let before = upstream.count();
            upstream.next([break_off.clone()]);
            let broken = request(method, &path).token(1);
            let problem = proxy.refuse(broken, 502, "outcome-unknown").await;
            assert_eq!(problem["retry"], "check-first");
            assert_eq!(upstream.count(), before + 1, "{method} arrived once");
            proxy.forward(put("/orders/6").token(1)).await;
        }
    }
}

/// Many clients send a request again by themselves if its connection ends without a byte. So a
/// write that the upstream has begun to answer would be done twice.
#[tokio::test]
async fn a_client_sees_that_its_answer_had_begun() {
    let (upstream, proxy) = fenced("routes: [{ path: '/open/{id}', mode: bypass }, { path: '/orders/{id}', resource: 'o:{id}' }]").await;
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n",
    ] {
        for number in 0..10 {
            for path in ["open", "orders"] {
                upstream.next([Step::raw(answer), Step::Close]);
                let unique = format!("/{path}/{}-{number}", answer.len());
                let mut exchange = proxy.begin(&put(&unique).token(1), b"").await;
                let first = soon("the answer", exchange.wire.some()).await;
                assert!(first.is_ok_and(|bytes| !bytes.is_empty()), "{answer:?}");
            }
        }
    }
}

/// An operator who looks for a request's outcome needs to know which request it was, although the
/// client has left, or has had the head of an answer and so no word from the proxy.
#[tokio::test]
async fn an_unknown_outcome_is_counted_logged_and_listed() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    for (begins, end, leaves) in [
        ("", Step::Reset, false),
        ("", Step::Reset, true),
        (half, Step::Close, false),
        (chunked, Step::Close, false),
    ] {
        let (upstream, proxy) = fenced(STAYS_UNKNOWN).await;
        let gate = Gate::shut();
        upstream.next([Step::raw(begins), Step::Wait(gate.clone()), end]);
        let mut exchange = proxy.begin(&put("/orders/7").token(5), b"").await;
        upstream.reached(1).await;
        if leaves {
            drop(exchange);
            proxy.until_none("fencepost_connections").await;
            gate.open();
        } else if begins.is_empty() {
            gate.open();
            let answer = exchange.finish().await;
            let problem = answer.assert_problem(502, "outcome-unknown");
            assert_eq!(problem["resource"], "order:7");
            assert_eq!(problem["token"], "5");
            let refused = proxy.ask("/v1/rejections").await.json();
            assert_eq!(refused, json!({ "rejections": [] }), "it was sent");
        } else {
            assert_eq!(exchange.any_head().await.word(1), "200");
            gate.open();
            let broken = soon("the end", exchange.answer()).await;
            broken.expect_err("cut, as the upstream cut it");
        }
        unknown_once(&proxy, 5, if begins.is_empty() { 502 } else { 200 }).await;
    }
}

/// One line, one count, one entry: of this token for `order:7`. A newer one waits.
pub async fn unknown_once(proxy: &Proxy, token: u64, status: u16) {
    let unknown = |line: &Value| line["outcome"] == "outcome-unknown";
    let line = proxy.logged("the unknown outcome", unknown).await;
    assert_eq!(line["message"], "the outcome is unknown");
    assert_eq!(line["status"], status);
    let listed = proxy.ask("/v1/unknown").await.json();
    for told in [&line, &listed["unknown"][0]] {
        assert_eq!(told["resource"], "order:7", "{told}");
        assert_eq!(told["token"], token.to_string(), "{told}");
    }
    assert_eq!(listed["unknown"].as_array().map(Vec::len), Some(1));
    assert_eq!(proxy.logs().iter().filter(|line| unknown(line)).count(), 1);
    let metrics = proxy.metrics().await;
    let count = |outcome| metrics.count("fencepost_requests_total", &[("outcome", outcome)]);
    assert_eq!((count("outcome-unknown"), count("advanced")), (1, 0));
    assert_eq!(metrics.count("fencepost_unknown_outcomes", &[]), 1);
    let newer = put("/orders/7").token(token + 1);
    proxy.refuse(newer, 503, "older-in-flight").await;
}
