//! Header and trailer fields that cross the proxy, and those that it adds.

use crate::support::{Step, fenced, put};

/// An upstream that goes by another host than the one in the key would write for another host.
#[tokio::test]
async fn where_the_host_is_in_the_key_the_upstream_finds_no_other() {
    let (upstream, proxy) = fenced(
        "trusted_proxies: [127.0.0.1]
routes:
  - { path: '/hosts/{id}', resource: 'host:{host}:{id}' }
  - { path: '/orders/{id}', resource: 'order:{id}' }",
    )
    .await;
    let request = |path: &str| {
        put(path)
            .token(1)
            .header("X-Forwarded-Proto", "https")
            .header("X-Forwarded-Host", "outer.test")
            .header("X_Forwarded_Host", "evil.test")
            .header("Forwarded", "for=192.0.2.1;host=outer.test")
    };
    proxy.forward(request("/hosts/7")).await;
    let head = upstream.last().head;
    assert_eq!(head.get("x-fencing-resource"), Some("host:app.test:7"));
    assert_eq!(head.get("x-forwarded-host"), Some("app.test"));
    assert_eq!(head.get("forwarded"), None);
    assert_eq!(head.get("x_forwarded_host"), None);
    // Elsewhere a trusted proxy says how its client came; any other peer: `tests/edge`.
    proxy.forward(request("/orders/7")).await;
    let head = upstream.last().head;
    assert_eq!(head.get("x-forwarded-proto"), Some("https"));
    assert_eq!(head.get("x-forwarded-host"), Some("outer.test"));
    assert_eq!(head.get("x_forwarded_host"), None);
}

/// Those of requests: `tests/edge`.
#[tokio::test]
async fn hop_by_hop_fields_of_an_answer_stay_on_their_hop() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::raw(
        "HTTP/1.1 200 OK\r\nConnection: X-Up, X-Hop, keep-alive\r\nX-Up: 1\r\n\
         Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX-End: kept\r\n\
         Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Fencing-Token: 9\r\n\
         X-Fencing-Outcome: stale-token\r\nX_Fencing_Mark: 3\r\n\
         Trailer: X-Sum, X-Hop, X-Fencing-Mark, Set-Cookie\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 1\r\nX_Hop: 1\r\nX-Hop: 1\r\nX_Fencing_Mark: 1\r\n\
         X-Fencing-Outcome: forged\r\nContent-Length: 5\r\nSet-Cookie: a=1\r\nX-More: 1\r\n\r\n",
    )]);
    let request = put("/orders/7").token(1).header("TE", "trailers");
    let mut answer = proxy.forward(request).await;
    let fields = answer.head.headers.iter();
    let mut names: Vec<String> = fields.map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    let kept = "date set-cookie set-cookie trailer transfer-encoding via x-end";
    assert_eq!(names.join(" "), kept);
    assert_eq!(answer.head.all("set-cookie"), ["a=1", "b=2"]);
    answer.trailers.sort();
    // One that nothing announced may go over.
    let may = [("X-More", "1"), ("X-Sum", "1")];
    let may = may.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(answer.trailers, may);
}

#[tokio::test]
async fn the_host_can_be_rewritten_or_literal() {
    let (upstream, proxy) = fenced("upstream: { host: rewrite }").await;
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!(
        upstream.only().head.get("host"),
        upstream.url().strip_prefix("http://")
    );
    let (upstream, proxy) = fenced("upstream: { host: inner.test }").await;
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!(upstream.only().head.get("host"), Some("inner.test"));
}

#[tokio::test]
async fn a_client_that_is_gone_before_it_is_looked_at_is_named_all_the_same() {
    let (upstream, proxy) = fenced("body: { buffer: 1KiB }").await;
    proxy.pause().await;
    // So much that the proxy reads for a while before it finds out.
    let upload = put("/orders/7").token(1).header("Content-Length", "90000");
    let left = proxy.begin(&upload, "a".repeat(60_000).as_bytes()).await;
    left.wire.reset();
    proxy.resume();
    upstream.reached(1).await;
    let seen = upstream.only();
    assert_eq!(seen.head.get("x-forwarded-for"), Some("127.0.0.1"));
}
