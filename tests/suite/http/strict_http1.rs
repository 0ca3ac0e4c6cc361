//! The strict reading of HTTP/1: what is refused before anything is forwarded, in which order that
//! is answered, and what becomes of the connection.

use std::time::Duration;

use crate::support::client::Exchange;
use crate::support::wire::chunk;
use crate::support::{Answer, Gate, Must, Proxy, Step, eventually, fenced, get, put, soon};

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

/// What else is refused: `tests/edge`. Here, what is counted and said of it.
#[tokio::test]
async fn what_two_readers_could_take_for_different_things_is_refused() {
    let (upstream, proxy) = fenced("{}").await;
    let two_framings = format!("{PUT}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n");
    let ambiguous: [&[u8]; 3] = [
        two_framings.as_bytes(),
        b"GET /orders/7\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for bytes in ambiguous {
        refused(&proxy, bytes)
            .await
            .assert_problem(400, "ambiguous-request");
    }
    refused(&proxy, b"GET /orders/7 HTTP/1.2\r\nHost: a\r\n\r\n")
        .await
        .assert_problem(505, "version-not-supported");
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.token("order:7").await, None);
    let counted = [("route", "unmatched"), ("outcome", "ambiguous-request")];
    assert_eq!(proxy.count("fencepost_requests_total", &counted).await, 3);
    let line = proxy.log_of("outcome", "version-not-supported").await;
    assert_eq!(line["client"], "127.0.0.1");
    assert_eq!(line["route"], "unmatched");
}

#[tokio::test]
async fn what_is_well_formed_passes_as_it_was_sent() {
    let (upstream, proxy) = fenced("{}").await;
    let bytes = "\r\nPUT http://App.Test/orders/7?a[]=1|{2}^`&x HTTP/1.1\r\nHost: app.test\r\nx-fencing-TOKEN:9\r\n\
        X-Obs: \u{e9}\t x\r\nX-Two: 1\r\nX-Two: 2\r\nTransfer-Encoding: Chunked\r\nTrailer: X-Sum\r\n\r\n\
        3;a;b=\"c;\\\"d\"\r\none\r\n0003 ; x = y\r\ntwo\r\n0\r\nX-Sum: 6\r\n\r\n";
    let get = "GET /orders/7 HTTP/1.0\r\nHost: app.test\r\nConnection: keep-alive\r\n\r\n";
    let last = "OPTIONS /orders/7 HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n";
    let all = format!("{bytes}{get}{last}");
    // Latin-1 on the wire.
    let all: Vec<u8> = all
        .chars()
        .map(|c| u8::try_from(c).expect("Latin-1"))
        .collect();
    let mut exchange = Exchange::open(proxy.data(), "PUT").must().await;
    for byte in &all {
        exchange.wire.send(&[*byte]).must().await;
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        exchange.finish().await.assert_forwarded();
    }
    ends(exchange).await;
    let seen = upstream.arrivals();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].target(), "/orders/7?a[]=1|{2}^`&x");
    assert_eq!(seen[0].text(), "onetwo");
    assert_eq!(seen[0].head.get("x-obs"), Some("\u{e9}\t x"));
    assert_eq!(seen[0].head.all("x-two"), ["1", "2"]);
    assert_eq!(seen[0].trailers, []);
    assert_eq!(seen[0].head.all("host").len(), 1);
    assert_eq!((seen[1].method(), seen[2].method()), ("GET", "OPTIONS"));
}

#[tokio::test]
async fn the_refusal_comes_behind_earlier_answers_and_nothing_comes_behind_it() {
    let (upstream, proxy) = fenced("{}").await;
    let gate = upstream.hold_next();
    let good = format!("{PUT}Content-Length: 2\r\n\r\nok");
    let bad = format!("{PUT}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    let third = format!("{PUT}Content-Length: 0\r\n\r\n");
    let mut exchange = sent(&proxy, format!("{good}{bad}{third}").as_bytes()).await;
    upstream.reached(1).await;
    gate.open();
    exchange.finish().await.assert_forwarded();
    exchange
        .finish()
        .await
        .assert_problem(400, "ambiguous-request");
    ends(exchange).await;
    assert_eq!(upstream.count(), 1);
    assert_eq!(upstream.only().text(), "ok");
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
async fn heads_and_targets_have_limits() {
    let limits = "limits: { header_bytes: 1KiB, header_count: 5, target_bytes: 100 }";
    let (upstream, proxy) = fenced(limits).await;
    let target = |length: usize| format!("/orders/7?{}", "x".repeat(length - 10));
    proxy.forward(put(&target(100)).token(1)).await;
    proxy
        .refuse(put(&target(101)).token(1), 414, "target-too-long")
        .await;
    // Host, token and length are three.
    let lines =
        |count: usize| (3..count).fold(put("/orders/7").token(1), |put, _| put.header("X", "y"));
    proxy.forward(lines(5)).await;
    proxy.refuse(lines(6), 431, "head-too-large").await;
    let size = |bytes: usize| {
        let bare = put("/orders/7").token(1).header("X", "");
        let pad = bytes - bare.head_bytes().len();
        put("/orders/7").token(1).header("X", "x".repeat(pad))
    };
    proxy.forward(size(1024)).await;
    proxy.refuse(size(1025), 431, "head-too-large").await;
    // Without an end in sight it is refused at the limit.
    let endless = format!("GET /{}", "x".repeat(2000));
    refused(&proxy, endless.as_bytes())
        .await
        .assert_problem(414, "target-too-long");
    let endless = format!("{PUT}X: {}", "x".repeat(2000));
    refused(&proxy, endless.as_bytes())
        .await
        .assert_problem(431, "head-too-large");
    assert_eq!(upstream.count(), 3);
    assert_eq!(proxy.reached("header-bytes").await, 2);
    assert_eq!(proxy.reached("header-count").await, 1);
    assert_eq!(proxy.reached("target-bytes").await, 2);
}

#[tokio::test]
async fn raised_limits_reach_as_far_as_they_say() {
    let limits = "limits: { header_bytes: 1MiB, header_count: 300, target_bytes: 60KiB }";
    let (upstream, proxy) = fenced(limits).await;
    let many = (0..280).fold(put("/orders/7").token(1), |put, _| put.header("X", "y"));
    proxy.forward(many).await;
    let long = put("/orders/7").token(1).header("X", "x".repeat(900 << 10));
    // The upstream may take it or not; the target and this head have come as far.
    let _ = proxy.send(long).await;
    let target = format!("/orders/7?{}", "x".repeat(50 << 10));
    proxy.forward(put(&target).token(1)).await;
    assert_eq!(upstream.count(), 3);
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
    assert_eq!(head.word(1), "101");
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

#[tokio::test]
async fn http_2_passes_the_guard() {
    let (_upstream, proxy) = fenced("limits: { header_bytes: 1KiB }").await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend(settings);
    let mut exchange = Exchange::open(proxy.data(), "GET").must().await;
    for byte in preface {
        exchange.wire.send(&[byte]).must().await;
    }
    let frame = soon("a frame", exchange.wire.some()).must().await;
    assert_eq!(frame[3], 4, "the server's SETTINGS come first: {frame:?}");
    proxy.forward(get("/orders/7")).await;
}
