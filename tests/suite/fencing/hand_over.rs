//! Several proxies in normal operation: work changes hands, notifications get lost, proxies stop
//! cleanly, namespaces share a database. None of it waits for `settle`, which is longer here than
//! any test: a wait for it fails the test.

use serde_json::json;

use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::Cluster;
use crate::support::relay::{Point, Statement};
use crate::support::store::NOT_SETTLED;
use crate::support::{
    Config, Pair, Proxy, Store, Upstream, all_forwarded, forwarded, joined, or_return, put,
};

/// Only a living proxy can let a newer token pass; statements may be held for as long as a test
/// needs.
const PATIENT: &str =
    "{ store: { timeout: 60s, lease: 200s }, barrier: { wait: 25s, settle: 300s } }";

#[tokio::test]
async fn a_hand_over_needs_news_and_no_publication() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    // Proxies whose next publication does not come keep their epochs open.
    let renewals = [way_of_a, &pair.way_of_b].map(|way| way.hold(Point::Before(Statement::Renew)));
    for renewal in &renewals {
        renewal.sprung().await;
    }
    for token in 1..=20 {
        // A has it open; B has to have it ceded.
        a.forward(put("/orders/7").token(2 * token)).await;
        b.forward(put("/orders/7").token(2 * token + 1)).await;
    }
    // That it was news shows when there is none: then B waits, however often it asks.
    way_of_a.lose_notifications(true);
    a.forward(put("/orders/7").token(50)).await;
    let waits = b.start_request(put("/orders/7").token(51));
    b.waiting("order:7", 1).await;
    way_of_a.until_lost(3).await;
    assert_eq!(upstream.last().token(), Some(50));
    way_of_a.lose_notifications(false);
    forwarded(waits).await;
    upstream.assert_no_overtaking();
}

/// An owner that hears nothing looks at the rows of what it uses, and publishes what it does not
/// use; a waiter that hears nothing looks, too.
#[tokio::test]
async fn lost_news_costs_some_seconds() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    for way in [way_of_a, &pair.way_of_b] {
        way.lose_notifications(true);
    }
    a.forward(put("/orders/6").token(41)).await;
    a.forward(put("/orders/7").token(41)).await;
    let idle = b.start_request(put("/orders/6").token(42));
    let used = b.start_request(put("/orders/7").token(42));
    b.waiting("order:7", 1).await;
    let looks = way_of_a.passed(Statement::Look);
    a.until_status(412, put("/orders/7").token(41)).await;
    assert!(way_of_a.passed(Statement::Look) > looks, "by a look");
    all_forwarded([idle, used]).await;
    assert!(way_of_a.lost() > 0);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn late_news_changes_nothing() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    let way_of_b = &pair.way_of_b;
    a.forward(put("/orders/7").token(1)).await;
    way_of_a.hold_notifications(true);
    way_of_b.hold_notifications(true);
    b.forward(put("/orders/7").token(2)).await;
    a.forward(put("/orders/7").token(2)).await;
    let (at_work, gate) = b.held(upstream, put("/orders/7").token(2)).await;
    // Now A and B hear of tokens that are long gone, and of epochs that were over.
    way_of_a.hold_notifications(false);
    way_of_b.hold_notifications(false);
    let newer = a.start_request(put("/orders/7").token(10));
    a.waiting("order:7", 1).await;
    assert!(!upstream.tokens("order:7").contains(&10), "10 waits");
    gate.open();
    all_forwarded([at_work, newer]).await;
    for proxy in [a, b] {
        proxy.forward(put("/orders/7").token(10)).await;
        proxy.stale(put("/orders/7").token(9)).await;
    }
    upstream.assert_no_overtaking();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_leaves_nothing_to_wait_for() {
    let mut pair = or_return!(Pair::start(PATIENT).await);
    let to = pair.a.data();
    let clients: Vec<_> = (0..8)
        .map(|client| {
            tokio::spawn(async move {
                let (path, mut token) = (format!("/orders/{client}"), 1_u64);
                while let Ok(answer) = put(&path).token(token).attempt(to).await {
                    answer.assert_forwarded();
                    token += 1;
                }
                token
            })
        })
        .collect();
    pair.upstream.reached(400).await;
    let broken = clients.iter().find(|client| client.is_finished());
    assert!(broken.is_none(), "before the stop: {broken:?}");
    pair.a.stop().await;
    let (open, store) = (pair.store.open_epochs("true"), &pair.store);
    assert_eq!(store.number(&open).await, 0);
    assert_eq!(store.number(NOT_SETTLED).await, 1, "B alone");
    for (client, token) in clients.into_iter().enumerate() {
        let token = joined(token).await;
        let path = format!("/orders/{client}");
        pair.b.forward(put(&path).token(token + 1)).await;
    }
    pair.upstream.assert_no_overtaking();
}

