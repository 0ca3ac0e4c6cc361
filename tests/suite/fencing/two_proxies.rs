//! Two proxies on one Postgres fence as one.

use std::time::{Duration, Instant};

use super::claim::claim;
use crate::support::postgres::Cluster;
use crate::support::store::has_postgres;
use crate::support::{
    Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, forwarded, joined, or_return,
    post, put, return_unless,
};

/// The set-up of a test; `None`, and a line that says so, without Postgres.
async fn pair(more: &str) -> Option<(Upstream, Proxy, Proxy)> {
    Some(two_on(&Store::postgres().await?, more, "{}").await)
}

/// As [`pair`], of which only the first is soon taken for dead.
async fn mortal_a(more: &str) -> Option<(Upstream, Proxy, Proxy)> {
    Some(two_on(&Store::postgres().await?, more, "store: { lease: 30s }").await)
}

async fn two_on(store: &Store, more: &str, of_b: &str) -> (Upstream, Proxy, Proxy) {
    let (upstream, config, a) = Proxy::with_config(store, more).await;
    let b = Proxy::start(&config.with(of_b)).await;
    (upstream, a, b)
}

#[tokio::test]
async fn a_newer_token_at_one_waits_for_the_older_request_of_the_other() {
    let store = or_return!(Store::postgres().await);
    let (upstream, a, b) = two_on(&store, "barrier: { wait: 25s }", "{}").await;
    let (older, gate) = a.held(&upstream, put("/orders/7").token(41)).await;
    let newer = b.start_request(put("/orders/7").token(42));
    b.waiting("order:7", 1).await;
    b.stale(put("/orders/7").token(41)).await;
    // A hears of it, and gives no more permits of 41.
    eventually("41 is stale at A too", || async {
        let patience = Duration::from_millis(200);
        upstream.on_token(41, [Step::ok()]);
        let again = a.send(put("/orders/7").token(41));
        let answer = tokio::time::timeout(patience, again).await.ok()?;
        (answer.status() == 412).then_some(())
    })
    .await;
    // By then A has ceded what it was asked for before this, if it was going to.
    a.forward(put("/orders/8").token(1)).await;
    b.forward(put("/orders/8").token(2)).await;
    let of_the_older = store.open_epochs("resource = 'order:7' AND token = 41");
    assert_eq!(store.number(&of_the_older).await, 1, "41 is in flight");
    assert!(!upstream.tokens("order:7").contains(&42), "42 waits");
    gate.open();
    all_forwarded([older, newer]).await;
    upstream.assert_no_overtaking();
}

/// 42 waits at A for 41, which is in progress there; at B the epoch of 42 alone must not let 42
/// through, nor grant a claim.
#[tokio::test]
async fn an_epoch_that_waits_does_not_hide_the_older_one_it_waits_for() {
    let (upstream, a, b) = or_return!(pair("barrier: { wait: 25s, grace: 60s }").await);
    // A claim that is alone at B drains A.
    let (older, gate) = a.held(&upstream, put("/orders/8").token(41)).await;
    let alone = b.start_request(claim("PUT /orders/8").token(42));
    b.waiting("order:8", 1).await;
    gate.open();
    assert_eq!(joined(alone).await.status(), 204);
    assert!(upstream.only().ended.is_some());
    forwarded(older).await;
    a.stale(put("/orders/8").token(41)).await;

    let (older, gate) = a.held(&upstream, put("/orders/7").token(41)).await;
    let newer = a.start_request(put("/orders/7").token(42));
    a.waiting("order:7", 1).await;
    let elsewhere = b.start_request(put("/orders/7").token(42));
    let claim = b.start_request(claim("PUT /orders/7").token(42));
    b.waiting("order:7", 2).await;
    assert_eq!(upstream.tokens("order:7"), [41], "42 waits at both");
    gate.open();
    assert_eq!(joined(claim).await.status(), 204);
    assert!(upstream.arrivals()[1].ended.is_some());
    all_forwarded([older, newer, elsewhere]).await;
    upstream.assert_no_overtaking();
}

const ONCE: &str = "routes: [{ path: '/orders/{id}', resource: 'order:{id}', reuse: once }]";
const UNSPENT: &str = "SELECT count(*) FROM marks WHERE spent_by IS NULL";
/// What was lost is soon in force again.
const SOON: &str = "upstream: { undelivered: 100ms }, store: { lease: 5s }, \
    barrier: { wait: 25s, settle: 400ms }";

#[tokio::test]
async fn under_reuse_once_a_token_passes_at_one_of_the_two() {
    let patient = "barrier: { wait: 25s, settle: 30s }, store: { lease: 60s }";
    let (upstream, a, b) = or_return!(pair(&format!("{{ {ONCE}, {patient} }}")).await);
    for token in 1..=10 {
        let racers =
            [&a, &b, &a, &b].map(|proxy| proxy.start_request(post("/orders/7").token(token)));
        let mut won = 0;
        for racer in racers {
            won += usize::from(joined(racer).await.status() == 200);
        }
        assert_eq!(won, 1, "token {token}");
    }
    assert_eq!(upstream.tokens("order:7"), (1..=10).collect::<Vec<u64>>());
}

