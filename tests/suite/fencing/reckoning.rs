//! How a proxy recognizes the death of another one, and how long it waits afterwards.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use crate::support::bare::BareUpstream;
use crate::support::store::LIVING;
use crate::support::{
    Config, Pair, Proxy, Store, Upstream, eventually, forwarded, joined, or_return, put,
};

/// The time that inherited work of the resource has still to settle, as the proxy reports it.
async fn settles_in(proxy: &Proxy, resource: &str) -> Option<f64> {
    let mark = proxy.mark(resource).await?;
    let unknown = mark["unknown"].as_array()?;
    let inherited = unknown.iter().find(|one| one["inherited"] == true)?;
    inherited["settles_in_seconds"].as_f64()
}

/// The dead one had put a long `undelivered` on record and a short `settle`, and the watcher is
/// configured the other way round: the larger of each counts, one after the other, and a fifth is
/// added for clocks that are slewed apart.
#[tokio::test]
async fn the_larger_terms_are_waited_for_one_after_the_other_and_a_fifth_more() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with("barrier: { wait: 200ms }");
    let of_a = "{ upstream: { undelivered: 40s }, store: { lease: 2s }, barrier: { settle: 1s } }";
    let of_b = "{ upstream: { undelivered: 1s }, store: { lease: 30s }, barrier: { settle: 40s } }";
    let mut a = Proxy::start(&config.clone().with(of_a)).await;
    let b = Proxy::start(&config.with(of_b)).await;
    let (older, _gate) = a.begin_held(&upstream, put("/orders/7").token(41)).await;
    let newer = || put("/orders/7").token(42);
    b.refuse(newer(), 503, "older-in-flight").await;
    a.kill9();
    drop(older);
    // Of 96 s; without the fifth it would be 80 at most.
    let left = eventually("A is known to be dead", || settles_in(&b, "order:7")).await;
    assert!((81.0..=96.0).contains(&left), "{left}");
    let answer = b.send(newer()).await;
    answer.assert_problem(503, "older-in-flight");
    let after = answer.retry_after().expect("a known end");
    assert!((81..=96).contains(&after), "{after}");
}

/// Where one process has the file, the dead one is known to have ended, and its sockets with it:
/// `settle` alone is waited for. But a volume may be forced onto another machine while the old one
/// still runs. Then the file's lock says nothing.
#[tokio::test]
async fn alone_a_death_on_another_machine_is_waited_for_like_a_peers() {
    for (place, expected) in [("place", 0.0..=40.0), ("'another'", 81.0..=120.0)] {
        let (upstream, store) = (Upstream::start().await, Store::sqlite());
        let config = Config::new(&upstream, &store).with(
            "{ upstream: { undelivered: 40s }, store: { lease: 20s }, \
                barrier: { wait: 200ms, settle: 40s } }",
        );
        let _gate = Proxy::dies_holding(&config, &upstream, put("/orders/7").token(41)).await;
        let moved = format!("UPDATE instances SET place = {place} RETURNING 1");
        assert_eq!(store.number(&moved).await, 1);
        let second = Proxy::start(&config).await;
        let newer = put("/orders/7").token(42);
        second.refuse(newer, 503, "older-in-flight").await;
        let dead = || settles_in(&second, "order:7");
        let left = eventually("the first is known to be dead", dead).await;
        assert!(expected.contains(&left), "{place}: {left}");
    }
}

/// Each of B's reads is answered, but over one new connection after another: it may be a server
/// that is behind, where A's counter stands still though A renews.
#[tokio::test]
async fn a_counter_that_stands_still_over_many_connections_is_no_death() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with("store: { lease: 4s }");
    let a = Proxy::start(&config).await;
    let _b = Proxy::start(&config.with("store: { lease: 30s }")).await;
    a.pause().await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        // Rarely in the middle of a statement: the next one finds the connection gone, and makes
        // another.
        store
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = current_database() AND application_name LIKE 'fencepost%'",
            )
            .await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(store.number(LIVING).await, 2, "{:?}", began.elapsed());
    }
    store.until(LIVING, 1).await;
    a.resume();
}

/// Each part that the upstream takes starts the kernel's user timeout again. So a proxy that is cut
/// off from its store resets what it has under way before that time has passed once.
#[tokio::test]
async fn what_a_slow_path_still_holds_is_reset_in_time_to_settle() {
    const SETTLE: Duration = Duration::from_secs(4);
    let upstream = BareUpstream::narrow();
    let url = upstream.url();
    let more = format!(
        "{{ upstream: {{ url: '{url}', undelivered: 1s }}, store: {{ lease: 1s }}, \
            barrier: {{ wait: 28s, grace: 300s, settle: 4s }} }}"
    );
    let pair = or_return!(Pair::mortal_a(&more).await);
    let older = put("/orders/7").token(41).body(vec![b'x'; BODY]);
    let to = pair.a.data();
    tokio::spawn(async move { older.attempt(to).await.ok() });
    let taken = takes_slowly(&upstream).await;
    pair.way_of_a.refuse(true);
    pair.way_of_a.cut_all();
    let newer = pair.b.start_request(put("/orders/7").token(42));
    let answered = upstream.serve().await;
    let landed = Instant::now();
    assert_eq!(answered.get("x-fencing-token"), Some("42"));
    forwarded(newer).await;
    let (whole, last) = joined(taken).await;
    assert!(!whole, "it was reset in the middle");
    assert!(landed >= last + SETTLE, "{:?}", landed - last);
}

/// The proxy's kernel takes this much at once, and the upstream in eight seconds.
const BODY: usize = 100_000;

/// Takes what comes over the next connection, a little at a time, and so often that no user timeout
/// passes. Says whether that was the whole request, and when the last of it came.
async fn takes_slowly(upstream: &BareUpstream) -> JoinHandle<(bool, Instant)> {
    let mut stream = upstream.accept().await;
    tokio::spawn(async move {
        let (mut count, mut last) = (0, Instant::now());
        let mut piece = [0; 1200];
        while let Ok(read @ 1..) = stream.read(&mut piece).await {
            (count, last) = (count + read, Instant::now());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        (count > BODY, last)
    })
}
