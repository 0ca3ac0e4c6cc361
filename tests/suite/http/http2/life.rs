//! How long an HTTP/2 connection lives, and how much one may have in progress.

use super::{fenced, good, is_served};
use crate::support::http2::{GOAWAY, Http2, Outcome, PING};
use crate::support::soon;

const BRIEF: &str = "limits: { idle_timeout: 1s, head_timeout: 3s }";

#[tokio::test]
async fn a_connection_without_requests_is_ended_in_good_order() {
    let (_upstream, proxy) = fenced(BRIEF).await;
    let mut polite = Http2::open(proxy.data()).await;
    let stream = polite.head(&good("/orders/7"), true).await;
    assert_eq!(polite.answer(stream).await, Outcome::Status(200));
    let codes = polite.end().await;
    // Two steps: nothing more, please; and then: this was the last one (RFC 9113, 6.8).
    assert_eq!(codes, [0, 0]);
    // One that has never asked for anything, and one that does not even answer pings.
    let mut unused = Http2::open(proxy.data()).await;
    assert_eq!(unused.end().await, [0, 0]);
    let mut silent = Http2::open(proxy.data()).await;
    silent.polite = false;
    silent.end().await;
    proxy.until_reached("idle-timeout", 2).await;
}

#[tokio::test]
async fn a_connection_with_a_request_at_work_is_not_idle() {
    let (upstream, proxy) = fenced("limits: { idle_timeout: 1s, head_timeout: 10s }").await;
    let gate = upstream.hold_next();
    let mut client = Http2::open(proxy.data()).await;
    let stream = client.head(&good("/orders/7"), true).await;
    upstream.reached(1).await;
    // Pings keep coming, and no GOAWAY, for many times the limit.
    for _ in 0..10 {
        let frame = client
            .until("a ping", |frame| {
                frame.kind == PING && frame.flags == 0 || frame.kind == GOAWAY
            })
            .await;
        assert_eq!(frame.kind, PING);
    }
    gate.open();
    assert_eq!(client.answer(stream).await, Outcome::Status(200));
}

#[tokio::test]
async fn a_client_that_is_gone_without_a_word_is_noticed() {
    let (upstream, proxy) = fenced(BRIEF).await;
    let gate = upstream.hold_next();
    let mut client = Http2::open(proxy.data()).await;
    let _stream = client.head(&good("/orders/7"), true).await;
    upstream.reached(1).await;
    client.polite = false;
    client.end().await;
    // Its requests are followed to their end: their outcome is known.
    gate.open();
    upstream
        .until("the end of its request", |all| {
            all[0].ended.is_some_and(|_| !all[0].left)
        })
        .await;
    is_served(&proxy).await;
}

#[tokio::test]
async fn no_more_streams_than_are_allowed_reach_the_upstream() {
    let (upstream, proxy) = fenced("limits: { http2_streams: 3 }").await;
    let gates = [(); 3].map(|()| upstream.hold_next());
    let mut client = Http2::open(proxy.data()).await;
    let mut streams = Vec::new();
    for path in ["/orders/1", "/orders/2", "/orders/3", "/orders/4"] {
        streams.push(client.head(&good(path), true).await);
    }
    // REFUSED_STREAM: it may be sent again.
    assert_eq!(client.answer(streams[3]).await, Outcome::Reset(7));
    upstream.reached(3).await;
    for gate in gates {
        gate.open();
    }
    for stream in &streams[..3] {
        assert_eq!(client.answer(*stream).await, Outcome::Status(200));
    }
    // Their heads are there; their ends may still be on the way.
    let again = soon("room again", async {
        loop {
            let stream = client.head(&good("/orders/4"), true).await;
            let answer = client.answer(stream).await;
            if answer != Outcome::Reset(7) {
                return answer;
            }
        }
    });
    assert_eq!(again.await, Outcome::Status(200));
    assert_eq!(upstream.count(), 4);
}
