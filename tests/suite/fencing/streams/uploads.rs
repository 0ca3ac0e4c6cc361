//! Uploads that the upstream has not taken: early answers, a lease that is revoked, a limit that
//! falls.

use super::*;
use crate::support::http2::Frame;
use crate::support::pair::through;
use crate::support::postgres::Cluster;
use crate::support::relay::{Action, Point, Relay, Statement};

const NO_WINDOW: &[(u16, u32)] = &[(INITIAL_WINDOW_SIZE, 0)];

/// The next HEADERS; nothing of this stream's body comes before it.
async fn next_head(peer: &mut Http2, stream: u32) -> u32 {
    let next = |frame: &Frame| frame.kind == HEADERS || frame.kind == DATA;
    let frame = peer.until("a request", next).await;
    assert_eq!(frame.kind, HEADERS);
    assert_ne!(frame.stream, stream);
    frame.stream
}

/// The upstream answers 41 before it takes the body. Then comes 42, and then room for the body.
#[tokio::test]
async fn what_has_outlived_its_answer_does_not_arrive_beside_a_newer_token() {
    let more = "{ upstream: { http2_connections: 1 },
                  barrier: { wait: 20s, grace: 200ms, settle: 300ms } }";
    let (upstream, _config, proxy) = started(more).await;
    let older = proxy.start_request(order(7, 41, "older"));
    let mut peer = upstream.accept_http2(NO_WINDOW).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    peer.respond(head.stream, true).await;
    older.await.expect("no panic").assert_forwarded();

    let newer = proxy.start_request(order(7, 42, "newer"));
    let next = next_head(&mut peer, head.stream).await;
    let room = 1000_u32.to_be_bytes();
    for stream in [head.stream, next] {
        peer.send(&frame(WINDOW_UPDATE, 0, stream, &room))
            .await
            .expect("the connection stays");
    }
    let data = peer.until("a body", |frame| frame.kind == DATA).await;
    assert_eq!((data.stream, &data.payload[..]), (next, &b"newer"[..]));
    peer.respond(next, true).await;
    newer.await.expect("no panic").assert_forwarded();
    let last = proxy.start_request(order(7, 42, ""));
    let last_head = next_head(&mut peer, head.stream).await;
    peer.respond(last_head, true).await;
    last.await.expect("no panic").assert_forwarded();
}

/// As above, and nobody comes: the upload has `body.timeout` and `upstream.timeout`, and settles.
#[tokio::test]
async fn an_upload_that_nobody_takes_lets_go_of_its_token() {
    let more = "{ upstream: { http2_connections: 1, timeout: 300ms }, body: { timeout: 300ms },
                  barrier: { wait: 20s, grace: 300s, settle: 300ms } }";
    let (upstream, _config, proxy) = started(more).await;
    let older = proxy.start_request(order(7, 41, "older"));
    let mut peer = upstream.accept_http2(NO_WINDOW).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    peer.respond(head.stream, true).await;
    older.await.expect("no panic").assert_forwarded();
    given_up(&mut peer, head.stream).await;
    let newer = proxy.start_request(delete("/orders/7").token(42));
    let next = next_head(&mut peer, head.stream).await;
    peer.respond(next, true).await;
    newer.await.expect("no panic").assert_forwarded();
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
    let (_, end) = soon("the end", peer.drain()).await;
    let error = end.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// 41 has its stream and spends its token; meanwhile the upstream allows fewer streams. The library
/// keeps the request back, without a word.
#[tokio::test]
async fn a_stream_beyond_a_limit_that_fell_is_never_opened() {
    let Some(store) = Store::postgres("a_stream_beyond_a_limit_that_fell_…").await else {
        return;
    };
    let upstream = BareUpstream::start().await;
    let way = Relay::start(Cluster::shared().port()).await;
    let more = "{ upstream: { http2_connections: 1, timeout: 1s }, body: { timeout: 1s },
                  store: { timeout: 20s, lease: 60s }, barrier: { settle: 300s } }";
    let config = Config::to(&upstream.h2c(), &store).with(more);
    let config = through(&config, &store, &way).route("reuse: once");
    let proxy = Proxy::start(&config).await;
    let two = [(MAX_CONCURRENT_STREAMS, 2)];
    let (mut held, mut peer, stream) = long(&proxy, &upstream, &two).await;

    let advance = way.arm(
        Point::Before(Statement::Advance),
        Action::Delay(Duration::ZERO),
    );
    let spend = way.arm(Point::Before(Statement::Advance), Action::Hold);
    let older = proxy.start_request(order(7, 41, "older"));
    soon("the advance", advance.sprung()).await;
    soon("the spending", spend.sprung()).await;
    peer.send(&settings_frame(ONE_STREAM)).await.expect("taken");
    let acked = |frame: &Frame| frame.kind == 4 && frame.flags & 1 == 1;
    peer.until("the settings are taken", acked).await;
    spend.release();
    let older = soon("41", older).await.expect("no panic");
    older.assert_problem(502, "upstream-unreachable");
    assert_eq!(unknown(&proxy, "order:7").await, (0, 0));
    // The library would send it once there is room.
    peer.data(stream, b"end", true).await;
    let _ = held.answer().await;
    let (read, _) = soon("the end", peer.drain()).await;
    assert_eq!(read, 0, "nothing came after the settings were taken");
}
