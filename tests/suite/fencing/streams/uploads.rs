//! Uploads that the upstream has not taken: early answers, a lease that is revoked, a limit that
//! falls.

use super::*;
use crate::support::or_return;
use crate::support::pair::through;
use crate::support::postgres::Cluster;
use crate::support::relay::{Action, Point, Relay, Statement};

const NO_WINDOW: &[(u16, u32)] = &[(INITIAL_WINDOW_SIZE, 0)];

/// The upstream answers 41 before it takes the body. Then comes 42, and then room for the body.
#[tokio::test]
async fn what_has_outlived_its_answer_does_not_arrive_beside_a_newer_token() {
    let (upstream, _config, proxy) = started(NEVER).await;
    let older = proxy.start_request(order(7, 41, "older"));
    let mut peer = upstream.accept_http2(NO_WINDOW).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    peer.respond(head.stream, true).await;
    older.await.expect("no panic").assert_forwarded();

    // What was sent of 41 has been taken, and the rest never goes: nothing is waited for.
    let newer = proxy.start_request(order(7, 42, "newer"));
    let mut next = upstream.accept_http2(&[]).await;
    let room = 1000_u32.to_be_bytes();
    let _ = peer
        .send(&frame(WINDOW_UPDATE, 0, head.stream, &room))
        .await;
    assert_eq!(next.serve().await, "newer");
    newer.await.expect("no panic").assert_forwarded();
    while let Ok(frame) = soon("the end", peer.frame()).await {
        assert_ne!(frame.kind, DATA);
    }
    assert_eq!(unknown(&proxy, "order:7").await, (0, 0));
}

/// The store's file is moved away: another proxy may serve its path, and does not reckon with what
/// is sent here.
#[tokio::test]
async fn an_upload_ends_at_once_when_the_lease_is_revoked() {
    let upstream = BareUpstream::start().await;
    let store = Store::sqlite();
    let more = "{ body: { buffer: 0, timeout: 300s, progress_timeout: 300s },
                  barrier: { grace: 300s, settle: 300s }, upstream: { undelivered: 300s } }";
    let proxy = Proxy::start(&Config::to(&upstream.h2c(), &store).with(more)).await;
    let upload = put("/orders/7").token(41).header("Content-Length", "100");
    let _client = proxy.begin(&upload, b"half").await;
    let mut peer = upstream.accept_http2(&[]).await;
    peer.until("the half", |frame| frame.kind == DATA).await;
    let file = store.path();
    std::fs::rename(&file, file.with_extension("moved")).expect("it can be moved");
    reset_by_the_proxy(&mut peer).await;
}

/// 41 has its connection and spends its token; meanwhile the upstream allows no stream any more. The
/// library would keep the request back, without a word.
#[tokio::test]
async fn a_stream_beyond_a_limit_that_fell_is_never_opened() {
    let store = or_return!(Store::postgres().await);
    let upstream = BareUpstream::start().await;
    let way = Relay::start(Cluster::shared().port()).await;
    let more = "{ store: { timeout: 20s, lease: 60s }, barrier: { settle: 300s } }";
    let config = Config::to(&upstream.h2c(), &store).with(more);
    let config = through(&config, &store, &way).route("reuse: once");
    let proxy = Proxy::start(&config).await;

    let advance = way.arm(
        Point::Before(Statement::Advance),
        Action::Delay(Duration::ZERO),
    );
    let spend = way.hold(Point::Before(Statement::Advance));
    let older = proxy.start_request(order(7, 41, "older"));
    soon("the advance", advance.sprung()).await;
    let mut first = upstream.accept_http2(ONE_STREAM).await;
    soon("the spending", spend.sprung()).await;
    first.send(&settings_frame(NO_STREAM)).await.expect("taken");
    spend.release();
    let mut second = upstream.accept_http2(ONE_STREAM).await;
    assert_eq!(second.serve().await, "older");
    older.await.expect("no panic").assert_forwarded();
    assert_eq!(unknown(&proxy, "order:7").await, (0, 0));
    while let Ok(frame) = soon("the end", first.frame()).await {
        assert_ne!(frame.kind, HEADERS);
    }
}
