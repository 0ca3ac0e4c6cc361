//! Limits: each is there, is counted by its series, and releases again.

mod bodies;
mod connections;
mod shares;
mod stalls;

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::MODES;
use crate::support::{
    Config, Gate, Proxy, Request, Step, Store, Upstream, all_forwarded, fenced, forwarded, get,
    post, put, soon,
};

const PLACES: usize = 8;
const CLIENTS: usize = 200;

/// All ways in: every client of a resource of its own, so that nobody waits at a barrier.
fn any_way(number: usize) -> Request {
    match number % 5 {
        0 => post("/open/x").body("a body"),
        1 => get(&format!("/unmatched/{number}")),
        2 => put(&format!("/seen/{number}")).token(1).body("a body"),
        3 => get(&format!("/orders/{number}")),
        _ => put(&format!("/orders/{number}")).token(1).body("a body"),
    }
}

#[tokio::test]
async fn more_clients_than_places_are_refused_at_once_and_the_admitted_are_served() {
    let limits = format!("limits: {{ in_flight: {PLACES} }}{MODES}");
    let (upstream, proxy) = fenced(&limits).await;
    let gate = Gate::shut();
    let script = gate.clone();
    upstream.otherwise(move |_| vec![Step::Wait(script.clone()), Step::ok()]);
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (request, to) = (any_way(number), proxy.data());
        clients.spawn(async move { request.send(to).await });
    }
    // While the gate is shut nobody who was admitted gets an answer: these are all refusals.
    for _ in 0..CLIENTS - PLACES {
        let answer = soon("a refusal", clients.join_next()).await;
        let answer = answer.expect("one is left").expect("no panic");
        let problem = answer.assert_problem(503, "overloaded");
        assert_eq!(problem["retry"], "same-token");
        assert_eq!(answer.retry_after(), Some(1));
    }
    upstream.reached(PLACES).await;
    assert_eq!(upstream.count(), PLACES, "as many as there are places");
    gate.open();
    while let Some(answer) = soon("the admitted", clients.join_next()).await {
        answer.expect("no panic").assert_forwarded();
    }
    assert_eq!(proxy.reached("in-flight").await, 192);
    let overloaded = [("outcome", "overloaded")];
    assert_eq!(
        proxy.count("fencepost_requests_total", &overloaded).await,
        192
    );
    // A line for each would cost more than the refusal: the first of each second are said.
    proxy.log_of("outcome", "overloaded").await;
    let lines = proxy.logs().into_iter();
    let said = lines.filter(|line| line["outcome"] == "overloaded").count();
    let most = usize::try_from(began.elapsed().as_secs()).expect("few") * 10 + 20;
    assert!((1..=most).contains(&said), "{said} lines");
    // Each way gives its place back: one that kept it would have taken all by the end.
    proxy.until_forwarded(any_way(3)).await;
    for number in 0..5 * (PLACES + 1) {
        proxy.forward(any_way(number)).await;
    }
}

/// A claim waits at the barrier like a request, so it counts like one.
#[tokio::test]
async fn a_claim_takes_a_place_too() {
    let (upstream, proxy) = fenced("limits: { in_flight: 1 }").await;
    let (holder, gate) = proxy.held(&upstream, put("/orders/1").token(1)).await;
    let claim = post("/.well-known/fencing/claim")
        .token(2)
        .header("X-Fencing-Resource", "order:2");
    let began = Instant::now();
    proxy.refuse(claim.clone(), 503, "overloaded").await;
    // Many clients ask again at once, so the answer waits. Half of the pause: the clocks of two
    // processes are no measure of it.
    assert!(began.elapsed() >= Duration::from_millis(50));
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

/// Nothing bounds their number, so an operator watches it.
#[tokio::test]
async fn new_resources_are_counted_once() {
    let (_upstream, proxy) = fenced("{}").await;
    for (path, token) in [("/orders/7", 1), ("/orders/8", 1), ("/orders/7", 2)] {
        proxy.forward(put(path).token(token)).await;
    }
    let made = proxy.count("fencepost_new_resources_total", &[]).await;
    assert_eq!(made, 2);
}

/// The library panics beyond 24,576 lines, and makes room for as many with each.
#[tokio::test]
async fn more_header_lines_than_the_library_can_hold_are_not_configured() {
    let upstream = Upstream::start().await;
    for count in ["10001", "30000", "4294967295"] {
        let limits = format!("limits: {{ header_bytes: 1MiB, header_count: {count} }}");
        let config = Config::new(&upstream, &Store::sqlite()).with(&limits);
        Proxy::refused_for(&config, &["limits.header_count", "10000 at most"]).await;
    }
}

/// With a target of this length.
fn target(length: usize) -> Request {
    put(&format!("/orders/7?{}", "x".repeat(length - 10))).token(1)
}

/// With so many lines. Host, token and length are three.
fn lines(count: usize) -> Request {
    (3..count).fold(put("/orders/7").token(1), |put, _| put.header("X", "y"))
}

/// With a head of so many bytes.
fn bytes(length: usize) -> Request {
    let bare = put("/orders/7").token(1).header("X", "");
    let pad = length - bare.head_bytes().len();
    put("/orders/7").token(1).header("X", "x".repeat(pad))
}

/// A limit, the request that has so much of it, how much may be, and its label.
type Limit = (&'static str, fn(usize) -> Request, usize, &'static str);

/// Beyond the limits by default: `tests/edge/limits.toml`.
#[tokio::test]
async fn limits_reach_as_far_as_they_say() {
    let many = "header_bytes: 1MiB, header_count: 10000";
    let cases: [Limit; 6] = [
        ("target_bytes: 100", target, 100, "target-bytes"),
        ("target_bytes: 60KiB", target, 60 << 10, "target-bytes"),
        ("header_count: 5", lines, 5, "header-count"),
        (many, lines, 10_000, "header-count"),
        ("header_bytes: 1KiB", bytes, 1 << 10, "header-bytes"),
        ("header_bytes: 1MiB", bytes, 1 << 20, "header-bytes"),
    ];
    for (limits, with, most, limit) in cases {
        let (upstream, proxy) = fenced(&format!("limits: {{ {limits} }}")).await;
        proxy.forward(with(most)).await;
        let (status, kind) = match limit {
            "target-bytes" => (414, "target-too-long"),
            _ => (431, "head-too-large"),
        };
        proxy.refuse(with(most + 1), status, kind).await;
        assert_eq!(upstream.count(), 1, "{limits}");
        assert_eq!(proxy.reached(limit).await, 1, "{limits}");
    }
}
