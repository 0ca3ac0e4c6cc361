//! HTTP/2 upstreams: no request waits where it outlives its permit, and nothing of one that was
//! given up arrives later (guarantees G2 and G5). The upstream is written by hand, and tells
//! requests by their bodies.

mod confirmed;
mod plain;
mod uploads;

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::bare::BareUpstream;
use crate::support::client::Exchange;
use crate::support::http2::{
    DATA, END_STREAM, GOAWAY, HEADERS, Http2, PING, RST_STREAM, WINDOW_UPDATE, frame,
    settings_frame,
};
use crate::support::{Config, Proxy, Request, Store, delete, eventually, put, soon};

const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const ONE_STREAM: &[(u16, u32)] = &[(MAX_CONCURRENT_STREAMS, 1)];
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// Nothing drains or settles within a test.
const NEVER: &str = "barrier: { wait: 1s, grace: 300s, settle: 300s }";

async fn started(more: &str) -> (BareUpstream, Config, Proxy) {
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.h2c(), &Store::sqlite()).with(more);
    let proxy = Proxy::start(&config).await;
    (upstream, config, proxy)
}

fn order(id: u32, token: u64, body: &str) -> Request {
    put(&format!("/orders/{id}")).token(token).body(body)
}

/// Sends a request whose response begins at once and goes on; returns its stream.
async fn long(
    proxy: &Proxy,
    upstream: &BareUpstream,
    settings: &[(u16, u32)],
) -> (Exchange, Http2, u32) {
    let request = order(1, 1, "long");
    let exchange = proxy.begin(&request, b"long").await;
    let mut peer = upstream.accept_http2(settings).await;
    let (stream, body) = peer.request().await;
    assert_eq!(body, b"long");
    peer.respond(stream, false).await;
    (exchange, peer, stream)
}

/// The number of unknown outcomes of a resource, and of requests in flight.
async fn unknown(proxy: &Proxy, resource: &str) -> (usize, u64) {
    let mark = proxy.mark(resource).await.expect("a mark");
    let unknown = mark["unknown"].as_array().map_or(0, Vec::len);
    (unknown, mark["in_flight"].as_u64().expect("a count"))
}

/// Reads until this stream has been reset and a PING has come; both say that it was given up. The
/// PING comes behind the reset: its answer says that the reset was read, too.
async fn given_up(peer: &mut Http2, stream: u32) {
    let mut reset = false;
    loop {
        let frame = soon("a request that is given up", peer.frame()).await;
        let frame = frame.expect("the connection stays");
        reset |= frame.kind == RST_STREAM && frame.stream == stream;
        if frame.kind == PING && frame.flags & 1 == 0 {
            assert!(reset, "the PING came before the reset");
            return;
        }
    }
}

async fn waits_for_a_stream(proxy: &Proxy) {
    let labels = [("limit", "upstream-streams")];
    proxy
        .until_metric("fencepost_limit_reached_total", &labels, |count| {
            count > 0.0
        })
        .await;
}

/// The only stream of A's only connection is taken. 41 finds none; 42 goes over B. The stream ends.
#[tokio::test]
async fn what_finds_no_stream_in_time_is_never_sent() {
    let Some(store) = Store::postgres("what_finds_no_stream_in_time_…").await else {
        return;
    };
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.h2c(), &store).with(
        "{ upstream: { http2_connections: 1, timeout: 1s }, barrier: { wait: 20s, settle: 1s } }",
    );
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    let (mut held, mut of_a, stream) = long(&a, &upstream, ONE_STREAM).await;

    let older = a.send(delete("/orders/7").token(41)).await;
    let problem = older.assert_problem(503, "overloaded");
    assert_eq!(problem["retry"], "same-token");
    assert_eq!(older.retry_after(), Some(1));

    let newer = b.start_request(order(7, 42, "newer"));
    let mut of_b = upstream.accept_http2(ONE_STREAM).await;
    assert_eq!(of_b.serve().await, "newer");
    let newer = soon("42", newer).await.expect("no panic");
    newer.assert_forwarded();

    of_a.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    // The next request over A's connection is the one that is sent next.
    let after = a.start_request(order(2, 1, "after"));
    assert_eq!(of_a.serve().await, "after", "41 was never sent");
    soon("the next", after)
        .await
        .expect("no panic")
        .assert_forwarded();
}

