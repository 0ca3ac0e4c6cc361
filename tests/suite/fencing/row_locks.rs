//! Rows that somebody else holds locked. A decision about a mark is made again under the row's
//! lock. A locked instance row lets the lease lapse, and nothing more is written under it
//! (guarantees G2 and G3). A session of the test holds the rows, so the test decides who waits for
//! whom.

use std::time::Duration;

use serde_json::json;
use sqlx::PgConnection;

use crate::support::sql::{shell, sql};
use crate::support::{
    Gate, Proxy, Step, Store, Upstream, all_forwarded, forwarded, joined, or_return, put,
};

/// Two proxies that have all the patience these tests need, and a session that holds the row of
/// `order:7`, whose mark is 40.
async fn held() -> Option<(Store, Upstream, Proxy, Proxy, PgConnection)> {
    let store = Store::postgres().await?;
    let more = "{ barrier: { wait: 25s }, store: { timeout: 50s, lease: 60s } }";
    let (upstream, config, a) = Proxy::with_config(&store, more).await;
    let b = Proxy::start(&config).await;
    // Without a request, so that no epoch of 40 is open anywhere.
    let mark = json!({ "token": "40", "reason": "a test" });
    let marked = a.command("/v1/marks/order%3A7/advance", &mark).await;
    assert_eq!(marked.status(), 200, "{}", marked.text());
    let holder = hold(&store.url()).await;
    Some((store, upstream, a, b, holder))
}

/// A session that holds the row, once it has it.
async fn hold(url: &str) -> PgConnection {
    let mut holder = shell(url).await;
    let lock = "BEGIN; SELECT * FROM marks WHERE resource = 'order:7' FOR UPDATE";
    sql(&mut holder, lock).await;
    holder
}

/// Waits until this many statements wait for a row's lock.
async fn queued(store: &Store, count: i64) {
    // Of the locks, a row's: who notifies waits for one of the whole cluster.
    const WAIT: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE wait_event IN ('tuple', 'transactionid') AND datname = current_database()";
    store.until(WAIT, count).await;
}

async fn let_go(mut holder: PgConnection) {
    sql(&mut holder, "COMMIT").await;
}

/// The statement of 42 began, and took its snapshot, before 41 had an epoch.
#[tokio::test]
async fn an_epoch_that_was_opened_while_a_newer_token_waited_for_the_row_is_seen() {
    let (store, upstream, a, b, holder) = or_return!(held().await);
    let gate = Gate::shut();
    upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let older = a.start_request(put("/orders/7").token(41));
    queued(&store, 1).await;
    // Between the two, so that 41 is in progress before 42 is on record: else 41 might be refused,
    // and rightly.
    let url = store.url();
    let between = tokio::spawn(async move { hold(&url).await });
    queued(&store, 2).await;
    let newer = b.start_request(put("/orders/7").token(42));
    queued(&store, 3).await;
    let_go(holder).await;
    upstream.reached(1).await;
    let_go(joined(between).await).await;
    b.waiting("order:7", 1).await;
    assert_eq!(upstream.tokens("order:7"), [41], "42 waits");
    gate.open();
    all_forwarded([older, newer]).await;
    upstream.assert_no_overtaking();
}

/// Both were sent while the mark was 40; the newer one gets the row first.
#[tokio::test]
async fn of_two_that_wait_for_the_row_the_older_is_refused_behind_the_newer() {
    let (store, upstream, a, b, holder) = or_return!(held().await);
    let newer = b.start_request(put("/orders/7").token(42));
    queued(&store, 1).await;
    let older = a.start_request(put("/orders/7").token(41));
    queued(&store, 2).await;
    let_go(holder).await;
    forwarded(newer).await;
    let problem = joined(older).await.assert_problem(412, "stale-token");
    assert_eq!(problem["mark"], "42");
    assert_eq!(upstream.tokens("order:7"), [42]);
    a.until_token("order:7", 42).await;
    b.until_token("order:7", 42).await;
    upstream.assert_no_overtaking();
}

/// A session holds the row of `order:7`: requests for others pass meanwhile, and its own when the
/// session has let go.
async fn only_its_own_requests_wait(
    store: &Store,
    upstream: &Upstream,
    proxy: &Proxy,
    holder: PgConnection,
) {
    let locked = proxy.start_request(put("/orders/7").token(41));
    queued(store, 1).await;
    let mut waits = Vec::new();
    for order in 10..30 {
        let began = std::time::Instant::now();
        let other = put(&format!("/orders/{order}"));
        proxy.forward(other.token(1)).await;
        waits.push(began.elapsed());
    }
    // That which came behind the locked batch waits for its end.
    let late = waits.iter().filter(|wait| **wait > Duration::from_secs(3));
    assert!(late.count() <= 1, "{waits:?}");
    assert!(!locked.is_finished());
    let_go(holder).await;
    joined(locked).await.assert_forwarded();
    upstream.assert_no_overtaking();
}

const PATIENT: &str = "{ barrier: { wait: 25s }, store: { timeout: 12s, lease: 60s } }";

/// Half of `store.timeout` once; from then on the locked row is left out.
#[tokio::test]
async fn a_locked_row_delays_other_resources_once() {
    let store = or_return!(Store::postgres().await);
    let (upstream, proxy) = Proxy::before(&store, PATIENT).await;
    proxy.forward(put("/orders/7").token(40)).await;
    let holder = hold(&store.url()).await;
    only_its_own_requests_wait(&store, &upstream, &proxy, holder).await;
}

/// It was inserted and not committed, so nobody sees it.
#[tokio::test]
async fn a_locked_row_that_is_new_stops_no_other_resource() {
    let store = or_return!(Store::postgres().await);
    let (upstream, proxy) = Proxy::before(&store, PATIENT).await;
    proxy.forward(put("/orders/1").token(1)).await;
    let mut holder = shell(&store.url()).await;
    let insert = "BEGIN; INSERT INTO marks (namespace, resource, token, era, changed_at) \
        SELECT namespace, 'order:7', 1, 0, now() FROM marks";
    sql(&mut holder, insert).await;
    only_its_own_requests_wait(&store, &upstream, &proxy, holder).await;
}

/// The proxy is cut off from its lease, and from nothing else, halfway through a body; `settle`,
/// after which the exchange would be reset anyhow, is far off.
#[tokio::test]
async fn not_a_byte_goes_upstream_under_a_lapsed_lease() {
    let store = or_return!(Store::postgres().await);
    let more = "{ store: { lease: 2s }, barrier: { settle: 300s }, body: { buffer: 1KiB } }";
    let (upstream, proxy) = Proxy::before(&store, more).await;
    let upload = put("/orders/7").token(41).header("Content-Length", "40000");
    let mut held = proxy.begin(&upload, "a".repeat(20_000).as_bytes()).await;
    upstream.received(20_000).await;
    let mut holder = shell(&store.url()).await;
    sql(&mut holder, "BEGIN; SELECT * FROM instances FOR UPDATE").await;
    proxy
        .until_metric("fencepost_lease_remaining_seconds", &[], |left| left <= 0.0)
        .await;
    held.push("b".repeat(20_000).as_bytes()).await;
    upstream
        .until("the connection is reset", |all| all[0].left)
        .await;
    let cut = upstream.only();
    assert!(!cut.whole && cut.body.len() == 20_000, "not a byte more");
    held.finish().await.assert_problem(502, "outcome-unknown");
    let next = put("/orders/7").token(41);
    proxy.refuse(next, 503, "store-unavailable").await;
    let_go(holder).await;
    proxy.until_forwarded(put("/orders/7").token(41)).await;
}
