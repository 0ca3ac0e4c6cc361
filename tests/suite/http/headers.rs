//! Header and trailer fields that cross the proxy, and those that it adds.

use crate::support::{Step, fenced, put};

#[tokio::test]
async fn trailers_of_responses_go_on_but_for_forbidden_ones() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::raw(
        "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\
         X-Sum: down\r\nX-Fencing-Outcome: forged\r\nContent-Length: 5\r\n\r\n",
    )]);
    let upload = put("/orders/7").token(1).header("Trailer", "X-Sum").header("TE", "trailers").chunks(
        &[b"one", b"two"],
        "X-Sum: up\r\nX-Fencing-Token: 99\r\nX_Fencing_Token: 99\r\nContent-Length: 3\r\nHost: evil\r\nAuthorization: evil\r\n",
    );
    let answer = proxy.send(upload).await;
    answer.assert_forwarded();
    let names = |trailers: &[(String, String)]| -> Vec<String> {
        trailers
            .iter()
            .map(|(name, value)| format!("{}={value}", name.to_ascii_lowercase()))
            .collect()
    };
    assert_eq!(names(&upstream.only().trailers), [""; 0]);
    assert_eq!(upstream.only().head.all("trailer"), [""; 0]);
    assert_eq!(upstream.only().text(), "onetwo");
    assert_eq!(names(&answer.trailers), ["x-sum=down"]);
}

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

#[tokio::test]
async fn hop_by_hop_fields_stay_on_their_hop() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::answer(
        "200 OK",
        "Connection: X-Up, keep-alive\r\nX-Up: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\
         Upgrade: h2c\r\nX-End: kept\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Fencing-Token: 9\r\n\
         X-Fencing-Outcome: stale-token\r\nX_Fencing_Mark: 3\r\n",
        "ok",
    )]);
    let sent = put("/orders/7")
        .token(1)
        .header("Connection", "X-Down, keep-alive, X-Fencing-Token")
        .header("X-Down", "1")
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Authorization", "Basic Zm9v")
        .header("Proxy-Connection", "keep-alive")
        .header("TE", "gzip")
        .header("X-End", "kept")
        .header("X-Two", "1")
        .header("X-Two", "2")
        .header("Authorization", "Bearer mine");
    let answer = proxy.send(sent).await;
    let seen = upstream.only();
    for name in [
        "x-down",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "upgrade",
    ] {
        assert_eq!(seen.head.all(name), Vec::<&str>::new(), "{name} upstream");
    }
    assert!(seen.head.all("te").iter().all(|value| *value == "trailers"));
    assert_eq!(
        seen.head.get("x-fencing-token"),
        Some("1"),
        "`Connection` does not strip what we add"
    );
    assert_eq!(seen.head.get("x-end"), Some("kept"));
    assert_eq!(seen.head.all("x-two"), ["1", "2"]);
    assert_eq!(seen.head.get("authorization"), Some("Bearer mine"));

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
async fn the_upstream_is_told_who_asked_and_what_was_decided() {
    let (upstream, proxy) = fenced("{}").await;
    let forged = put("/orders/7")
        .token("007")
        .header("X-Fencing-Resource", "order:8")
        .header("X_Fencing_Resource", "order:9")
        .header("X-Fencing-Mark", "1")
        .header("x-fencing_anything", "1")
        .header("X-Forwarded-For", "192.0.2.1")
        .header("Via", "1.0 before")
        .header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        );
    proxy.forward(forged).await;
    let seen = upstream.only();
    let fencing: Vec<(&str, &str)> = seen
        .head
        .headers
        .iter()
        .filter(|(name, _)| {
            name.to_ascii_lowercase()
                .replace('_', "-")
                .starts_with("x-fencing")
        })
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(fencing.len(), 2, "{fencing:?}");
    assert_eq!(
        (seen.head.get("x-fencing-token"), seen.resource()),
        (Some("7"), Some("order:7"))
    );
    assert_eq!(seen.head.get("host"), Some("app.test"), "`host: preserve`");
    assert_eq!(seen.head.get("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.head.get("x-forwarded-host"), Some("app.test"));
    let chain = seen.head.all("x-forwarded-for").join(", ");
    assert!(chain.ends_with("127.0.0.1"), "{chain}");
    let via = seen.head.all("via").join(", ");
    assert!(via.starts_with("1.0 before, 1.1 "), "{via}");
    assert_eq!(
        seen.head.get("traceparent"),
        Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    );
    // Without one, none is invented.
    proxy.forward(put("/orders/7").token(8)).await;
    assert_eq!(upstream.last().head.get("traceparent"), None);
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
