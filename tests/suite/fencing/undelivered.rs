//! Bytes that the kernel holds when a proxy dies or is stopped, or a tunnel ends: they never arrive
//! (guarantee G2). The way to the upstream is stuck in each: the upstream does not read, and its
//! kernel takes only some kilobytes.

use std::io::ErrorKind;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::support::bare::BareUpstream;
use crate::support::{Config, Proxy, Store, forwarded, joined, or_return, put, soon};

/// The way is free again: no more comes than what had arrived, and the connection is not ended as
/// if it were whole.
async fn nothing_more_comes(mut stuck: TcpStream) {
    let mut read = Vec::new();
    let ended = soon("the end", stuck.read_to_end(&mut read)).await;
    let error = ended.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(read.len() < 32 << 10, "{}", read.len());
}

/// 200 kB of 41 are under way.
async fn stuck(proxy: &Proxy, upstream: &BareUpstream) -> TcpStream {
    let request = put("/orders/7").token(41).body(vec![b'x'; 200_000]);
    let to = proxy.data();
    tokio::spawn(async move { request.attempt(to).await.ok() });
    let stuck = upstream.accept().await;
    let mut first = [0];
    let peeked = soon("the first byte", stuck.peek(&mut first)).await;
    peeked.expect("it comes");
    // The proxy writes all at once; there is no more to see from outside.
    proxy.until_some("fencepost_upstream_in_flight").await;
    stuck
}

#[tokio::test]
async fn what_a_killed_proxy_has_not_delivered_never_arrives() {
    let upstream = BareUpstream::narrow();
    // The user timeout has nothing to do with it.
    let config = Config::to(&upstream.url(), &Store::sqlite())
        .with("{ upstream: { undelivered: 600s }, barrier: { wait: 25s, settle: 1s } }");
    let mut proxy = Proxy::start(&config).await;
    let stuck = stuck(&proxy, &upstream).await;
    proxy.kill9();
    drop(proxy);
    // The next run waits until 41 has settled, and knows nothing of what its kernel may hold.
    let proxy = Proxy::start(&config).await;
    let newer = proxy.start_request(put("/orders/7").token(42));
    assert_eq!(upstream.serve().await.get("x-fencing-token"), Some("42"));
    joined(newer).await.assert_forwarded();
    nothing_more_comes(stuck).await;
}

#[tokio::test]
async fn what_a_stopped_proxy_has_not_delivered_is_given_up_before_it_has_settled() {
    let store = or_return!(Store::postgres().await);
    let upstream = BareUpstream::narrow();
    let config = Config::to(&upstream.url(), &store)
        .with("{ upstream: { undelivered: 1s }, barrier: { wait: 25s, settle: 1s } }");
    let a = Proxy::start(&config.clone().with("store: { lease: 1s }")).await;
    let b = Proxy::start(&config.with("store: { lease: 20s }")).await;
    let stuck = stuck(&a, &upstream).await;
    a.pause().await;
    let newer = b.start_request(put("/orders/7").token(42));
    assert_eq!(upstream.serve().await.get("x-fencing-token"), Some("42"));
    forwarded(newer).await;
    nothing_more_comes(stuck).await;
    a.resume();
}