#[tokio::test]
async fn two_namespaces_in_one_database_never_touch() {
    let store = or_return!(Store::postgres().await);
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let brisk = "{ upstream: { undelivered: 500ms }, store: { lease: 5s }, \
        barrier: { wait: 25s, settle: 1s } }";
    let first = Config::new(&one, &store).with(brisk);
    // Another template for the same path: that is another namespace's own affair, too.
    let second = Config::new(&two, &store)
        .with(PATIENT)
        .with("store: { namespace: invoices }")
        .route("resource: 'order:{id|lower}'");
    let (mut a, b) = (Proxy::start(&first).await, Proxy::start(&first).await);
    let other = Proxy::start(&second).await;

    // Tokens, and work in flight.
    let (at_work, gate) = a.held(&one, put("/orders/7").token(41)).await;
    let newer = b.start_request(put("/orders/7").token(42));
    b.waiting("order:7", 1).await;
    for token in [5, 6] {
        other.forward(put("/orders/7").token(token)).await;
    }
    gate.open();
    all_forwarded([at_work, newer]).await;
    assert_eq!(b.token("order:7").await, Some(42));
    assert_eq!(other.token("order:7").await, Some(6));

    // An override, and its era.
    for (proxy, act) in [(&b, "advance"), (&other, "advance"), (&b, "override")] {
        let token = if act == "override" { "3" } else { "30" };
        let words = json!({ "token": token, "reason": "the locks were restored" });
        let target = format!("/v1/marks/order:8/{act}");
        let done = proxy.command(&target, &words).await;
        assert_eq!(done.status(), 200, "{}", done.text());
    }
    b.until_forwarded(put("/orders/8").token(4)).await;
    other.stale(put("/orders/8").token(29)).await;
    other.forward(put("/orders/8").token(30)).await;
    let eras = "SELECT sum(era)::bigint FROM namespaces WHERE namespace = ";
    assert_eq!(store.number(&format!("{eras}'orders'")).await, 1);
    assert_eq!(store.number(&format!("{eras}'invoices'")).await, 0);

    // A death that settles.
    let (at_work, mine) = other.held(&two, put("/orders/7").token(6)).await;
    let open = store.open_epochs("namespace = 'invoices' AND resource = 'order:7'");
    store.until(&open, 1).await;
    b.forward(put("/orders/9").token(1)).await;
    a.forward(put("/orders/7").token(43)).await;
    a.kill9();
    forwarded(b.start_request(put("/orders/7").token(44))).await;
    assert_eq!(store.number(&open).await, 1);
    mine.open();
    forwarded(at_work).await;
    other.forward(put("/orders/7").token(7)).await;

    // A restart finds the templates as they were left.
    drop((b, other));
    Proxy::start(&first).await;
    Proxy::start(&second).await;
    assert_eq!(two.tokens("order:7"), [5, 6, 6, 7]);
    one.assert_no_overtaking();
}

#[tokio::test]
async fn a_pooler_is_refused_at_the_start_with_the_reason() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let url = store.url();
    let (_, database) = url.rsplit_once('/').expect("a name");
    let ignores = "ignore_startup_parameters = options,extra_float_digits";
    for mode in ["transaction", "session"] {
        let settings = format!("{ignores}\npool_mode = {mode}");
        let pooler = or_return!(PgBouncer::start(Cluster::shared(), &settings).await);
        let config = Config::new(&upstream, &store)
            .with(&format!("store: {{ url: '{}' }}", pooler.url(database)));
        Proxy::refused_for(&config, &["PgBouncer"]).await;
    }
}
