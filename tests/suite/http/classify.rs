//! Requests are given a route and a key, and refused if they are too ambiguous (guarantee G6). The
//! store does not matter here, so these run over `SQLite`.

mod modes;

use crate::fencing::keys::key_of;
use crate::support::{Request, delete, fenced, get, post, put, request};

#[tokio::test]
async fn ambiguous_paths_are_refused() {
    let (upstream, proxy) = fenced("{ routes: [{ path: '/{*path}', resource: '{path}' }] }").await;
    let paths = [
        "/orders/../7",
        "/orders/./7",
        "/orders/7/..",
        "/orders/7/.",
        "/orders/%2e%2e/7",
        "/orders/%2E/7",
        "/orders/.%2e/7",
        "/../orders/7",
        "//orders/7",
        "/orders//7",
        "/orders/7//",
        "/orders/7;v=1",
        "/orders;x/7",
        "/orders/7;",
        "/orders\\7",
        "/orders/..\\7",
        "/orders/7%2F8",
        "/orders/7%2f8",
        "/orders%2F7",
        "/orders/7%5C8",
        "/orders/7%5c8",
        "/orders/7%00",
        "/orders/%00",
        "/orders/7%",
        "/orders/7%4",
        "/orders/7%zz",
        "/orders/7%4g",
        "/orders/%C3%28",
        "/orders/%FF",
        "/orders/%C0%AF",
        "/orders/%ED%A0%80",
        "/orders/7%0a",
        "/orders/7%0D%0AX: 1".split(' ').next().unwrap_or_default(),
        "/orders/7%1F",
        "/orders/7%7F",
        "/orders/7%3F8",
        "/orders/7%3f",
        "/orders/7%238",
        "/orders/%2541",
        "/orders/%25%34%31",
        "/orders/%252e%252e/7",
    ];
    for path in paths {
        let answer = proxy.send(put(path).token(9)).await;
        assert_eq!(answer.status(), 400, "{path}: {}", answer.text());
        answer.assert_problem(400, "ambiguous-request");
        let read = proxy.send(get(path).token(9)).await;
        assert_eq!(read.status(), 400, "a read of {path} that is fenced");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_fragment_reaches_neither_the_key_nor_the_upstream() {
    let (upstream, proxy) = fenced("{}").await;
    let answer = proxy.send(put("/orders/7#8").token(9)).await;
    if answer.status() == 400 {
        assert_eq!(upstream.count(), 0);
    } else {
        answer.assert_forwarded();
        assert_eq!(
            (upstream.only().target(), upstream.only().resource()),
            ("/orders/7", Some("order:7"))
        );
    }
}

#[tokio::test]
async fn raw_bytes_beyond_ascii_get_no_key() {
    let (upstream, proxy) = fenced("{}").await;
    let answer = proxy.send(put("/orders/é").token(9)).await;
    assert_eq!(answer.status(), 400);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_request_names_one_host() {
    let (upstream, proxy) = fenced("{}").await;
    for host in ["app.test", "other.test"] {
        let two = put("/orders/7").header("Host", host).token(9);
        proxy.refuse(two, 400, "ambiguous-request").await;
    }
    proxy
        .refuse(
            put("/orders/7").host(None).token(9),
            400,
            "ambiguous-request",
        )
        .await;
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.token("order:7").await, None);
}

#[tokio::test]
async fn what_a_route_allows_is_no_longer_ambiguous_there() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/orders/{id}', resource: 'order:{id}', allow: [semicolon] }
         - { path: '/bills/{id}', resource: 'bill:{id}' }",
    )
    .await;
    assert_eq!(
        key_of(&upstream, &proxy, put("/orders/7;v=1").token(1)).await,
        "order:7;v=1"
    );
    proxy
        .refuse(put("/bills/7;v=1").token(1), 400, "ambiguous-request")
        .await;
    proxy
        .refuse(put("/orders/../7").token(1), 400, "ambiguous-request")
        .await;
}

#[tokio::test]
async fn the_target_goes_upstream_byte_for_byte() {
    let (upstream, proxy) = fenced("{}").await;
    let targets = [
        "/orders/7?",
        "/orders/7?a=b&&c=%20%2F+;x",
        "/orders/7?x=/../..//&y=%2e%2E",
        "/orders/%37?Q=%7e~",
        "/orders/7?redirect=http://a/b?c=d",
        "/orders/7?a=1&a=2",
    ];
    for target in targets {
        proxy.forward(put(target).token(1)).await;
    }
    let seen: Vec<String> = upstream
        .arrivals()
        .iter()
        .map(|one| one.target().to_owned())
        .collect();
    assert_eq!(seen, targets);
    assert!(
        upstream
            .arrivals()
            .iter()
            .all(|one| one.resource() == Some("order:7"))
    );
}

