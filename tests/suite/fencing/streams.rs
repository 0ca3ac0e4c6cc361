//! HTTP/2 upstreams: a fenced exchange has its connection to itself, no request waits where it
//! outlives its permit, and nothing of one that was given up arrives later (guarantees G2 and G5).
//! The upstream is written by hand, and tells requests by their bodies.

mod uploads;

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::bare::BareUpstream;
use crate::support::client::Exchange;
use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, Http2, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, block, frame, settings_frame,
};
use crate::support::{
    Config, Proxy, Request, Store, delete, eventually, forwarded, get, joined, or_return, put, soon,
};

const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const NO_STREAM: &[(u16, u32)] = &[(MAX_CONCURRENT_STREAMS, 0)];
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

async fn until_unknown(proxy: &Proxy, resource: &str) {
    eventually(&format!("{resource} is unknown"), || async {
        (unknown(proxy, resource).await == (1, 0)).then_some(())
    })
    .await;
}

/// Sends a request, which the upstream serves over a new connection; asserts the request's body.
async fn served(
    proxy: &Proxy,
    request: Request,
    upstream: &BareUpstream,
    settings: &[(u16, u32)],
    body: &str,
) -> Http2 {
    let sent = proxy.start_request(request);
    let mut peer = upstream.accept_http2(settings).await;
    assert_eq!(peer.serve().await, body);
    forwarded(sent).await;
    peer
}

/// Reads to the end, which is a reset.
async fn reset_by_the_proxy(peer: &mut Http2) {
    let (_, end) = soon("the end", peer.drain()).await;
    let error = end.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// There is room for many streams, and none is used beside a fenced exchange.
#[tokio::test]
async fn a_fenced_exchange_has_its_connection_to_itself() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let (mut held, mut first, stream) = long(&proxy, &upstream, &[]).await;
    let mut second = served(&proxy, order(7, 41, "other"), &upstream, &[], "other").await;
    // Nor one that is not fenced.
    let _third = served(&proxy, get("/orders/7"), &upstream, &[], "").await;
    first.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    // They are used again, one exchange after the other.
    let next = proxy.start_request(order(8, 41, "next"));
    let served = tokio::select! {
        served = first.serve() => served,
        served = second.serve() => served,
    };
    assert_eq!(served, "next");
    forwarded(next).await;
}

/// Two proxies on one Postgres that wait so long for a stream.
async fn two(connect_timeout: &str) -> Option<(BareUpstream, Proxy, Proxy)> {
    let (upstream, store) = (BareUpstream::start().await, Store::postgres().await?);
    let config = Config::to(&upstream.h2c(), &store)
        .with("barrier: { wait: 25s, settle: 300s }")
        .with(&format!(
            "upstream: {{ connect_timeout: {connect_timeout} }}"
        ));
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    Some((upstream, a, b))
}

/// A's upstream allows no stream. 41 gets none in time; 42 goes over B. Then A's upstream allows
/// many.
#[tokio::test]
async fn what_finds_no_stream_in_time_is_never_sent() {
    let (upstream, a, b) = or_return!(two("1s").await);
    let older = a.start_request(delete("/orders/7").token(41));
    let mut of_a = upstream.accept_http2(NO_STREAM).await;
    let problem = joined(older).await;
    let problem = problem.assert_problem(502, "upstream-unreachable");
    assert_eq!(problem["retry"], "same-token");

    let _of_b = served(&b, order(7, 42, "newer"), &upstream, ONE_STREAM, "newer").await;
    let _ = of_a.send(&settings_frame(ONE_STREAM)).await;
    while let Ok(frame) = soon("the end", of_a.frame()).await {
        assert!(![HEADERS, DATA].contains(&frame.kind), "41 was never sent");
    }
}

/// 41 has its permit and waits for a stream; 42 comes. 41 must not hold it up for as long as it may
/// wait.
#[tokio::test]
async fn what_waits_for_a_stream_lets_a_newer_token_pass() {
    let (upstream, a, b) = or_return!(two("300s").await);
    let older = a.start_request(order(7, 41, "older"));
    let mut of_a = upstream.accept_http2(NO_STREAM).await;
    let acked = |frame: &Frame| frame.kind == SETTINGS && frame.flags & 1 == 1;
    of_a.until("the settings are taken", acked).await;

    let _of_b = served(&b, order(7, 42, "newer"), &upstream, ONE_STREAM, "newer").await;
    let older = joined(older).await;
    assert_eq!(older.assert_problem(412, "stale-token")["mark"], "42");
}

