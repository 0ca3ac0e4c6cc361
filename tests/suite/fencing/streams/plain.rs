//! Requests that nobody fences: what becomes of their streams and connections.

use super::*;
use crate::support::{forwarded, joined};

/// They share a connection, up to the upstream's limit.
#[tokio::test]
async fn requests_share_a_connection_while_it_has_streams() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let two = [(MAX_CONCURRENT_STREAMS, 2)];
    let first = proxy.start_request(get("/orders/7"));
    let mut peer = upstream.accept_http2(&two).await;
    let (one, _) = peer.request().await;
    let second = proxy.start_request(get("/orders/7"));
    let (other, _) = peer.request().await;
    let _more = served(&proxy, get("/orders/7"), &upstream, &two, "").await;
    for (stream, sent) in [(other, second), (one, first)] {
        peer.respond(stream, true).await;
        joined(sent).await.assert_forwarded();
    }
    // The oldest that has a stream takes the next.
    let next = proxy.start_request(get("/orders/7"));
    assert_eq!(peer.serve().await, "");
    next.await.expect("no panic").assert_forwarded();
}

/// Requests that find no connection wait for the same one.
#[tokio::test]
async fn a_burst_shares_the_connection_that_it_opens() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let ask = |_| proxy.start_request(get("/orders/7"));
    let asked: Vec<_> = (0..40).map(ask).collect();
    let mut peer = upstream.accept_http2(&[]).await;
    for _ in &asked {
        assert_eq!(peer.serve().await, "");
    }
    for sent in asked {
        sent.await.expect("no panic").assert_forwarded();
    }
}

/// A connection may lead nowhere without an error. After a request without an answer it takes no
/// other; what others have on it goes on.
#[tokio::test]
async fn a_connection_on_which_a_request_got_no_answer_is_left() {
    for leaves in [false, true] {
        let timeout = if leaves { "300s" } else { "300ms" };
        let more = format!("upstream: {{ timeout: {timeout}, idle_timeout: 300s }}");
        let (upstream, _config, proxy) = started(&more).await;
        let mut held = proxy.begin(&get("/orders/7"), b"").await;
        let mut silent = upstream.accept_http2(&[]).await;
        let (stream, _) = silent.request().await;
        silent.respond(stream, false).await;

        let lost = proxy.begin(&get("/orders/7"), b"").await;
        let (without, _) = silent.request().await;
        if leaves {
            drop(lost);
        } else {
            let mut lost = lost;
            lost.finish().await.assert_problem(504, "outcome-unknown");
        }
        let reset = |frame: &Frame| frame.kind == RST_STREAM && frame.stream == without;
        silent.until("its reset", reset).await;
        let _second = served(&proxy, get("/orders/7"), &upstream, &[], "").await;
        silent.data(stream, b"end", true).await;
        assert_eq!(held.finish().await.text(), "end");
        assert_eq!(silent.end().await, [0], "NO_ERROR");
    }
}

/// The upstream has answered, and takes nothing of the body: the stream is needed for others.
#[tokio::test]
async fn a_whole_answer_ends_its_upload() {
    let more = "{ upstream: { idle_timeout: 60s },
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

/// Many wait for connections that are refused at the same moment: each is refused.
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

/// The upstream ends the connection while they are on their way, and has not processed them.
#[tokio::test]
async fn safe_requests_that_a_goaway_leaves_out_are_sent_again_once() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let left_out = async |peer: &mut Http2| {
        let goaway = frame(GOAWAY, 0, 0, &[0; 8]);
        peer.send(&goaway).await.expect("taken");
    };
    let again = proxy.start_request(get("/orders/7"));
    let mut peer = upstream.accept_http2(&[]).await;
    peer.request().await;
    left_out(&mut peer).await;
    let mut next = upstream.accept_http2(&[]).await;
    assert_eq!(next.serve().await, "");
    forwarded(again).await;
    // Once, and only what does no harm a second time.
    let twice = proxy.start_request(get("/orders/7"));
    next.request().await;
    left_out(&mut next).await;
    let mut last = upstream.accept_http2(&[]).await;
    last.request().await;
    left_out(&mut last).await;
    let twice = joined(twice).await;
    twice.assert_problem(502, "upstream-unreachable");
}