/// 41 has its permit and waits for a stream; 42 comes. 41 must not hold it up for as long as it may
/// wait.
#[tokio::test]
async fn what_waits_for_a_stream_lets_a_newer_token_pass() {
    let Some(store) = Store::postgres("what_waits_for_a_stream_…").await else {
        return;
    };
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.h2c(), &store).with(
        "{ upstream: { http2_connections: 1, timeout: 300s }, barrier: { wait: 25s, settle: 300s } }",
    );
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    let (mut held, mut of_a, stream) = long(&a, &upstream, ONE_STREAM).await;
    let older = a.start_request(order(7, 41, "older"));
    waits_for_a_stream(&a).await;

    let newer = b.start_request(order(7, 42, "newer"));
    let mut of_b = upstream.accept_http2(ONE_STREAM).await;
    assert_eq!(of_b.serve().await, "newer");
    let newer = soon("42", newer).await.expect("no panic");
    newer.assert_forwarded();
    let older = soon("41", older).await.expect("no panic");
    assert_eq!(older.assert_problem(412, "stale-token")["mark"], "42");

    of_a.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    let after = a.start_request(order(2, 1, "after"));
    assert_eq!(of_a.serve().await, "after", "41 was never sent");
    after.await.expect("no panic").assert_forwarded();
}

/// One proxy, and a reload: the connections of before take nothing more, and what was sent over
/// them ends.
#[tokio::test]
async fn a_reload_refuses_what_waits_for_a_stream() {
    let more = "{ upstream: { http2_connections: 1, timeout: 300s }, barrier: { settle: 300s } }";
    let (upstream, config, proxy) = started(more).await;
    let (mut held, mut old, stream) = long(&proxy, &upstream, ONE_STREAM).await;
    let older = proxy.start_request(order(7, 41, "older"));
    waits_for_a_stream(&proxy).await;
    proxy.rewrite(&config.with("upstream: { idle_timeout: 5s }"));
    proxy.hang_up();
    let older = soon("41", older).await.expect("no panic");
    let problem = older.assert_problem(503, "overloaded");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains("reloaded"), "{detail}");

    let newer = proxy.start_request(order(7, 42, "newer"));
    let mut new = upstream.accept_http2(ONE_STREAM).await;
    assert_eq!(new.serve().await, "newer");
    let newer = soon("42", newer).await.expect("no panic");
    newer.assert_forwarded();
    assert_eq!(unknown(&proxy, "order:7").await, (0, 0));

    old.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    let goodbye = old.until("a goodbye", |frame| frame.kind == GOAWAY).await;
    assert_eq!(goodbye.payload[4..], [0; 4], "NO_ERROR");
}

/// Two share a connection, and the upstream is too slow for one of them.
#[tokio::test]
async fn a_request_that_is_given_up_takes_others_along_only_if_the_upstream_does_not_confirm() {
    for polite in [true, false] {
        let more = "{ upstream: { http2_connections: 1, timeout: 1s }, \
                     barrier: { wait: 100ms, settle: 300s } }";
        let (upstream, _config, proxy) = started(more).await;
        let two = [(MAX_CONCURRENT_STREAMS, 2)];
        let (mut held, mut peer, stream) = long(&proxy, &upstream, &two).await;
        let slow = proxy.start_request(order(7, 41, "slow"));
        let (number, _) = peer.request().await;
        peer.polite = polite;
        given_up(&mut peer, number).await;
        if polite {
            peer.data(stream, b"end", true).await;
            assert_eq!(held.finish().await.text(), "end");
        } else {
            let broken = soon("the end", held.answer()).await;
            broken.expect_err("it shared the connection");
            let (_, end) = soon("the end", peer.drain()).await;
            let error = end.expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            eventually("the other is unknown", || async {
                (unknown(&proxy, "order:1").await == (1, 0)).then_some(())
            })
            .await;
        }
        let slow = soon("41", slow).await.expect("no panic");
        slow.assert_problem(504, "outcome-unknown");
        assert_eq!(unknown(&proxy, "order:7").await, (1, 0));
        proxy
            .send(order(7, 42, "newer"))
            .await
            .assert_problem(503, "older-in-flight");
    }
}

/// The upstream's window was closed, and opens when the request has been given up.
#[tokio::test]
async fn what_a_closed_window_holds_back_is_never_sent() {
    let more = "{ upstream: { http2_connections: 1, timeout: 1s }, body: { timeout: 1s } }";
    let (upstream, _config, proxy) = started(more).await;
    let closed = [(INITIAL_WINDOW_SIZE, 0)];
    let sent = proxy.start_request(order(7, 41, "kept back"));
    let mut peer = upstream.accept_http2(&closed).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    given_up(&mut peer, head.stream).await;
    let open = frame(WINDOW_UPDATE, 0, head.stream, &1000_u32.to_be_bytes());
    peer.send(&open).await.expect("the connection stays");
    peer.send(&settings_frame(&[(INITIAL_WINDOW_SIZE, 1000)]))
        .await
        .expect("the connection stays");
    let sent = soon("the answer", sent).await.expect("no panic");
    sent.assert_problem(504, "outcome-unknown");
    // The next thing that comes is the next request.
    let next = proxy.start_request(order(8, 1, "next"));
    let first = peer
        .until("a frame of a stream", |frame| {
            [HEADERS, DATA].contains(&frame.kind)
        })
        .await;
    assert_ne!((first.kind, first.stream), (DATA, head.stream));
    peer.respond(first.stream, true).await;
    let next = soon("the next", next).await.expect("no panic");
    next.assert_forwarded();
}

