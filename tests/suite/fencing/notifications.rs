//! Any login of the database can send a notification. None is believed: each is a hint to look at
//! the store.

use std::time::{Duration, Instant};

use crate::support::relay::{Point, Statement};
use crate::support::{Pair, Proxy, Store, all_forwarded, or_return, put};

/// Only a living proxy can let a newer token pass; statements may be held for as long as a test
/// needs.
const QUIET: &str =
    "{ store: { timeout: 60s, lease: 200s }, barrier: { wait: 25s, settle: 300s } }";

/// Sends this many notifications about the resource, as a fencepost would, of tokens from 2^62 on.
async fn forge(store: &Store, resource: &str, count: u64) {
    // The channel of the namespace of these tests.
    let channel = "'fencepost_' || left(encode(sha256('orders'), 'hex'), 16)";
    let payload = format!(r#"'{{"r":"{resource}","w":"' || 4611686018427387904 + i || '"}}'"#);
    let send =
        format!("SELECT pg_notify({channel}, {payload}) FROM generate_series(1, {count}) AS i");
    store.execute(&send).await;
}

#[tokio::test]
async fn a_forged_notification_moves_no_mark_and_ends_no_work() {
    let store = or_return!(Store::postgres().await);
    let more = "{ store: { lease: 60s }, barrier: { wait: 25s, settle: 300s } }";
    let (upstream, config, a) = Proxy::with_config(&store, more).await;
    let b = Proxy::start(&config).await;
    let (at_work, gate) = a.held(&upstream, put("/orders/6").token(41)).await;
    a.forward(put("/orders/7").token(41)).await;
    a.forward(put("/orders/9").token(1)).await;
    for count in [1, 5000] {
        for resource in ["order:6", "order:7", "order:8"] {
            forge(&store, resource, count).await;
        }
        // A true one that comes after them is heard, and the epoch is ceded.
        let token = 1 + count;
        b.forward(put("/orders/9").token(token)).await;
        a.stale(put("/orders/9").token(1)).await;
        a.forward(put("/orders/9").token(token)).await;
        for proxy in [&a, &b] {
            for order in ["/orders/7", "/orders/8"] {
                proxy.forward(put(order).token(41)).await;
            }
        }
    }
    let at_6 = store.open_epochs("resource = 'order:6' AND token = 41");
    assert_eq!(store.number(&at_6).await, 1, "in use");
    assert_eq!(a.token("order:7").await, Some(41));
    let newer = b.start_request(put("/orders/6").token(42));
    b.waiting("order:6", 1).await;
    assert_eq!(upstream.tokens("order:6"), [41], "42 waits");
    gate.open();
    all_forwarded([at_work, newer]).await;
    b.forward(put("/orders/7").token(42)).await;
    a.until_status(412, put("/orders/7").token(41)).await;
    upstream.assert_no_overtaking();
}

/// The answer to an advance tells whose older epoch is in the way. Its owner is notified, cedes it
/// and notifies back, and the waiter looks.
#[tokio::test]
async fn a_hand_over_costs_four_statements() {
    let pair = or_return!(Pair::start(QUIET).await);
    let kinds = [
        Statement::Advance,
        Statement::Notify,
        Statement::Cede,
        Statement::Look,
    ];
    let ways = [&pair.way_of_a, &pair.way_of_b];
    let all = || kinds.map(|kind| ways.map(|way| way.passed(kind)).iter().sum::<usize>());
    pair.a.forward(put("/orders/7").token(1)).await;
    let (before, began) = (all(), Instant::now());
    let hand_overs = 40;
    let pairs = [(&pair.a, &pair.b), (&pair.b, &pair.a)];
    for (token, (owner, next)) in (2..).zip(pairs.into_iter().cycle().take(hand_overs)) {
        // An owner whose last exchange is just ending cannot cede yet, and looks once more.
        owner.until_none("fencepost_upstream_in_flight").await;
        next.forward(put("/orders/7").token(token)).await;
    }
    let after = all();
    let passed: [usize; 4] = std::array::from_fn(|i| after[i] - before[i]);
    // Each proxy polls while a request waits, four times a second: it looks, and notifies again. A
    // look may find an epoch that is just being ceded.
    let polls = 2 * usize::try_from(began.elapsed().as_millis() / 250).expect("small") + 2;
    let expected = hand_overs..=hand_overs + polls;
    let are_few = passed.iter().all(|some| expected.contains(some));
    assert!(
        passed[0] == hand_overs && are_few,
        "{passed:?}, {polls} polls"
    );
    pair.upstream.assert_no_overtaking();
}

/// Until the owner of an older epoch knows that it has left the row, the epoch gives no permit: the
/// newer token may have passed already.
#[tokio::test]
async fn an_epoch_that_may_be_ceded_gives_no_permit() {
    let pair = or_return!(Pair::start(QUIET).await);
    pair.a.forward(put("/orders/7").token(41)).await;
    let ceded = pair.way_of_a.hold(Point::After(Statement::Cede));
    pair.b.forward(put("/orders/7").token(42)).await;
    ceded.sprung().await;
    pair.a.stale(put("/orders/7").token(41)).await;
    ceded.release();
    pair.a.forward(put("/orders/7").token(43)).await;
    pair.upstream.assert_no_overtaking();
}

/// As if the server's queue of notifications were full: neither a waiter nor an owner can send one,
/// and what an owner cedes is not ceded. It costs time, and nothing else.
#[tokio::test]
async fn a_full_queue_of_notifications_delays_a_hand_over_only() {
    let store = or_return!(Store::postgres().await);
    store
        .execute(
            "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'too many notifications in the NOTIFY queue'; END $$",
        )
        .await;
    let url = store.url();
    let (_, name) = url.rsplit_once('/').expect("a database's name");
    let shadow = format!("ALTER DATABASE {name} SET search_path = public, pg_catalog");
    store.execute(&shadow).await;
    let (upstream, config, a) = Proxy::with_config(&store, QUIET).await;
    let b = Proxy::start(&config).await;
    // Unused, it is over with a publication.
    a.forward(put("/orders/7").token(41)).await;
    // Used again and again, its row is looked at.
    let to = a.data();
    let used = tokio::spawn(async move {
        while put("/orders/8").token(41).send(to).await.status() == 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    upstream.until("41 at order:8", |all| all.len() > 1).await;
    let newer = [7, 8].map(|id| b.start_request(put(&format!("/orders/{id}")).token(42)));
    all_forwarded(newer).await;
    used.await.expect("no panic");
    a.stale(put("/orders/8").token(41)).await;
    let (errors, statement) = ("fencepost_store_errors_total", [("kind", "statement")]);
    assert!(b.sum(errors, &statement).await > 0.0, "it was full");
    upstream.assert_no_overtaking();
}
