//! Which requests need a token: by their method, and by the mode of their route.

use super::*;
use crate::support::steps::REQUESTS;

#[tokio::test]
async fn every_unsafe_method_is_fenced() {
    let more = ["PROPPATCH", "MKCOL", "LOCK", "FROB"];
    let routes = format!(
        "routes:
         - {{ path: '/orders/{{id}}', resource: 'order:{{id}}' }}
         - {{ path: '/more/{{id}}', resource: 'more:{{id}}', methods: {more:?} }}"
    );
    let (upstream, proxy) = fenced(&routes).await;
    let usual = ["PUT", "POST", "PATCH", "DELETE"].map(|method| (method, "/orders/7"));
    for (method, path) in usual
        .into_iter()
        .chain(more.map(|method| (method, "/more/7")))
    {
        let request = request(method, path);
        proxy.refuse(request.clone(), 428, "token-required").await;
        proxy.forward(request.token(1)).await;
    }
    for method in more.into_iter().chain(["get", "Head", "propfind"]) {
        let unlisted = request(method, "/orders/7");
        proxy.refuse(unlisted, 405, "method-not-allowed").await;
    }
    assert_eq!(upstream.count(), 8);
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
    assert_eq!(upstream.count(), 16);
}

#[tokio::test]
async fn safe_methods_pass_unfenced_unless_they_carry_a_token() {
    let (upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.forward(get("/orders/7")).await;
    proxy.stale(get("/orders/7").token(4)).await;
    proxy.forward(get("/orders/7").token(6)).await;
    proxy.stale(put("/orders/7").token(5)).await;
    let head = proxy.send(request("HEAD", "/orders/7").token(4)).await;
    assert_eq!((head.status(), head.outcome()), (412, Some("stale-token")));
    assert_eq!(upstream.count(), 3);
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
