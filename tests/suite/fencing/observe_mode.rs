//! Observed routes: each request counts once, by the last thing that became of it.

use serde_json::Value;

use super::claim::{by_key, claim};
use crate::support::steps::REQUESTS;
use crate::support::{Proxy, Step, Upstream, fenced, forwarded, post, put};

async fn observing(route: &str, more: &str) -> (Upstream, Proxy) {
    let routes = format!("routes: [{{ {route}, mode: observe }}]");
    fenced(&format!("{{ {routes}, {more} }}")).await
}

/// How many requests ended in this way.
async fn counted(proxy: &Proxy, outcome: &str) -> u64 {
    proxy.count(REQUESTS, &[("outcome", outcome)]).await
}

#[tokio::test]
async fn an_exchange_that_fails_is_not_counted_as_forwarded() {
    let (upstream, proxy) = observing("path: '/orders/{id}', resource: 'order:{id}'", "").await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.until_outcome("advanced", 1).await;
    for token in [6, 4] {
        upstream.next([Step::Reset]);
        let put = put("/orders/7").token(token);
        proxy.refuse(put, 502, "outcome-unknown").await;
    }
    let refused = proxy.log_of("message", "would have been refused");
    assert_eq!(refused.await["token"], "4");
    // A check beside an exchange ends behind it.
    proxy.forward(put("/orders/7").token(6)).await;
    proxy.until_outcome("current", 1).await;
    for (outcome, count) in [
        ("advanced", 1),
        ("current", 1),
        ("outcome-unknown", 2),
        ("observed-stale-token", 0),
    ] {
        assert_eq!(counted(&proxy, outcome).await, count, "{outcome}");
    }
}

/// Nothing is refused while nothing is enforced, on any path.
#[tokio::test]
async fn an_unlisted_write_passes_until_a_route_enforces() {
    let route = "path: '/orders/{id}', resource: 'order:{id}'";
    let (upstream, proxy) = observing(route, "").await;
    let warns = |line: &Value| {
        let warning = line["warning"].as_str().unwrap_or_default();
        warning.contains("once a route enforces, they get 404 no-route")
    };
    proxy.logged("the warning", warns).await;
    proxy.forward(put("/invoices/7")).await;
    assert_eq!(upstream.count(), 1);
    let line = proxy.log_of("message", "would have been refused").await;
    assert_eq!(line["outcome"], "no-route", "{line}");
    assert_eq!(counted(&proxy, "observed-no-route").await, 1);
    assert_eq!(counted(&proxy, "no-route").await, 0);
    let (upstream, proxy) = observing(route, "unmatched: refuse").await;
    proxy.refuse(put("/invoices/7"), 404, "no-route").await;
    assert_eq!(upstream.count(), 0);
    // One route that enforces is enough.
    let enforced = "{ path: '/a/{id}', resource: 'a:{id}' }";
    let routes = format!("routes: [{{ {route}, mode: observe }}, {enforced}]");
    let (upstream, proxy) = fenced(&routes).await;
    proxy.refuse(put("/invoices/7"), 404, "no-route").await;
    assert_eq!(upstream.count(), 0);
}

/// Clients claim already before routes enforce, and go on when one is set back to observe. The 204 is
/// no promise then: former holders still pass.
#[tokio::test]
async fn claims_are_not_refused_where_routes_observe() {
    let route = "path: '/orders/{id}', resource: 'order:{id}'";
    let (upstream, proxy) = observing(route, "").await;
    for (claim, outcome) in [
        (claim("PUT /orders/7").token(42), "claimed"),
        (by_key("order:7").token(43), "claimed"),
        (claim("PUT /orders/7").token(41), "observed-stale-token"),
        (by_key("order:7").token("odd"), "observed-malformed-token"),
        (claim("PUT /orders/7"), "observed-token-required"),
        (claim("PUT /elsewhere").token(42), "observed-no-route"),
    ] {
        let before = claims(&proxy, outcome).await;
        let answer = proxy.send(claim).await;
        let told = answer.head.get("x-fencing-outcome");
        assert_eq!((answer.status(), told), (204, Some("claimed")), "{outcome}");
        assert_eq!(claims(&proxy, outcome).await, before + 1, "{outcome}");
    }
    assert_eq!(proxy.token("order:7").await, Some(43));
    let refused = proxy.log_of("message", "would have been refused").await;
    assert_eq!(refused["route"], "claim", "{refused}");
    let other = by_key("other:7").token(42);
    proxy.refuse(other, 400, "ambiguous-request").await;
    assert_eq!(upstream.count(), 0);
}

async fn claims(proxy: &Proxy, outcome: &str) -> u64 {
    let of = [("route", "claim"), ("outcome", outcome)];
    proxy.count(REQUESTS, &of).await
}

/// Two routes may have one key. A 204 for it is a promise as soon as one of them enforces.
#[tokio::test]
async fn a_claim_is_judged_if_any_route_enforces_its_key() {
    let routes = "barrier: { wait: 300ms }
routes:
  - { path: '/orders/{id}', resource: 'order:{id}', mode: observe }
  - { path: '/bills/{id}', resource: 'order:{id}' }";
    let (upstream, proxy) = fenced(routes).await;
    let (at_work, gate) = proxy.held(&upstream, put("/bills/7").token(41)).await;
    for claim in [claim("PUT /orders/7"), by_key("order:7")] {
        let waits = claim.token(42);
        proxy.refuse(waits, 503, "older-in-flight").await;
    }
    gate.open();
    forwarded(at_work).await;
    let claimed = proxy.send(claim("PUT /orders/7").token(42)).await;
    assert_eq!(claimed.status(), 204);
    proxy.stale(put("/bills/7").token(41)).await;
    proxy.stale(claim("PUT /orders/7").token(41)).await;
    proxy.stale(by_key("order:7").token(41)).await;
}

#[tokio::test]
async fn a_body_that_stalls_before_its_key_is_counted_and_logged() {
    let (upstream, proxy) = observing(
        "path: /orders, resource: 'order:{json.id}'",
        "body: { progress_timeout: 500ms }",
    )
    .await;
    let request = post("/orders")
        .token(1)
        .header("Content-Type", "application/json")
        .header("Content-Length", "1000");
    let mut stalled = proxy.begin(&request, b"{\"id\":").await;
    assert_eq!(stalled.finish().await.status(), 408);
    let route = [("route", "/orders")];
    proxy
        .until_metric(REQUESTS, &route, |count| count > 0.5)
        .await;
    let line = proxy.log_of("message", "refused").await;
    assert_eq!(line["route"], "/orders");
    assert_eq!(upstream.count(), 0);
}
