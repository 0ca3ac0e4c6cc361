//! Requests are given a route and a key, and refused if they are too ambiguous (guarantee G6).
//! Which need a token, their route's mode and their method say; of methods
//! `tests/edge/method.toml` has more. The store does not matter here, so these run over `SQLite`.

use crate::fencing::keys::key_of;
use crate::support::steps::REQUESTS;
use crate::support::{fenced, get, post, put, request};

#[tokio::test]
async fn what_no_route_takes_can_be_refused_altogether() {
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
        ("/x", "any:x"),
    ] {
        let found = key_of(&upstream, &proxy, put(path).token(1)).await;
        assert_eq!(found, key, "{path}");
    }
}

#[tokio::test]
async fn a_method_that_no_route_allows_is_told_those_that_are() {
    let (_, proxy) = fenced("{}").await;
    let answer = proxy.send(request("MKCOL", "/orders/7").token(1)).await;
    answer.assert_problem(405, "method-not-allowed");
    let allow = answer.header("allow").expect("RFC 9110, section 15.5.6");
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert!(allow.contains(method), "{allow}");
    }
}

/// That they are refused where they are fenced, each in its own way: `tests/edge`.
#[tokio::test]
async fn observe_counts_what_names_two_targets_or_has_two_readings() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/orders/{id}', resource: 'order:{id}', mode: observe }
         - { path: /members, resource: 'member:{json.id}', mode: observe }",
    )
    .await;
    let doubtful = [
        put("/orders/7").header("X-Original-URL", "/orders/8"),
        put("/members").body(r#"{"id":"7"}"#),
        put("/orders/7")
            .header("Idempotency-Key", "a")
            .header("Idempotency-Key", "a"),
        put("/orders/7%3F"),
        put("/orders/7%2541"),
    ];
    for request in doubtful {
        proxy.forward(request.token(1)).await;
    }
    proxy.until_outcome("observed-ambiguous-request", 5).await;
    assert_eq!(upstream.count(), 5);
    assert_eq!(proxy.token("order:7").await, None);
}

#[tokio::test]
async fn methods_that_the_registry_calls_safe_are_judged_like_get() {
    let (upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    for method in ["GET", "PROPFIND", "QUERY", "REPORT", "SEARCH"] {
        let asked = || request(method, "/orders/7").body("<q/>");
        proxy.forward(asked()).await;
        assert_eq!(upstream.last().head.get("idempotency-key"), None);
        proxy.stale(asked().token(4)).await;
        proxy.forward(request(method, "/elsewhere")).await;
        let overridden = || asked().header("X-HTTP-Method-Override", "PUT");
        proxy.refuse(overridden(), 428, "token-required").await;
        proxy.forward(overridden().token(5)).await;
        proxy.stale(overridden().token(4)).await;
    }
    let head = proxy.send(request("HEAD", "/orders/7").token(4)).await;
    assert_eq!((head.status(), head.outcome()), (412, Some("stale-token")));
    assert_eq!(upstream.count(), 16);
}

#[tokio::test]
async fn safe_methods_can_be_required_or_ignored() {
    let (upstream, proxy) = fenced("safe_methods: required").await;
    for method in ["GET", "PROPFIND"] {
        let read = request(method, "/orders/7");
        proxy.refuse(read.clone(), 428, "token-required").await;
        proxy.forward(read.token(1)).await;
    }
    assert_eq!(upstream.count(), 2);

    let (upstream, proxy) =
        fenced("routes: [{ path: '/orders/{id}', resource: 'order:{id}', safe_methods: ignored }]")
            .await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.forward(get("/orders/7").token(4)).await;
    proxy.forward(get("/orders/7").token(9)).await;
    assert_eq!(
        proxy.token("order:7").await,
        Some(5),
        "a token that is ignored raises nothing"
    );
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn observe_refuses_nothing_and_counts_what_it_would_have() {
    let (upstream, proxy) =
        fenced("routes: [{ path: '/orders/{id}', resource: 'order:{id}', mode: observe }]").await;
    proxy.forward(put("/orders/7").token(5)).await;
    // The check is made beside the request.
    proxy.until_token("order:7", 5).await;
    proxy.forward(put("/orders/7").token(4)).await;
    proxy.forward(put("/orders/7")).await;
    proxy.forward(put("/orders/7").token("x")).await;
    assert_eq!(upstream.count(), 4);
    let stale = "observed-stale-token";
    proxy.until_outcome(stale, 1).await;
    assert_eq!(proxy.token("order:7").await, Some(5));
    let observed = proxy.count(REQUESTS, &[("outcome", stale)]).await;
    assert_eq!(observed, 1);
    let metrics = proxy.metrics().await;
    assert!(metrics.sum("fencepost_route_mode", &[("mode", "observe")]) > 0.0);
}

#[tokio::test]
async fn bypass_is_said_by_a_route_and_nothing_else() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: /health, mode: bypass }, { path: '/{*any}', resource: 'any:{any}' }]",
    )
    .await;
    proxy.forward(post("/health")).await;
    proxy.forward(post("/health").token("x")).await;
    for path in ["/health/", "/Health", "/health/x"] {
        proxy.refuse(post(path), 428, "token-required").await;
    }
    proxy
        .refuse(post("/x/../health"), 400, "ambiguous-request")
        .await;
    assert_eq!(upstream.count(), 2);
}