/// The connections of before take nothing more, and what was sent over them ends.
#[tokio::test]
async fn a_reload_lets_what_was_sent_end_on_its_connection() {
    let more = "{ upstream: { idle_timeout: 60s }, barrier: { settle: 300s } }";
    let (upstream, config, proxy) = started(more).await;
    let (mut held, mut old, stream) = long(&proxy, &upstream, ONE_STREAM).await;
    proxy.reload(&config.with("upstream: { idle_timeout: 61s }"));
    let reloaded = "the configuration was reloaded";
    proxy.log_of("message", reloaded).await;
    let newer = order(7, 42, "newer");
    let _new = served(&proxy, newer, &upstream, ONE_STREAM, "newer").await;
    old.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    old.drain().await.1.expect("closed, and not reset");
}

/// A closed window keeps its body back: it is never sent, since its connection is reset.
#[tokio::test]
async fn a_request_that_is_given_up_takes_no_other_along() {
    let more = "{ upstream: { timeout: 1s }, body: { timeout: 1s },
                  barrier: { wait: 100ms, settle: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let (mut held, mut peer, stream) = long(&proxy, &upstream, &[]).await;
    let slow = proxy.start_request(order(7, 41, "kept back"));
    let mut other = upstream.accept_http2(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    other.until("the head", |frame| frame.kind == HEADERS).await;
    joined(slow).await.assert_problem(504, "outcome-unknown");
    reset_by_the_proxy(&mut other).await;
    assert_eq!(unknown(&proxy, "order:7").await, (1, 0));
    let newer = order(7, 42, "newer");
    proxy.refuse(newer, 503, "older-in-flight").await;
    peer.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    assert_eq!(unknown(&proxy, "order:1").await, (0, 0));
}

/// An empty body is handed over with the head: the answer is late from then on.
#[tokio::test]
async fn an_empty_body_is_not_waited_for() {
    let more = "{ upstream: { timeout: 500ms }, body: { timeout: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let sent = proxy.start_request(delete("/orders/7").token(41));
    let mut peer = upstream.accept_http2(&[]).await;
    let (_, body) = peer.request().await;
    assert!(body.is_empty());
    joined(sent).await.assert_problem(504, "outcome-unknown");
    reset_by_the_proxy(&mut peer).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_order() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 1s }").await;
    let gauge = "fencepost_upstream_connections";
    let sent = proxy.start_request(order(7, 1, "each"));
    let mut peer = upstream.accept_http2(ONE_STREAM).await;
    let (stream, _) = peer.request().await;
    assert_eq!(proxy.count(gauge, &[]).await, 1);
    peer.respond(stream, true).await;
    forwarded(sent).await;
    proxy.until_none(gauge).await;
    peer.drain().await.1.expect("closed, and not reset");
}

/// A request would wait in the library for a stream.
#[tokio::test]
async fn an_idle_connection_whose_upstream_lowers_its_limit_to_none_is_left() {
    let (upstream, _config, proxy) = started("upstream: { idle_timeout: 60s }").await;
    let before = order(7, 41, "before");
    let mut first = served(&proxy, before, &upstream, ONE_STREAM, "before").await;
    first.send(&settings_frame(NO_STREAM)).await.expect("taken");
    let _second = served(&proxy, order(7, 41, "next"), &upstream, ONE_STREAM, "next").await;
}

/// A request that the upstream has not processed, by its own word, has settled; it was written
/// once, and is not sent again, not even a read.
#[tokio::test]
async fn what_the_upstream_has_not_processed_has_settled() {
    let (upstream, _config, proxy) = started(NEVER).await;
    for request in [order(7, 42, "left out"), get("/orders/7")] {
        let left_out = proxy.start_request(request);
        let mut peer = upstream.accept_http2(&[]).await;
        peer.request().await;
        let goaway = frame(GOAWAY, 0, 0, &[0; 8]);
        peer.send(&goaway).await.expect("taken");
        let problem = joined(left_out).await;
        let problem = problem.assert_problem(502, "upstream-unreachable");
        assert_eq!(problem["retry"], "same-token");
        assert_eq!(unknown(&proxy, "order:7").await, (0, 0));
    }
    let _second = served(&proxy, order(7, 43, "next"), &upstream, &[], "next").await;
}

/// A reset says nothing of the kind, and a response is whole only with the end of its stream.
/// `HAProxy` refuses a stream (`REFUSED_STREAM`) whose server has read the request and closed
/// without an answer.
#[tokio::test]
async fn what_the_upstream_resets_is_unknown() {
    let (upstream, _config, proxy) = started(NEVER).await;
    for (id, code) in [(6, REFUSED_STREAM), (7, 2), (8, CANCEL), (9, 0)] {
        let reset = proxy.start_request(order(id, 41, "reset"));
        let mut peer = upstream.accept_http2(&[]).await;
        let (number, _) = peer.request().await;
        peer.reset(number, code).await;
        joined(reset).await.assert_problem(502, "outcome-unknown");
        assert_eq!(unknown(&proxy, &format!("order:{id}")).await, (1, 0));
    }
    for code in [0, CANCEL, REFUSED_STREAM] {
        let id = 10 + code;
        let mut half = proxy.begin(&order(id, 41, "half"), b"half").await;
        let mut peer = upstream.accept_http2(&[]).await;
        let (number, _) = peer.request().await;
        peer.respond(number, false).await;
        peer.data(number, b"half", false).await;
        peer.reset(number, code).await;
        soon("the end", half.answer()).await.expect_err("not whole");
        until_unknown(&proxy, &format!("order:{id}")).await;
    }
}

/// An upstream that has answered whole may say that it needs no more of the request (RFC 9113, 8.1).
#[tokio::test]
async fn a_reset_behind_a_whole_answer_leaves_it_whole() {
    let (upstream, _config, proxy) = started(NEVER).await;
    let older = proxy.start_request(order(7, 41, "older"));
    let mut peer = upstream.accept_http2(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
    let answer = block(&[(":status", b"413")]);
    let mut bytes = frame(HEADERS, END_HEADERS, head.stream, &answer);
    bytes.extend(frame(DATA, END_STREAM, head.stream, b"no"));
    bytes.extend(frame(RST_STREAM, 0, head.stream, &[0; 4]));
    peer.send(&bytes).await.expect("taken");
    let older = joined(older).await;
    assert_eq!((older.status(), &*older.text()), (413, "no"));
    let _second = served(&proxy, order(7, 42, ""), &upstream, &[], "").await;
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
        let answer = joined(sent).await;
        answer.assert_problem(502, "upstream-unreachable");
        let mut read = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut read).await;
        assert!(!String::from_utf8_lossy(&read).contains("marked"));
        assert_eq!(unknown(&proxy, "order:7").await, (0, 0));
    }
}

