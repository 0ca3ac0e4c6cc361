//! When the store is away: what cannot be decided is not forwarded, what is decided goes on, and
//! the process lives.

use rustix::process::Signal;
use serde_json::Value;

use crate::http::discretion;
use crate::operations::commands::marks;
use crate::store::failover::switches::{Load, arrived};
use crate::support::postgres::Cluster;
use crate::support::sql::{sql, until};
use crate::support::store::has_postgres;
use crate::support::{Config, Proxy, Store, Upstream, get, or_return, put};

/// A server of the test's own, and a proxy on it.
async fn on_own_cluster(more: &str) -> Option<(Cluster, Upstream, Proxy, Config)> {
    has_postgres().then_some(())?;
    let cluster = Cluster::start();
    let store = Store::on(&cluster).await;
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with(more);
    let proxy = Proxy::start(&config).await;
    Some((cluster, upstream, proxy, config))
}

/// A write of an operator may be in doubt. A read is not.
async fn operators_hear_what_is_in_doubt(proxy: &Proxy) {
    for (command, in_doubt) in [
        ("get order:7", false),
        ("list", false),
        ("prune --unchanged-for 720h --reason t --dry-run", false),
        ("advance order:7 6", true),
        ("override order:7 1 --reason t", true),
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let (done, said) = marks(proxy, &arguments).await;
        assert!(!done && said.contains("store-unavailable"), "{said}");
        let told = said.contains("The write may still take effect");
        assert_eq!(told, in_doubt, "{command}: {said}");
        assert!(in_doubt || !said.contains("take effect"), "{said}");
    }
}

#[tokio::test]
async fn an_outage_refuses_what_it_cannot_decide_and_ends_by_itself() {
    let (cluster, upstream, proxy, _) = or_return!(
        on_own_cluster("{ store: { lease: 8s, timeout: 1s }, barrier: { settle: 500ms } }").await
    );
    proxy.until_forwarded(put("/orders/7").token(5)).await;
    cluster.stop();

    // An open epoch goes on until the lease ends; what is known to be stale is known without a
    // store.
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.stale(put("/orders/7").token(4)).await;
    for request in [put("/orders/7").token(6), put("/orders/8").token(1)] {
        let answer = proxy.send(request).await;
        let problem = answer.assert_problem(503, "store-unavailable");
        assert_eq!(problem["retry"], "same-token");
        assert!(answer.retry_after().is_some());
        discretion::assert_discreet(&answer, &["refused", "closed"]);
    }
    proxy.forward(get("/orders/7")).await;
    assert_eq!(upstream.count(), 3, "5, 5 and the read");

    // The probes tell, and do not have the sidecar restarted for it.
    assert_eq!(proxy.ask("/livez").await.status(), 200);
    proxy.until_none("fencepost_store_up").await;
    let ready = proxy.ask("/readyz").await;
    assert_eq!(ready.status(), 200);
    assert!(ready.text().contains("store"), "{}", ready.text());
    operators_hear_what_is_in_doubt(&proxy).await;
    assert!(proxy.sum("fencepost_store_errors_total", &[]).await > 0.0);

    // When the lease has ended, even the open epoch is refused.
    proxy.until_status(503, put("/orders/7").token(5)).await;
    let seen = upstream.tokens("order:7");
    assert!(seen.iter().all(|token| *token == 5), "{seen:?}");

    // The log says so at once, and again while it lasts, with how long and how often.
    let about = |says: &'static str| {
        let begins = move |text: &str| text.starts_with(says);
        move |line: &Value| line["message"].as_str().is_some_and(begins)
    };
    let unrenewed = about("the lease could not be renewed");
    let later = |line: &Value| unrenewed(line) && line["down_for_seconds"] != 0;
    let line = proxy.logged("the outage", later).await;
    assert!(line["left_out"].as_u64() > Some(1), "{line}");
    let lines = proxy.logs();
    let first = lines.iter().find(|line| unrenewed(line));
    assert_eq!(first.expect("a line")["down_for_seconds"], 0, "{lines:#?}");

    cluster.start_with(&[]);
    proxy.until_forwarded(put("/orders/7").token(6)).await;
    proxy.stale(put("/orders/7").token(5)).await;
    proxy.until_some("fencepost_store_up").await;
    let answers = about("the store answers again");
    let over = proxy.logged("its end", answers).await;
    let lasted = |line: &Value| line["down_for_seconds"].as_u64();
    assert!(lasted(&over) >= lasted(&line), "{over}");
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_store_that_hangs_is_as_good_as_down() {
    let (cluster, upstream, proxy, _) = or_return!(
        on_own_cluster("{ store: { lease: 20s, timeout: 500ms }, barrier: { settle: 500ms } }")
            .await
    );
    proxy.until_forwarded(put("/orders/7").token(5)).await;
    cluster.freeze();
    for _ in 0..2 {
        let request = put("/orders/7").token(6);
        proxy.refuse(request, 503, "store-unavailable").await;
    }
    assert_eq!(proxy.ask("/livez").await.status(), 200);
    cluster.thaw();
    proxy.until_forwarded(put("/orders/7").token(7)).await;
    // The answer to 6 was lost, not 6 itself, perhaps; either way it is older now.
    proxy.stale(put("/orders/7").token(6)).await;
    assert_eq!(upstream.tokens("order:7"), [5, 7]);
}

