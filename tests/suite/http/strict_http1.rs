//! The strict reading of HTTP/1, beyond what the cases of `tests/edge` show: what is counted, what
//! is slow, what has begun to be forwarded, and what becomes of the connection.

use std::time::Duration;

use crate::support::client::Exchange;
use crate::support::wire::chunk;
use crate::support::{Answer, Gate, Must, Proxy, Step, eventually, fenced, soon};

async fn sent(proxy: &Proxy, bytes: &[u8]) -> Exchange {
    let mut exchange = Exchange::open(proxy.data(), "PUT").must().await;
    exchange.push(bytes).await;
    exchange
}

/// Asserts that the proxy closes cleanly and without another byte.
async fn ends(mut exchange: Exchange) {
    let last = soon("the end of the connection", exchange.wire.some())
        .must()
        .await;
    assert!(last.is_empty(), "{}", last.escape_ascii());
}

/// Sends bytes on a connection of their own; returns the answer, after which the connection must
/// end.
async fn refused(proxy: &Proxy, bytes: &[u8]) -> Answer {
    let mut exchange = sent(proxy, bytes).await;
    let answer = exchange.finish().await;
    ends(exchange).await;
    answer
}

const PUT: &str = "PUT /orders/7 HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 9\r\n";

/// The rest of it is in `tests/edge`.
#[tokio::test]
async fn what_cannot_be_read_is_counted_and_logged() {
    let (_upstream, proxy) = fenced("{}").await;
    refused(&proxy, b"GET /orders/7 HTTP/1.2\r\nHost: a\r\n\r\n")
        .await
        .assert_problem(505, "version-not-supported");
    let counted = [("route", "unmatched"), ("outcome", "version-not-supported")];
    assert_eq!(proxy.count("fencepost_requests_total", &counted).await, 1);
    let line = proxy.log_of("outcome", "version-not-supported").await;
    assert_eq!(line["client"], "127.0.0.1");
    assert_eq!(line["route"], "unmatched");
}