/// A failover may lose a spending alone. Here somebody with a shell does.
#[tokio::test]
async fn under_reuse_once_a_token_whose_spending_was_lost_passes_no_second_time() {
    let store = or_return!(Store::postgres().await);
    let (upstream, a, b) = two_on(&store, &format!("{{ {ONCE}, {SOON} }}"), "{}").await;
    a.forward(post("/orders/7").token(41)).await;
    a.forward(post("/orders/8").token(41)).await;
    // B has seen that it is spent.
    b.stale(post("/orders/8").token(41)).await;
    store.execute("UPDATE marks SET spent_by = NULL").await;
    for (proxy, order) in [(&a, "/orders/7"), (&b, "/orders/8")] {
        // Refused until it is written back, and then because it is spent.
        eventually("41 is spent as before", || async {
            let answer = proxy.send(post(order).token(41)).await;
            match answer.status() {
                412 => Some(()),
                503 => None,
                other => panic!("{other}: {}", answer.text()),
            }
        })
        .await;
    }
    a.until_some("fencepost_mark_regressions_total").await;
    assert_eq!(store.number(UNSPENT).await, 0, "written back");
    assert_eq!(upstream.tokens("order:7"), [41]);
    assert_eq!(upstream.tokens("order:8"), [41]);
}

/// Nobody asks the proxy that has spent it. That another server answers is reason enough to look.
#[tokio::test]
async fn under_reuse_once_a_lost_spending_is_missed_by_the_proxy_that_made_it() {
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let store = Store::on(&cluster).await;
    let (upstream, a, b) = two_on(&store, &format!("{{ {ONCE}, {SOON} }}"), "{}").await;
    a.forward(post("/orders/7").token(41)).await;
    store.execute("UPDATE marks SET spent_by = NULL").await;
    cluster.stop();
    cluster.start_with(&[]);
    a.until_some("fencepost_mark_regressions_total").await;
    store.until(UNSPENT, 0).await;
    b.stale(post("/orders/7").token(41)).await;
    assert_eq!(upstream.tokens("order:7"), [41]);
}

/// Lease, `undelivered` and `settle` differ, so that a wait for some of them alone shows.
const SHORT: &str = "{ upstream: { undelivered: 500ms }, store: { lease: 2s }, \
    barrier: { wait: 28s, grace: 300s, settle: 6s } }";

#[tokio::test]
async fn a_killed_proxy_is_waited_for_as_long_as_its_work_may_take() {
    let (upstream, mut a, b) = or_return!(mortal_a(SHORT).await);
    // The upstream works on for a while after its caller has died.
    let gate = Gate::shut();
    let work = Step::Work(Duration::from_secs(3));
    upstream.on_token(41, [Step::Wait(gate.clone()), work, Step::ok()]);
    let older = a.begin(&put("/orders/7").token(41), b"").await;
    upstream.reached(1).await;
    let newer = b.start_request(put("/orders/7").token(42));
    b.waiting("order:7", 1).await;
    a.kill9();
    let killed = Instant::now();
    gate.open();
    drop(older);
    b.forward(put("/orders/8").token(1)).await;
    forwarded(newer).await;
    let landed = upstream.last();
    assert_eq!(landed.token(), Some(42));
    let waited = landed.began - killed;
    // `lease`, `undelivered` and `settle` together; its last renewal was at most a third of a lease
    // before the kill.
    assert!(waited >= Duration::from_millis(7500), "{waited:?}");
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_stopped_proxy_is_waited_for_and_forwards_nothing_when_it_continues() {
    let more = "{ upstream: { undelivered: 500ms }, store: { lease: 2s }, \
        barrier: { wait: 28s, grace: 300s, settle: 4s }, body: { buffer: 1KiB } }";
    let (upstream, a, b) = or_return!(mortal_a(more).await);
    // A is in the middle of streaming a body of 41 up when it is stopped.
    let upload = put("/orders/7").token(41).header("Content-Length", "40000");
    let mut older = a.begin(&upload, "a".repeat(20_000).as_bytes()).await;
    upstream.received(20_000).await;
    a.pause().await;
    let stopped = Instant::now();
    // The rest of the body, and more requests of the old holder, lie ready for when it wakes.
    older.push("b".repeat(20_000).as_bytes()).await;
    let zombies: Vec<_> = (0..4)
        .map(|_| a.start_request(put("/orders/7").token(41)))
        .collect();

    b.forward(put("/orders/7").token(42)).await;
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    let waited = upstream.last().began - stopped;
    assert!(waited >= Duration::from_secs(4), "`settle`: {waited:?}");

    a.resume();
    for zombie in zombies {
        let answer = joined(zombie).await;
        assert!([412, 503].contains(&answer.status()), "{}", answer.text());
    }
    upstream
        .until("A lets go of its exchange", |all| all[0].left)
        .await;
    // A, continued, forwards nothing.
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    let cut = &upstream.arrivals()[0];
    assert!(!cut.whole && cut.body.len() == 20_000, "not a byte more");
    // It rejoins, and serves again.
    a.until_forwarded(put("/orders/7").token(43)).await;
    b.stale(put("/orders/7").token(42)).await;
}
