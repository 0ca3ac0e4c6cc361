//! Exchanges that break, and clients and upstreams that misbehave. Nothing is sent twice, no half
//! response passes as whole, and an unknown outcome stays in flight (guarantee G5).

use std::time::Duration;

use crate::support::wire::Wire;
use crate::support::{Config, Gate, Must, Proxy, Step, Store, fenced, put, request, soon};

#[tokio::test]
async fn an_upstream_that_is_down_is_a_502_and_holds_nothing() {
    let nowhere = format!("http://127.0.0.1:{}", crate::support::postgres::free_port());
    let config =
        Config::to(&nowhere, &Store::sqlite()).with("barrier: { wait: 200ms, settle: 300s }");
    let proxy = Proxy::start(&config).await;
    for token in [1, 2, 3] {
        let answer = proxy.send(put("/orders/7").token(token)).await;
        let problem = answer.assert_problem(502, "upstream-unreachable");
        assert_eq!(problem["resource"], "order:7");
        assert_eq!(problem["token"], token.to_string());
    }
    proxy.stale(put("/orders/7").token(1)).await;
}

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
            let answer = proxy.send(request(method, &path).token(1)).await;
            assert_eq!(
                answer.assert_problem(502, "outcome-unknown")["retry"],
                "check-first"
            );
            assert_eq!(upstream.count(), before + 1, "{method} arrived once");
            proxy.forward(put("/orders/6").token(1)).await;
        }
    }
}

#[tokio::test]
async fn half_an_answer_is_not_passed_off_as_a_whole_one() {
    let (upstream, proxy) = fenced("barrier: { wait: 200ms, settle: 300s }").await;
    upstream.next([
        Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
        Step::Close,
    ]);
    put("/orders/7")
        .token(1)
        .attempt(proxy.data())
        .await
        .expect_err("cut, as the upstream cut it");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    upstream.next([Step::raw(chunked), Step::Close]);
    put("/orders/8")
        .token(1)
        .attempt(proxy.data())
        .await
        .expect_err("cut, as the upstream cut it");
    for path in ["/orders/7", "/orders/8"] {
        proxy
            .refuse(put(path).token(2), 503, "older-in-flight")
            .await;
    }
    assert_eq!(upstream.count(), 2);
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

#[tokio::test]
async fn nonsense_from_the_upstream_is_an_unknown_outcome() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::raw("this is not HTTP\r\n\r\n"), Step::Close]);
    proxy
        .refuse(put("/orders/7").token(1), 502, "outcome-unknown")
        .await;
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_slow_upstream_is_a_504() {
    let (upstream, proxy) = fenced("upstream: { timeout: 300ms }").await;
    let gate = upstream.hold_next();
    let answer = proxy.send(put("/orders/7").token(1)).await;
    assert_eq!(
        answer.assert_problem(504, "outcome-unknown")["retry"],
        "check-first"
    );
    upstream.reached(1).await;
    assert_eq!(upstream.count(), 1);
    gate.open();
}

/// An operator who looks for a request's outcome needs to know which request it was.
#[tokio::test]
async fn an_unknown_outcome_is_logged_and_listed_with_its_resource_and_token() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::Reset]);
    let answer = proxy.send(put("/orders/7").token(5)).await;
    let problem = answer.assert_problem(502, "outcome-unknown");
    let line = proxy.log_of("outcome", "outcome-unknown").await;
    assert_eq!(line["message"], "the outcome is unknown", "it was sent");
    let refused = proxy.ask("/v1/rejections").await.json();
    assert_eq!(refused, serde_json::json!({ "rejections": [] }));
    let listed = proxy.ask("/v1/unknown").await.json();
    for told in [&problem, &line, &listed["unknown"][0]] {
        assert_eq!(told["resource"], "order:7", "{told}");
        assert_eq!(told["token"], "5", "{told}");
    }
}

/// The client has had the head of the answer, and so no word from the proxy.
#[tokio::test]
async fn an_answer_that_breaks_off_is_counted_logged_and_listed_as_any_unknown_outcome() {
    let (upstream, proxy) = fenced("barrier: { wait: 200ms, settle: 300s }").await;
    let gate = Gate::shut();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";
    upstream.next([Step::raw(head), Step::Wait(gate.clone()), Step::Close]);
    let mut exchange = proxy.begin(&put("/orders/7").token(5), b"").await;
    assert_eq!(exchange.any_head().await.word(1), "200");
    gate.open();
    let broken = soon("the end", exchange.answer()).await;
    broken.expect_err("cut, as the upstream cut it");
    unknown_once(&proxy, 200).await;
}

/// Nor has one that has left.
#[tokio::test]
async fn an_unknown_outcome_whose_client_has_left_is_counted_logged_and_listed() {
    let (upstream, proxy) = fenced("barrier: { wait: 200ms, settle: 300s }").await;
    let gate = Gate::shut();
    upstream.next([Step::Wait(gate.clone()), Step::Reset]);
    let exchange = proxy.begin(&put("/orders/7").token(5), b"").await;
    upstream.reached(1).await;
    drop(exchange);
    proxy.until_none("fencepost_connections").await;
    gate.open();
    unknown_once(&proxy, 502).await;
}