/// One that fits into the buffer goes nowhere (`tests/edge`).
#[tokio::test]
async fn a_malformed_body_is_never_whole() {
    let (upstream, proxy) = fenced("body: { buffer: 1KiB }").await;
    // It is longer than the buffer and has gone upstream by then: there it breaks off.
    let mut bytes = format!("{PUT}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    bytes.extend(chunk(&[b'a'; 4096]));
    let mut exchange = sent(&proxy, &bytes).await;
    upstream.reached(1).await;
    exchange
        .push(format!("1 \r\nb\r\n0\r\n\r\n{PUT}\r\n").as_bytes())
        .await;
    eventually("the upload to break off upstream", || async {
        upstream.only().left.then_some(())
    })
    .await;
    assert!(!upstream.only().whole);
    assert_eq!(upstream.count(), 1, "nothing behind it is read");
}

#[tokio::test]
async fn a_slow_head_is_a_408() {
    let (upstream, proxy) = fenced("limits: { head_timeout: 3s }").await;
    // A request before it, so that the clock is seen to start again.
    let mut exchange = sent(
        &proxy,
        format!("{PUT}Content-Length: 0\r\n\r\n{PUT}").as_bytes(),
    )
    .await;
    exchange.finish().await.assert_forwarded();
    let answer = exchange.finish().await;
    answer.assert_problem(408, "request-timeout");
    ends(exchange).await;
    refused(&proxy, b"PRI * HTTP/2.0\r\n")
        .await
        .assert_problem(408, "request-timeout");
    assert_eq!(upstream.count(), 1);
    assert_eq!(proxy.reached("head-timeout").await, 2);
}

#[tokio::test]
async fn idle_is_who_has_nothing_at_work() {
    let (upstream, proxy) = fenced("limits: { idle_timeout: 1s }").await;
    ends(sent(&proxy, b"").await).await;
    ends(sent(&proxy, b"\r\n").await).await;
    // A request in progress, and a response that goes on, are not idle however still it is.
    let gate = Gate::shut();
    upstream.next([
        Step::Wait(gate.clone()),
        Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"),
        Step::Work(Duration::from_millis(2500)),
        Step::raw("cd"),
    ]);
    let mut busy = sent(&proxy, format!("{PUT}Content-Length: 0\r\n\r\n").as_bytes()).await;
    upstream.reached(1).await;
    // Meanwhile another connection becomes idle, which shows that the time has passed.
    for reached in 3..=4 {
        ends(sent(&proxy, b"").await).await;
        proxy.until_reached("idle-timeout", reached).await;
    }
    gate.open();
    let answer = busy.finish().await;
    answer.assert_forwarded();
    assert_eq!(answer.text(), "abcd");
    ends(busy).await;
    assert_eq!(proxy.reached("idle-timeout").await, 5);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn who_is_still_sending_gets_to_read_why_it_was_refused() {
    let (upstream, proxy) = fenced("{}").await;
    let mut bytes =
        format!("{PUT}Content-Length: 8000000\r\nContent-Length: 8000000\r\n\r\n").into_bytes();
    bytes.resize(bytes.len() + 8_000_000, b'a');
    // All of it is taken from the client, so that no reset overtakes the answer.
    refused(&proxy, &bytes)
        .await
        .assert_problem(400, "ambiguous-request");
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn what_comes_before_a_tunnel_is_open_goes_through_it() {
    let (upstream, proxy) = fenced("routes: [{ path: /chat, mode: bypass }]").await;
    let upgrade = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let gate = Gate::shut();
    upstream.next([
        Step::Wait(gate.clone()),
        Step::raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"),
        Step::Echo,
    ]);
    // The bytes of a client that does not wait look like nothing that HTTP knows.
    let mut tunnel = sent(&proxy, format!("{upgrade}\0early\n").as_bytes()).await;
    upstream.reached(1).await;
    gate.open();
    let head = tunnel.any_head().await;
    assert_eq!((head.word(1), head.get("upgrade")), ("101", Some("x")));
    tunnel.wire.send(b"\r\x01late").must().await;
    let mut echoed = Vec::new();
    while echoed.len() < 13 {
        let more = soon("the echo", tunnel.wire.some()).must().await;
        assert!(!more.is_empty(), "{}", echoed.escape_ascii());
        echoed.extend(more);
    }
    assert_eq!(echoed, b"\0early\n\r\x01late");
    drop(tunnel);

    // Refused, it is the next request.
    upstream.next([Step::ok()]);
    let next = "GET /chat HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut refused = sent(&proxy, format!("{upgrade}{next}GET /").as_bytes()).await;
    refused.finish().await.assert_forwarded();
    refused.finish().await.assert_forwarded();
    refused.wire.send(b" HTTP/1.1\r\n\r\n").must().await;
    refused
        .finish()
        .await
        .assert_problem(400, "ambiguous-request");
    ends(refused).await;
}

/// RFC 9112, section 3.2. The health checks of load balancers have none.
#[tokio::test]
async fn http_1_0_needs_no_host_but_for_a_key_that_is_made_of_it() {
    let (upstream, proxy) = fenced(
        "routes:
  - { path: '/health', mode: bypass }
  - { path: '/hosts/{id}', resource: 'host:{host}:{id}' }
  - { path: '/orders/{id}', resource: 'order:{id}' }",
    )
    .await;
    let ask = async |target: &str, rest: &str| {
        let request = format!("{target} HTTP/1.0\r\n{rest}\r\n");
        sent(&proxy, request.as_bytes()).await.finish().await
    };
    let own = upstream.url().strip_prefix("http://").expect("its scheme");
    let put = "X-Fencing-Token: 9\r\nContent-Length: 0\r\n";
    for (target, rest) in [
        ("OPTIONS /", ""),
        ("GET /health", ""),
        ("PUT /orders/7", put),
    ] {
        ask(target, rest).await.assert_forwarded();
        // The upstream gets HTTP/1.1, which needs one.
        assert_eq!(upstream.last().head.get("host"), Some(own), "{target}");
    }
    let answer = ask("PUT /hosts/7", put).await;
    answer.assert_problem(400, "ambiguous-request");
    assert!(
        answer.text().contains("there is no single Host"),
        "{}",
        answer.text()
    );
}