#[tokio::test]
async fn a_path_without_a_route_is_no_way_around() {
    let (upstream, proxy) = fenced("{}").await;
    for path in [
        "/",
        "/order/7",
        "/orders",
        "/orders/",
        "/orders/7/",
        "/orders/7/lines",
        "/Orders/7",
    ] {
        proxy.refuse(put(path).token(1), 404, "no-route").await;
        proxy.refuse(delete(path), 404, "no-route").await;
    }
    assert_eq!(upstream.count(), 0);
    proxy.forward(get("/elsewhere")).await;

    let (upstream, proxy) = fenced("unmatched: refuse").await;
    proxy.refuse(get("/elsewhere"), 404, "no-route").await;
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_most_specific_route_wins() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/{*any}', resource: 'any:{any}' }
         - { path: '/orders/{id}', resource: 'order:{id}' }
         - { path: '/orders/special', resource: 'special' }
         - { path: '/orders/{id}/{*rest}', resource: 'below:{id}' }",
    )
    .await;
    for (path, key) in [
        ("/orders/special", "special"),
        ("/orders/%73pecial", "special"),
        ("/orders/7", "order:7"),
        ("/orders/7/lines/1", "below:7"),
    ] {
        assert_eq!(
            key_of(&upstream, &proxy, put(path).token(1)).await,
            key,
            "{path}"
        );
    }
    assert!(
        key_of(&upstream, &proxy, put("/x").token(1))
            .await
            .starts_with("any:")
    );
}

#[tokio::test]
async fn methods_that_no_route_allows_are_refused() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: '/orders/{id}', resource: 'order:{id}', methods: [PUT, DELETE] }]",
    )
    .await;
    for method in ["POST", "PATCH", "MKCOL", "put", "Delete"] {
        let answer = proxy.send(request(method, "/orders/7").token(1)).await;
        answer.assert_problem(405, "method-not-allowed");
        let allow = answer.header("allow").expect("RFC 9110, section 15.5.6");
        assert!(allow.contains("PUT") && allow.contains("DELETE"), "{allow}");
    }
    proxy.forward(delete("/orders/7").token(1)).await;
    proxy.forward(get("/orders/7")).await;
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn trace_and_connect_are_refused_everywhere() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: '/orders/{id}', resource: 'order:{id}' }, { path: /open, mode: bypass }]",
    )
    .await;
    for target in ["/orders/7", "/open", "/elsewhere"] {
        for request in [request("TRACE", target), request("TRACE", target).token(1)] {
            proxy.refuse(request, 405, "method-not-allowed").await;
        }
    }
    let connect = request("CONNECT", "app.test:443").host(Some("app.test:443"));
    proxy.refuse(connect, 405, "method-not-allowed").await;
    assert_eq!(upstream.count(), 0);
}

/// Requests that have two readings, each in its own way.
fn doubtful() -> Vec<Request> {
    let write = |path: &str| put(path).token(1);
    let json = |request: Request| request.body(r#"{"id":"7"}"#);
    vec![
        write("/orders/7").header("X-Original-URL", "/orders/8"),
        write("/orders/7").header("x_rewrite_url", "/orders/8"),
        json(write("/members")),
        json(write("/members").header("Content-Type", "text/plain")),
        write("/orders/7")
            .header("Idempotency-Key", "a")
            .header("Idempotency-Key", "a"),
        write("/orders/7%3F"),
        write("/orders/7%23"),
        write("/orders/7%2541"),
    ]
}

fn routes(mode: &str) -> String {
    format!(
        "routes:
         - {{ path: '/orders/{{id}}', resource: 'order:{{id}}', mode: {mode} }}
         - {{ path: /members, resource: 'member:{{json.id}}', mode: {mode} }}"
    )
}

#[tokio::test]
async fn what_names_two_targets_or_has_two_readings_is_refused() {
    let (upstream, proxy) = fenced(&routes("enforce")).await;
    for request in doubtful() {
        let shown = format!("{request:?}");
        let answer = proxy.send(request).await;
        assert_eq!(answer.status(), 400, "{shown}");
        answer.assert_problem(400, "ambiguous-request");
    }
    assert_eq!(upstream.count(), 0);
    let (_, proxy) = fenced(&routes("enforce")).await;
    let claim = |target: &str| {
        post("/.well-known/fencing/claim")
            .token(9)
            .header("X-Fencing-Target", format!("PUT {target}"))
    };
    for claim in [
        claim("/orders/7").header("X-Original-URL", "/orders/8"),
        claim("/members").body(r#"{"id":"7"}"#),
        claim("/orders/7%3F"),
    ] {
        let shown = format!("{claim:?}");
        let answer = proxy.send(claim).await;
        assert_eq!(answer.status(), 400, "{shown}");
    }
    assert_eq!(proxy.token("order:7").await, None);
    let typed = claim("/members")
        .header("Content-Type", "application/json")
        .body(r#"{"id":"7"}"#);
    assert_eq!(proxy.send(typed).await.status(), 204);
    assert_eq!(proxy.token("member:7").await, Some(9));
}

#[tokio::test]
async fn observe_counts_what_names_two_targets_or_has_two_readings() {
    let (upstream, proxy) = fenced(&routes("observe")).await;
    let mut sent = 0.0;
    for request in doubtful() {
        proxy.forward(request).await;
        sent += 1.0;
    }
    let (series, outcome) = ("fencepost_requests_total", "observed-ambiguous-request");
    proxy
        .until_metric(series, &[("outcome", outcome)], |count| count > sent - 0.5)
        .await;
    assert_eq!(upstream.count(), doubtful().len());
    assert_eq!(proxy.token("order:7").await, None);
}