/// One line, one count, one entry: of token 5 for `order:7`.
async fn unknown_once(proxy: &Proxy, status: u16) {
    let unknown = |line: &serde_json::Value| line["outcome"] == "outcome-unknown";
    let line = proxy.logged("the unknown outcome", unknown).await;
    assert_eq!(line["message"], "the outcome is unknown");
    assert_eq!(line["status"], status);
    let listed = proxy.ask("/v1/unknown").await.json();
    for told in [&line, &listed["unknown"][0]] {
        assert_eq!(told["resource"], "order:7", "{told}");
        assert_eq!(told["token"], "5", "{told}");
    }
    assert_eq!(listed["unknown"].as_array().map(Vec::len), Some(1));
    assert_eq!(proxy.logs().iter().filter(|line| unknown(line)).count(), 1);
    let metrics = proxy.metrics().await;
    let sum = |outcome| metrics.sum("fencepost_requests_total", &[("outcome", outcome)]);
    assert!((sum("outcome-unknown") - 1.0).abs() < 0.1);
    assert!(sum("advanced") < 0.1);
    let newer = proxy.send(put("/orders/7").token(6)).await;
    newer.assert_problem(503, "older-in-flight");
}

#[tokio::test]
async fn a_route_can_have_a_timeout_of_its_own() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/orders/{id}', resource: 'order:{id}', upstream: { timeout: 200ms } }
         - { path: '/reports/{id}', resource: 'report:{id}' }",
    )
    .await;
    let slow = [Step::Work(Duration::from_millis(800)), Step::ok()];
    upstream.next(slow.clone());
    proxy
        .refuse(put("/orders/7").token(1), 504, "outcome-unknown")
        .await;
    upstream.next(slow);
    proxy.forward(put("/reports/7").token(1)).await;
}

#[tokio::test]
async fn a_client_that_leaves_does_not_end_the_exchange() {
    let (upstream, proxy) = fenced("{}").await;
    let gate = upstream.hold_next();
    let leaver = proxy
        .begin(&put("/orders/7").token(1).body("kept"), b"kept")
        .await;
    upstream
        .until("the whole request", |all| {
            all.first().is_some_and(|one| one.whole)
        })
        .await;
    drop(leaver);
    // Another request comes and goes meanwhile: the proxy has had the time to notice.
    proxy.forward(put("/orders/8").token(1)).await;
    proxy.until_some("fencepost_upstream_in_flight").await;
    assert!(!upstream.arrivals()[0].left);
    gate.open();
    proxy.until_none("fencepost_upstream_in_flight").await;
    let first = upstream.arrivals().remove(0);
    assert!(first.ended.is_some() && !first.left);
    proxy.until_none("fencepost_unknown_outcomes").await;
}

#[tokio::test]
async fn smuggled_requests_stay_data() {
    let (upstream, proxy) = fenced("{}").await;
    let inner =
        "PUT /orders/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 9\r\nContent-Length: 0\r\n\r\n";
    let both = format!(
        "PUT /orders/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        inner.len() + 5,
    );
    let lengths = format!(
        "PUT /orders/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\nContent-Length: {}\r\n\r\n{inner}",
        inner.len(),
    );
    let odd = format!(
        "PUT /orders/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nTransfer-Encoding: gzip, x\r\nContent-Length: {}\r\n\r\n{inner}",
        inner.len(),
    );
    for bytes in [both, lengths, odd] {
        let mut wire = Wire::connect(proxy.data()).must().await;
        wire.send(bytes.as_bytes()).must().await;
        let head = soon("an answer", wire.head())
            .must()
            .await
            .expect("an answer");
        assert!(["200", "400"].contains(&head.word(1)), "{}", head.start);
    }
    for seen in upstream.arrivals() {
        let framed = (
            seen.head.all("content-length").len(),
            seen.head.all("transfer-encoding").len(),
        );
        assert!(
            matches!(framed, (1 | 0, 0) | (0, 1)),
            "one framing goes upstream: {seen:?}"
        );
    }
}

#[tokio::test]
async fn one_connection_of_a_client_carries_many_requests() {
    let (upstream, proxy) = fenced("{}").await;
    let mut wire = Wire::connect(proxy.data()).must().await;
    // Pipelined, refused ones in between: each answer belongs to its request.
    let mut bytes = Vec::new();
    for token in [5, 4, 6, 3] {
        bytes.extend(put("/orders/7").token(token).body("xyz").bytes());
    }
    wire.send(&bytes).must().await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let head = soon("an answer", wire.head())
            .must()
            .await
            .expect("the connection stays");
        wire.body(head.response_framing(false), |_| {}).must().await;
        statuses.push(head.word(1).to_owned());
    }
    assert_eq!(statuses, ["200", "412", "200", "412"]);
    assert_eq!(upstream.tokens("order:7"), [5, 6]);
}