#[tokio::test]
async fn observe_forwards_without_a_store_and_readiness_can_follow_it() {
    let more = "{ store: { timeout: 500ms }, admin: { ready_follows_store: true }, routes: [\
        { path: '/orders/{id}', resource: 'order:{id}', mode: observe }] }";
    let (cluster, upstream, proxy, _) = or_return!(on_own_cluster(more).await);
    proxy.until_ready_is(200).await;
    proxy.forward(put("/orders/7").token(5)).await;
    cluster.stop();
    for token in [6, 7, 4] {
        proxy.forward(put("/orders/7").token(token)).await;
    }
    assert_eq!(upstream.count(), 4);
    proxy.until_ready_is(503).await;
    assert_eq!(proxy.ask("/livez").await.status(), 200);
    cluster.start_with(&[]);
    proxy.until_ready_is(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_postgres_under_load_loses_no_accepted_token() {
    let (cluster, upstream, proxy, config) = or_return!(
        on_own_cluster("{ store: { timeout: 1s }, barrier: { wait: 1s, settle: 200ms } }").await
    );
    let load = Load::start(&[&proxy], 0);
    for round in 1..=4 {
        upstream.reached(round * 200).await;
        tokio::task::block_in_place(|| {
            cluster.kill9();
            cluster.start_with(&[]);
        });
    }
    upstream.reached(upstream.count() + 50).await;
    cluster.kill9();
    load.end().await;
    cluster.start_with(&[]);
    // Reads the database, not the memory of the proxy under load.
    let witness = Proxy::start(&config.with("store: { timeout: 5s }")).await;
    for (resource, newest) in arrived(&upstream) {
        let mark = witness.token(&resource).await;
        assert!(
            mark >= Some(newest),
            "{resource}: mark {mark:?}, {newest} has arrived"
        );
    }
    let metrics = proxy.metrics().await;
    assert!(metrics.sum("fencepost_mark_regressions_total", &[]) == 0.0);
    upstream.assert_no_overtaking();
}

/// A start that waits for a lock in the store hears SIGTERM.
#[tokio::test]
async fn a_stop_ends_a_start_that_waits_for_the_store() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store);
    let (status, output) = Proxy::run_with(&config, &["migrate"]).await;
    assert!(status.success(), "{output}");
    let mut shell = store.direct().await;
    sql(&mut shell, "BEGIN; LOCK TABLE fencepost_migrations").await;
    let mut starting = Proxy::starting(&config);
    let mut watcher = store.direct().await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND application_name LIKE 'fencepost%' AND wait_event_type = 'Lock'";
    until(&mut watcher, "it waits for the lock", waits).await;
    assert!(starting.process.ended().is_none());
    starting.process.signal(Signal::TERM);
    assert!(starting.process.exit().await.success());
}
