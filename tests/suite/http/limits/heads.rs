//! How many header lines a request may have, up to the most that can be configured.

use crate::support::{Config, Proxy, Request, Store, Upstream, fenced, get, put};

fn with_lines(mut request: Request, count: usize) -> Request {
    for number in 0..count {
        request = request.header(&format!("x{number}"), "1");
    }
    request
}

/// The library panics beyond 24,576 lines, and makes room for as many with each.
#[tokio::test]
async fn more_header_lines_than_the_library_can_hold_are_not_configured() {
    let upstream = Upstream::start().await;
    for count in ["10001", "30000", "4294967295"] {
        let limits = format!("limits: {{ header_bytes: 1MiB, header_count: {count} }}");
        let config = Config::new(&upstream, &Store::sqlite()).with(&limits);
        Proxy::refused_for(&config, &["limits.header_count", "10000 at most"]).await;
    }
}

#[tokio::test]
async fn as_many_header_lines_as_can_be_configured_are_served_and_more_are_refused() {
    let limits = "limits: { header_bytes: 1MiB, header_count: 10000 }";
    let (upstream, proxy) = fenced(limits).await;
    // Host, length and token are lines too.
    let most = with_lines(put("/orders/7").token(1), 9990);
    proxy.forward(most).await;
    assert_eq!(upstream.last().head.get("x9989"), Some("1"));
    let over = proxy.send(with_lines(get("/elsewhere"), 10_001)).await;
    over.assert_problem(431, "head-too-large");
    assert_eq!(proxy.reached("header-count").await, 1);
    proxy.forward(put("/orders/7").token(2)).await;
}
