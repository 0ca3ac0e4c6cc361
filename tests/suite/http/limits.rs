//! Limits: each is there, is counted by its series, and releases again.

mod bodies;
mod connections;
mod growth;
mod heads;
mod shares;
mod stalls;

use crate::support::{all_forwarded, fenced, forwarded, get, post, put};

const EVERY_WAY: &str = "
    limits: { in_flight: 1 }
    routes:
      - { path: '/orders/{id}', resource: 'order:{id}' }
      - { path: '/seen/{id}', resource: 'seen:{id}', mode: observe }
      - { path: '/open/{id}', mode: bypass }";

/// Every forwarded request takes a permit, judged or not; those over the limit are refused at once.
#[tokio::test]
async fn requests_in_flight_are_bounded_in_every_mode() {
    let (upstream, proxy) = fenced(EVERY_WAY).await;
    let ways = [
        put("/orders/1").token(1),
        put("/seen/1").token(1),
        post("/open/1"),
        get("/elsewhere"),
        get("/orders/1"),
    ];
    for held in &ways {
        // The check beside an observed request may hold its place for a moment longer.
        proxy.until_forwarded(get("/elsewhere")).await;
        let gate = upstream.hold_next();
        let (before, refused) = (upstream.count(), proxy.reached("in-flight").await);
        let holder = proxy.start_request(held.clone());
        upstream.reached(before + 1).await;
        for over in &ways {
            let answer = proxy.send(over.clone()).await;
            let problem = answer.assert_problem(503, "overloaded");
            assert_eq!(problem["retry"], "same-token");
            assert_eq!(answer.retry_after(), Some(1));
        }
        assert_eq!(upstream.count(), before + 1, "nothing of it was forwarded");
        assert_eq!(proxy.reached("in-flight").await, refused + 5);
        gate.open();
        forwarded(holder).await;
    }
    let overloaded = [("outcome", "overloaded")];
    let counted = proxy.count("fencepost_requests_total", &overloaded).await;
    assert_eq!(counted, proxy.reached("in-flight").await);
}

/// A claim waits at the barrier like a request, so it counts like one.
#[tokio::test]
async fn a_claim_takes_a_place_too() {
    let (upstream, proxy) = fenced("limits: { in_flight: 1 }").await;
    let (holder, gate) = proxy.held(&upstream, put("/orders/1").token(1)).await;
    let claim = post("/.well-known/fencing/claim")
        .token(2)
        .header("X-Fencing-Resource", "order:2");
    proxy.refuse(claim.clone(), 503, "overloaded").await;
    gate.open();
    forwarded(holder).await;
    assert_eq!(proxy.send(claim).await.status(), 204);
}

/// The upstream still works on it, so the place is still taken.
#[tokio::test]
async fn a_place_is_held_until_the_upstream_is_done_though_the_client_has_left() {
    let (upstream, proxy) = fenced("limits: { in_flight: 1 }").await;
    let (leaves, gate) = proxy.begin_held(&upstream, put("/orders/1").token(1)).await;
    drop(leaves);
    // The connection of the one that left is gone once the proxy has noticed.
    proxy.until_none("fencepost_connections").await;
    proxy
        .refuse(put("/orders/2").token(1), 503, "overloaded")
        .await;
    gate.open();
    proxy.until_forwarded(put("/orders/2").token(1)).await;
}

#[tokio::test]
async fn the_queue_of_a_resource_is_counted_when_it_is_full() {
    let (upstream, proxy) = fenced("barrier: { wait: 25s, queue: 1 }").await;
    let (older, gate) = proxy.held(&upstream, put("/orders/7").token(1)).await;
    let waiter = proxy.start_request(put("/orders/7").token(2));
    proxy.waiting("order:7", 1).await;
    let answer = proxy.send(put("/orders/7").token(2)).await;
    answer.assert_problem(503, "overloaded");
    assert!(answer.retry_after().is_some());
    assert_eq!(proxy.reached("queue").await, 1);
    gate.open();
    all_forwarded([older, waiter]).await;
}
