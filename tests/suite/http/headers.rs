//! Header and trailer fields that cross the proxy, and those that it adds.

use crate::support::{Step, fenced, put};

#[tokio::test]
async fn only_a_trusted_proxy_says_how_its_client_came() {
    for (trusted, proto, host) in [
        ("{}", "http", "app.test"),
        ("trusted_proxies: [192.0.2.0/24]", "http", "app.test"),
        ("trusted_proxies: [127.0.0.1]", "https", "outer.test"),
    ] {
        let (upstream, proxy) = fenced(trusted).await;
        let request = put("/orders/7")
            .token(1)
            .header("X-Forwarded-Proto", "https")
            .header("X-Forwarded-Host", "outer.test")
            .header("X_Forwarded_Host", "evil.test");
        proxy.forward(request).await;
        let head = upstream.only().head;
        assert_eq!(head.all("x-forwarded-proto"), [proto], "{trusted}");
        assert_eq!(head.all("x-forwarded-host"), [host], "{trusted}");
        assert_eq!(head.all("x_forwarded_host"), [""; 0], "{trusted}");
    }
}

/// An upstream that goes by another host than the one in the key would write for another host.
#[tokio::test]
async fn where_the_host_is_in_the_key_the_upstream_finds_no_other() {
    let (upstream, proxy) = fenced(
        "trusted_proxies: [127.0.0.1]
routes: [{ path: '/hosts/{id}', resource: 'host:{host}:{id}' }]",
    )
    .await;
    let request = put("/hosts/7")
        .token(1)
        .header("X-Forwarded-Host", "outer.test")
        .header("X_Forwarded_Host", "evil.test")
        .header("Forwarded", "for=192.0.2.1;host=outer.test");
    proxy.forward(request).await;
    let head = upstream.only().head;
    assert_eq!(head.all("x-fencing-resource"), ["host:app.test:7"]);
    assert_eq!(head.all("x-forwarded-host"), ["app.test"]);
    for name in ["x_forwarded_host", "forwarded"] {
        assert_eq!(head.all(name), [""; 0], "{name}");
    }
}

/// Those of requests: `tests/edge`.
#[tokio::test]
async fn hop_by_hop_fields_of_an_answer_stay_on_their_hop() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::answer(
        "200 OK",
        "Connection: X-Up, keep-alive\r\nX-Up: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\
         Upgrade: h2c\r\nX-End: kept\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Fencing-Token: 9\r\n\
         X-Fencing-Outcome: stale-token\r\nX_Fencing_Mark: 3\r\n",
        "ok",
    )]);
    let answer = proxy.send(put("/orders/7").token(1)).await;
    assert_eq!(answer.status(), 200);
    for name in [
        "x-up",
        "keep-alive",
        "proxy-authenticate",
        "upgrade",
        "x-fencing-token",
        "x-fencing-outcome",
        "x_fencing_mark",
    ] {
        assert_eq!(
            answer.head.all(name),
            Vec::<&str>::new(),
            "{name} to the client"
        );
    }
    assert_eq!(answer.header("x-end"), Some("kept"));
    assert_eq!(answer.head.all("set-cookie"), ["a=1", "b=2"]);
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
