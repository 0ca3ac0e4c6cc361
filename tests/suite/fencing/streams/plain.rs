//! Requests that nobody fences: what becomes of their streams and connections.

use super::*;
use crate::support::get;

/// An upstream that says nothing is not asked again and again over the same connection.
#[tokio::test]
async fn a_connection_whose_upstream_answers_nothing_is_left() {
    for leaves in [false, true] {
        let timeout = if leaves { "300s" } else { "300ms" };
        let more = format!("upstream: {{ timeout: {timeout}, idle_timeout: 300s }}");
        let (upstream, _config, proxy) = started(&more).await;
        let first = proxy.start_request(get("/orders/7"));
        let mut silent = upstream.accept_http2(&[]).await;
        assert_eq!(silent.serve().await, "");
        first.await.expect("no panic").assert_forwarded();

        silent.polite = false;
        let lost = proxy.begin(&get("/orders/7"), b"").await;
        silent.request().await;
        if leaves {
            drop(lost);
        } else {
            let mut lost = lost;
            let lost = lost.finish().await;
            lost.assert_problem(504, "outcome-unknown");
        }
        // It is closed, with nothing on it.
        assert_eq!(silent.end().await, [0], "NO_ERROR");
        let next = proxy.start_request(get("/orders/7"));
        let mut second = upstream.accept_http2(&[]).await;
        assert_eq!(second.serve().await, "");
        next.await.expect("no panic").assert_forwarded();
    }
}

/// One that is slow with a request, and lives, keeps its connection.
#[tokio::test]
async fn a_connection_whose_upstream_is_slow_with_one_request_stays() {
    let more = "upstream: { timeout: 300ms, idle_timeout: 300s }";
    let (upstream, _config, proxy) = started(more).await;
    let first = proxy.start_request(get("/orders/7"));
    let mut peer = upstream.accept_http2(&[]).await;
    assert_eq!(peer.serve().await, "");
    first.await.expect("no panic").assert_forwarded();
    let slow = proxy.start_request(get("/orders/7"));
    let (stream, _) = peer.request().await;
    slow.await.expect("no panic");
    given_up(&mut peer, stream).await;
    let next = proxy.start_request(get("/orders/7"));
    assert_eq!(peer.serve().await, "");
    next.await.expect("no panic").assert_forwarded();
}

/// The upstream has answered, and takes nothing of the body: the stream is needed for others.
#[tokio::test]
async fn an_upload_that_nobody_takes_ends_after_its_answer() {
    let more = "{ upstream: { http2_connections: 1, timeout: 1s },
                  routes: [{ path: '/open/{id}', mode: bypass }] }";
    let (upstream, _config, proxy) = started(more).await;
    let early = proxy.start_request(put("/open/7").body("never taken"));
    let settings = [(MAX_CONCURRENT_STREAMS, 1), (INITIAL_WINDOW_SIZE, 0)];
    let mut peer = upstream.accept_http2(&settings).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    peer.respond(head.stream, true).await;
    early.await.expect("no panic").assert_forwarded();
    peer.until("the reset", |frame| {
        frame.kind == RST_STREAM && frame.stream == head.stream
    })
    .await;
    let next = proxy.start_request(get("/open/7"));
    assert_eq!(peer.serve().await, "");
    next.await.expect("no panic").assert_forwarded();
}

/// All streams are taken, and the next connection cannot be opened: those that wait have another
/// one tried.
#[tokio::test]
async fn a_connection_that_could_not_be_opened_is_tried_again() {
    let (upstream, _config, proxy) = started("upstream: { timeout: 300s }").await;
    let (_held, _first, _) = long(&proxy, &upstream, ONE_STREAM).await;
    let waits = proxy.start_request(order(7, 41, "waits"));
    drop(upstream.accept().await);
    drop(upstream.accept().await);
    let mut second = upstream.accept_http2(ONE_STREAM).await;
    assert_eq!(second.serve().await, "waits");
    waits.await.expect("no panic").assert_forwarded();
}

/// Many wait for connections that are refused at the same moment: each is refused, and none waits
/// for a stream.
#[tokio::test]
async fn of_connections_that_fail_together_all_that_wait_are_told() {
    let port = crate::support::postgres::free_port();
    let config = Config::to(&format!("h2c://127.0.0.1:{port}"), &Store::sqlite())
        .with("upstream: { timeout: 300s, connect_timeout: 20s }");
    let proxy = Proxy::start(&config).await;
    for _ in 0..5 {
        let asked: Vec<_> = (0..400)
            .map(|_| proxy.start_request(get("/orders/7")))
            .collect();
        for answer in asked {
            answer
                .await
                .expect("no panic")
                .assert_problem(502, "upstream-unreachable");
        }
    }
}
