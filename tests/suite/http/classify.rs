//! Requests are given a route and a key, and refused if they are too ambiguous (guarantee G6). The
//! store does not matter here, so these run over `SQLite`.

mod modes;

use crate::fencing::keys::key_of;
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
