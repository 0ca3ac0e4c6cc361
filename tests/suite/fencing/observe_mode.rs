//! Observed routes: each request counts once, by the last thing that became of it.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Config, Proxy, Step, Store, Upstream, fenced, joined, post, put};

const REQUESTS: &str = "fencepost_requests_total";

async fn observing(route: &str, more: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let routes = format!("routes: [{{ {route}, mode: observe }}]");
    let config = Config::new(&upstream, &Store::sqlite()).with(&routes);
    let proxy = Proxy::start(&config.with(more)).await;
    (upstream, proxy)
}

/// How many requests ended in each of these ways.
async fn counted<const N: usize>(proxy: &Proxy, outcomes: [&str; N]) -> [String; N] {
    let metrics = proxy.metrics().await;
    outcomes.map(|outcome| metrics.sum(REQUESTS, &[("outcome", outcome)]).to_string())
}

#[tokio::test]
async fn an_exchange_that_fails_is_not_counted_as_forwarded() {
    let (upstream, proxy) = observing("path: '/orders/{id}', resource: 'order:{id}'", "{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy
        .until_metric(REQUESTS, &[("outcome", "advanced")], |count| count > 0.5)
        .await;
    for token in [6, 4] {
        upstream.next([Step::Reset]);
        let answer = proxy.send(put("/orders/7").token(token)).await;
        answer.assert_problem(502, "outcome-unknown");
    }
    let refused = proxy.log_of("message", "would have been refused");
    assert_eq!(refused.await["token"], "4");
    // A check beside an exchange ends behind it.
    proxy.forward(put("/orders/7").token(6)).await;
    proxy
        .until_metric(REQUESTS, &[("outcome", "current")], |count| count > 0.5)
        .await;
    let outcomes = [
        "advanced",
        "current",
        "outcome-unknown",
        "observed-stale-token",
    ];
    assert_eq!(counted(&proxy, outcomes).await, ["1", "1", "2", "0"]);
}

/// Nothing is refused while nothing is enforced, on any path.
#[tokio::test]
async fn an_unlisted_write_passes_until_a_route_enforces() {
    let route = "path: '/orders/{id}', resource: 'order:{id}'";
    let (upstream, proxy) = observing(route, "{}").await;
    let warns = |line: &Value| {
        let warning = line["warning"].as_str().unwrap_or_default();
        warning.contains("once a route enforces, they get 404 no-route")
    };
    proxy.logged("the warning", warns).await;
    proxy.forward(put("/invoices/7")).await;
    assert_eq!(upstream.count(), 1);
    let line = proxy.log_of("message", "would have been refused").await;
    assert_eq!(line["outcome"], "no-route", "{line}");
    assert_eq!(
        counted(&proxy, ["observed-no-route", "no-route"]).await,
        ["1", "0"]
    );
    let (upstream, proxy) = observing(route, "unmatched: refuse").await;
    proxy.refuse(put("/invoices/7"), 404, "no-route").await;
    assert_eq!(upstream.count(), 0);
    // One route that enforces is enough.
    let enforced = "{ path: '/a/{id}', resource: 'a:{id}' }";
    let routes = format!("routes: [{{ {route}, mode: observe }}, {enforced}]");
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite()).with(&routes)).await;
    proxy.refuse(put("/invoices/7"), 404, "no-route").await;
    assert_eq!(upstream.count(), 0);
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
    proxy
        .until_metric(REQUESTS, &[("route", "/orders")], |count| count > 0.5)
        .await;
    proxy
        .logged("the refusal", |line| {
            line["message"] == "refused" && line["route"] == "/orders"
        })
        .await;
    assert_eq!(upstream.count(), 0);
}

/// Many clients ask again at once. A claim that is refused under overload waits for its answer like
/// any other request.
#[tokio::test]
async fn a_claim_that_finds_no_place_is_not_answered_at_once() {
    let (upstream, proxy) = fenced("limits: { in_flight: 1 }").await;
    let (holder, gate) = proxy.held(&upstream, put("/orders/1").token(1)).await;
    let claim = post("/.well-known/fencing/claim")
        .token(2)
        .header("X-Fencing-Resource", "order:2");
    let began = std::time::Instant::now();
    proxy.refuse(claim, 503, "overloaded").await;
    // Half of the pause: the clocks of two processes are no measure of it.
    assert!(began.elapsed() >= Duration::from_millis(50));
    gate.open();
    joined(holder).await.assert_forwarded();
}