/// A client takes back what it sends. What others have on other connections goes on.
#[tokio::test]
async fn an_upload_that_breaks_off_resets_its_own_connection_alone() {
    let more = "{ body: { buffer: 0 }, barrier: { wait: 100ms, settle: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let (mut held, mut peer, stream) = long(&proxy, &upstream, &[]).await;
    let upload = put("/orders/7").token(41).header("Content-Length", "100");
    let leaver = proxy.begin(&upload, b"half").await;
    let mut other = upstream.accept_http2(&[]).await;
    let part = other.until("the half", |frame| frame.kind == DATA).await;
    assert_eq!(
        (part.payload.as_slice(), part.flags & END_STREAM),
        (&b"half"[..], 0)
    );
    drop(leaver);
    reset_by_the_proxy(&mut other).await;
    until_unknown(&proxy, "order:7").await;
    peer.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
}

/// A connection may lead nowhere without an error. A request that is not fenced has one to itself
/// too, and if it gets no answer, ends that one and no other. Its empty body is handed over with the
/// head: the answer is late from then on.
#[tokio::test]
async fn a_connection_on_which_a_request_got_no_answer_is_closed() {
    for leaves in [false, true] {
        let timeout = if leaves { "300s" } else { "300ms" };
        let more = format!("upstream: {{ timeout: {timeout}, idle_timeout: 300s }}");
        let more = format!("{{ {more}, body: {{ timeout: 300s }} }}");
        let (upstream, _config, proxy) = started(&more).await;
        let mut held = proxy.begin(&get("/orders/7"), b"").await;
        let mut first = upstream.accept_http2(&[]).await;
        let (stream, _) = first.request().await;
        first.respond(stream, false).await;

        let mut lost = proxy.begin(&get("/orders/7"), b"").await;
        let mut silent = upstream.accept_http2(&[]).await;
        silent.request().await;
        if leaves {
            drop(lost);
        } else {
            lost.finish().await.assert_problem(504, "outcome-unknown");
        }
        let _ = soon("the end", silent.drain()).await;
        let _third = served(&proxy, get("/orders/7"), &upstream, &[], "").await;
        first.data(stream, b"end", true).await;
        assert_eq!(held.finish().await.text(), "end");
    }
}
