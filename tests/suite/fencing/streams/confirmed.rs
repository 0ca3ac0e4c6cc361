//! PINGs by which an upstream confirms that it has read what a given-up request has sent: behind
//! its reset, and no more of them than a server of gRPC takes.

use super::*;

/// Each give-up is one PING, and each answer between them says that they do not add up.
#[tokio::test]
async fn a_given_up_stream_is_reset_before_the_upstream_is_asked() {
    let more = "{ upstream: { http2_connections: 1, timeout: 300ms }, barrier: { settle: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let mut peer = None;
    for id in 0..5 {
        let slow = proxy.start_request(order(id, 41, "slow"));
        let mut there = match peer.take() {
            Some(there) => there,
            None => upstream.accept_http2(&[]).await,
        };
        let (stream, _) = there.request().await;
        // Says so if the PING comes first.
        given_up(&mut there, stream).await;
        let slow = soon("41", slow).await.expect("no panic");
        slow.assert_problem(504, "outcome-unknown");
        let quick = proxy.start_request(order(10 + id, 1, "quick"));
        assert_eq!(there.serve().await, "quick");
        quick.await.expect("no panic").assert_forwarded();
        peer = Some(there);
    }
}

/// A server of gRPC's Go library ends a connection at the fourth PING without an answer of its own
/// between them (`too_many_pings`).
#[tokio::test]
async fn a_connection_takes_two_pings_without_an_answer_between() {
    let more = "{ upstream: { timeout: 300ms }, barrier: { settle: 300s } }";
    let (upstream, _config, proxy) = started(more).await;
    let (mut held, mut first, stream) = long(&proxy, &upstream, &[]).await;
    for id in 2..4 {
        let slow = proxy.start_request(order(id, 41, "slow"));
        let (number, _) = first.request().await;
        given_up(&mut first, number).await;
        let slow = soon("41", slow).await.expect("no panic");
        slow.assert_problem(504, "outcome-unknown");
    }
    let next = proxy.start_request(order(7, 41, "next"));
    let mut second = upstream.accept_http2(&[]).await;
    assert_eq!(second.serve().await, "next");
    next.await.expect("no panic").assert_forwarded();
    // The requests of the first one come to their end.
    first.data(stream, b"end", true).await;
    assert_eq!(held.finish().await.text(), "end");
    assert_eq!(first.end().await, [0], "NO_ERROR");
}
