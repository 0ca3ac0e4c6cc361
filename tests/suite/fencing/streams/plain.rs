//! Requests that nobody fences: what becomes of their connections.

use super::*;
use crate::support::{forwarded, joined};

/// One that is idle is used again, one exchange after the other.
#[tokio::test]
async fn a_request_has_its_connection_to_itself() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let mut held = proxy.begin(&get("/orders/7"), b"").await;
    let mut first = upstream.accept_http2(&[]).await;
    let (stream, _) = first.request().await;
    first.respond(stream, false).await;
    let mut second = served(&proxy, get("/orders/7"), &upstream, &[], "").await;
    let next = proxy.start_request(get("/orders/7"));
    assert_eq!(second.serve().await, "");
    forwarded(next).await;
    first.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    let next = proxy.start_request(get("/orders/7"));
    tokio::select! {
        served = first.serve() => assert_eq!(served, ""),
        served = second.serve() => assert_eq!(served, ""),
    }
    forwarded(next).await;
}

/// A connection may lead nowhere without an error. A request without an answer ends its own one,
/// and no other.
#[tokio::test]
async fn a_connection_on_which_a_request_got_no_answer_is_closed() {
    for leaves in [false, true] {
        let timeout = if leaves { "300s" } else { "300ms" };
        let more = format!("upstream: {{ timeout: {timeout}, idle_timeout: 300s }}");
        let (upstream, _config, proxy) = started(&more).await;
        let mut held = proxy.begin(&get("/orders/7"), b"").await;
        let mut first = upstream.accept_http2(&[]).await;
        let (stream, _) = first.request().await;
        first.respond(stream, false).await;

        let lost = proxy.begin(&get("/orders/7"), b"").await;
        let mut silent = upstream.accept_http2(&[]).await;
        silent.request().await;
        if leaves {
            drop(lost);
        } else {
            let mut lost = lost;
            lost.finish().await.assert_problem(504, "outcome-unknown");
        }
        let _ = soon("the end", silent.drain()).await;
        let _third = served(&proxy, get("/orders/7"), &upstream, &[], "").await;
        first.data(stream, b"end", true).await;
        assert_eq!(held.finish().await.text(), "end");
    }
}

/// The upstream has answered, and takes nothing of the body.
#[tokio::test]
async fn a_whole_answer_ends_its_upload() {
    let more = "{ upstream: { idle_timeout: 60s },
                  routes: [{ path: '/open/{id}', mode: bypass }] }";
    let (upstream, _config, proxy) = started(more).await;
    let early = proxy.start_request(put("/open/7").body("never taken"));
    let mut peer = upstream.accept_http2(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    peer.respond(head.stream, true).await;
    early.await.expect("no panic").assert_forwarded();
    let _ = soon("the end", peer.drain()).await;
    let _next = served(&proxy, get("/open/7"), &upstream, &[], "").await;
}

/// Many connections are refused at the same moment: each request is answered.
#[tokio::test]
async fn of_requests_whose_connections_fail_together_each_is_told() {
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

/// The upstream ends the connection while it is on its way, and has not processed it.
#[tokio::test]
async fn a_request_that_a_goaway_leaves_out_is_not_sent_again() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let left_out = proxy.start_request(get("/orders/7"));
    let mut peer = upstream.accept_http2(&[]).await;
    peer.request().await;
    let goaway = frame(GOAWAY, 0, 0, &[0; 8]);
    peer.send(&goaway).await.expect("taken");
    let left_out = joined(left_out).await;
    left_out.assert_problem(502, "upstream-unreachable");
    let _next = served(&proxy, get("/orders/8"), &upstream, &[], "").await;
}