/// The way to the upstream is stuck: megabytes lie in the kernel, and the confirmation cannot get
/// through.
#[tokio::test]
async fn what_is_stuck_in_the_kernel_when_a_request_is_given_up_is_never_sent() {
    let upstream = BareUpstream::narrow();
    let more = "{ body: { buffer: 16MiB, timeout: 1s }, upstream: { timeout: 1s } }";
    let proxy = Proxy::start(&Config::to(&upstream.h2c(), &Store::sqlite()).with(more)).await;
    let large = "x".repeat(8 << 20);
    let sent = proxy.start_request(order(7, 41, &large));
    let wide = [(INITIAL_WINDOW_SIZE, 1 << 30)];
    let mut peer = upstream.accept_http2(&wide).await;
    let more = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    peer.send(&more).await.expect("taken");
    let sent = soon("the answer", sent).await.expect("no panic");
    sent.assert_problem(504, "outcome-unknown");
    let (read, end) = soon("the end", peer.drain()).await;
    let error = end.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(read < 64 << 10, "{read}");
}

/// An empty body is handed over with the head: the answer is late from then on.
#[tokio::test]
async fn an_empty_body_is_not_waited_for() {
    let more = "{ upstream: { timeout: 500ms }, body: { timeout: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let sent = proxy.start_request(delete("/orders/7").token(41));
    let mut peer = upstream.accept_http2(&[]).await;
    let (stream, body) = peer.request().await;
    assert!(body.is_empty());
    given_up(&mut peer, stream).await;
    let sent = soon("the answer", sent).await.expect("no panic");
    sent.assert_problem(504, "outcome-unknown");
}

#[tokio::test]
async fn more_connections_are_opened_as_streams_run_out_and_closed_as_they_are_idle() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 1s }").await;
    let gauge = "fencepost_upstream_http2_connections";
    let mut sent = Vec::new();
    let mut peers = Vec::new();
    for id in 0..3 {
        sent.push(proxy.start_request(order(id, 1, "each")));
        let mut peer = upstream.accept_http2(ONE_STREAM).await;
        let (stream, _) = peer.request().await;
        peers.push((peer, stream));
    }
    proxy
        .until_metric(gauge, &[], |count| (count - 3.0).abs() < 0.1)
        .await;
    for (peer, stream) in &mut peers {
        peer.respond(*stream, true).await;
    }
    for sent in sent {
        let answer = soon("an answer", sent).await.expect("no panic");
        answer.assert_forwarded();
    }
    // One connection is enough for what comes one by one.
    let next = proxy.start_request(order(3, 1, "next"));
    assert_eq!(peers[0].0.serve().await, "next");
    next.await.expect("no panic").assert_forwarded();
    proxy.until_metric(gauge, &[], |count| count < 0.1).await;
    for (mut peer, _) in peers {
        assert_eq!(peer.end().await, [0], "NO_ERROR");
    }
}

#[tokio::test]
async fn a_limit_that_the_upstream_lowers_holds_from_then_on() {
    let (upstream, _config, proxy) = started(NEVER).await;
    let two = [(MAX_CONCURRENT_STREAMS, 2)];
    let (mut held, mut first, stream) = long(&proxy, &upstream, &two).await;
    first
        .send(&settings_frame(ONE_STREAM))
        .await
        .expect("taken");
    let acked = |frame: &crate::support::http2::Frame| frame.kind == 4 && frame.flags & 1 == 1;
    first.until("the settings are taken", acked).await;
    let next = proxy.start_request(order(7, 41, "next"));
    let mut second = upstream.accept_http2(ONE_STREAM).await;
    assert_eq!(second.serve().await, "next");
    next.await.expect("no panic").assert_forwarded();
    first.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
}

/// A request that the upstream has not processed, by its own word, has settled; it was written
/// once, and is not sent again.
#[tokio::test]
async fn what_the_upstream_has_not_processed_has_settled() {
    let (upstream, _config, proxy) = started(NEVER).await;
    let (mut held, mut peer, stream) = long(&proxy, &upstream, &[]).await;

    let left_out = proxy.start_request(order(7, 42, "left out"));
    let (number, _) = peer.request().await;
    let mut goodbye = stream.to_be_bytes().to_vec();
    goodbye.extend([0; 4]);
    peer.send(&frame(GOAWAY, 0, 0, &goodbye))
        .await
        .expect("taken");
    assert!(number > stream);
    let left_out = soon("the one left out", left_out).await.expect("no panic");
    let problem = left_out.assert_problem(502, "upstream-unreachable");
    assert_eq!(problem["retry"], "same-token");
    assert_eq!(unknown(&proxy, "order:7").await, (0, 0));

    let next = proxy.start_request(order(7, 43, "next"));
    let mut second = upstream.accept_http2(&[]).await;
    assert_eq!(second.serve().await, "next");
    next.await.expect("no panic").assert_forwarded();
    // The streams that it covers come to their end.
    peer.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
}

/// A reset says nothing of the kind, and a response is whole only with the end of its stream.
/// `HAProxy` refuses a stream (`REFUSED_STREAM`) whose server has read the request and closed
/// without an answer.
#[tokio::test]
async fn what_the_upstream_resets_is_unknown() {
    // A connection takes two PINGs without an answer between.
    for cases in [[(6, REFUSED_STREAM), (7, 2)], [(8, CANCEL), (9, 0)]] {
        let (upstream, _config, proxy) = started(NEVER).await;
        let (_held, mut peer, _) = long(&proxy, &upstream, &[]).await;
        for (id, code) in cases {
            let reset = proxy.start_request(order(id, 41, "reset"));
            let (number, _) = peer.request().await;
            peer.reset(number, code).await;
            peer.until("a PING", |frame| frame.kind == PING).await;
            let reset = soon("the answer", reset).await.expect("no panic");
            reset.assert_problem(502, "outcome-unknown");
            assert_eq!(unknown(&proxy, &format!("order:{id}")).await, (1, 0));
        }
    }
    let (upstream, _config, proxy) = started(NEVER).await;
    let (_held, mut peer, _) = long(&proxy, &upstream, &[]).await;
    for code in [0, CANCEL, REFUSED_STREAM] {
        let id = 10 + code;
        let mut half = proxy.begin(&order(id, 41, "half"), b"half").await;
        let (number, _) = peer.request().await;
        peer.respond(number, false).await;
        peer.data(number, b"half", false).await;
        peer.reset(number, code).await;
        peer.until("a PING", |frame| frame.kind == PING).await;
        let half = soon("the end", half.answer()).await;
        half.expect_err("it is not whole");
        eventually("it is unknown", || async {
            (unknown(&proxy, &format!("order:{id}")).await == (1, 0)).then_some(())
        })
        .await;
    }
}

/// One that takes connections and says nothing, or something else, has been sent nothing.
#[tokio::test]
async fn an_upstream_that_does_not_speak_http2_is_unreachable() {
    for says in ["", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"] {
        let upstream = BareUpstream::start().await;
        let config = Config::to(&upstream.h2c(), &Store::sqlite());
        let proxy = Proxy::start(&config.with("upstream: { connect_timeout: 500ms }")).await;
        let sent = proxy.start_request(order(7, 41, "marked"));
        let mut socket = upstream.accept().await;
        let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, says.as_bytes()).await;
        let sent = soon("the answer", sent).await.expect("no panic");
        sent.assert_problem(502, "upstream-unreachable");
        let mut read = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut read).await;
        let has = |text: &[u8]| read.windows(text.len()).any(|part| part == text);
        assert!(!has(b"marked"));
        assert_eq!(unknown(&proxy, "order:7").await, (0, 0));
    }
}

/// Streams that a client takes back are not to break what others have on the same connection.
#[tokio::test]
async fn an_upload_that_breaks_off_leaves_the_connection_to_the_others() {
    let more = "{ body: { buffer: 0 }, barrier: { wait: 100ms, settle: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let (mut held, mut peer, stream) = long(&proxy, &upstream, &[]).await;
    let upload = put("/orders/7").token(41).header("Content-Length", "100");
    let leaver = proxy.begin(&upload, b"half").await;
    let part = peer.until("the half", |frame| frame.kind == DATA).await;
    assert_eq!(
        (part.payload.as_slice(), part.flags & END_STREAM),
        (&b"half"[..], 0)
    );
    drop(leaver);
    given_up(&mut peer, part.stream).await;
    eventually("it is unknown", || async {
        (unknown(&proxy, "order:7").await == (1, 0)).then_some(())
    })
    .await;
    peer.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
}
