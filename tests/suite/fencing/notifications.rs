//! Any login of the database can send a notification. None is believed: each is a hint to look at
//! the store.

use crate::support::relay::{Action, Point, Statement};
use crate::support::{Config, Pair, Proxy, Store, Upstream, or_return, put};

/// Sends this many notifications about the resource, as a fencepost would, of tokens from 2^62 on.
async fn forge(store: &Store, resource: &str, count: u64) {
    // The channel of the namespace of these tests.
    let channel = "'fencepost_' || left(encode(sha256('orders'), 'hex'), 16)";
    let payload = format!(
        r#"'{{"k":"newer","r":"{resource}","t":"' || 4611686018427387904 + i || '","e":0}}'"#
    );
    store
        .execute(&format!(
            "SELECT pg_notify({channel}, {payload}) FROM generate_series(1, {count}) AS i"
        ))
        .await;
}

#[tokio::test]
async fn a_forged_notification_moves_no_mark_and_closes_no_epoch() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store)
        .with("{ store: { lease: 60s }, barrier: { wait: 25s, settle: 300s } }");
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    a.forward(put("/orders/7").token(41)).await;
    a.forward(put("/orders/9").token(1)).await;
    for count in [1, 5000] {
        for resource in ["order:7", "order:8"] {
            forge(&store, resource, count).await;
        }
        // A true one that comes after them is heard, and the epoch closes.
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
    let open = "SELECT count(*) FROM epochs WHERE resource = 'order:7' AND token = 41";
    assert_eq!(store.number(open).await, 2, "one at each");
    assert_eq!(a.token("order:7").await, Some(41));
    b.forward(put("/orders/7").token(42)).await;
    a.until_status(412, put("/orders/7").token(41)).await;
    upstream.assert_no_overtaking();
}

/// The read behind an advance tells whose older epoch it finds, so that no statement of its own
/// does; and only the owner looks into it.
#[tokio::test]
async fn a_hand_over_costs_only_the_statements_that_it_needs() {
    let quiet = "{ store: { timeout: 60s, lease: 200s }, barrier: { wait: 25s, settle: 300s } }";
    let pair = or_return!(Pair::start(quiet).await);
    let ways = [&pair.way_of_a, &pair.way_of_b];
    let passed = |statement| ways.map(|way| way.passed(statement)).iter().sum::<usize>();
    pair.a.forward(put("/orders/7").token(1)).await;
    let kinds = [
        Statement::Advance,
        Statement::Epochs,
        Statement::Close,
        Statement::Notify,
        Statement::OwnOf,
        Statement::Own,
    ];
    let before = kinds.map(passed);
    let hand_overs = 40;
    for (token, proxy) in (2..).zip([&pair.b, &pair.a].into_iter().cycle().take(hand_overs)) {
        proxy.forward(put("/orders/7").token(token)).await;
    }
    let after = kinds.map(passed);
    let [advances, reads, closes, notifies, hints, walks] =
        std::array::from_fn(|i| after[i] - before[i]);
    assert_eq!(advances, hand_overs);
    assert_eq!(closes, hand_overs);
    // One goes with the advance, and one follows the close. A slow machine looks again meanwhile,
    // and tells the owner once more. All other notifications go with a deletion.
    let again = reads.checked_sub(2 * hand_overs).expect("two for each");
    // An owner that is notified once more, and has deleted its epoch by then, looks for it. So does
    // one that a walk over its own rows has told first: on a slow machine notifications are late,
    // and the owner walks meanwhile.
    assert!(
        hints <= again + walks,
        "{hints}, {again}, {walks}: nobody looks for an epoch that is another's"
    );
    assert!(
        (closes..=closes + again).contains(&notifies),
        "{notifies}, {again}"
    );
    pair.upstream.assert_no_overtaking();
}

/// The owner of an older epoch has the store delete it. Until it knows whether that was done, the
/// epoch gives no permit: the newer token may have passed already.
#[tokio::test]
async fn an_epoch_that_may_be_deleted_gives_no_permit() {
    let quiet = "{ store: { timeout: 60s, lease: 200s }, barrier: { wait: 25s, settle: 300s } }";
    let pair = or_return!(Pair::start(quiet).await);
    pair.a.forward(put("/orders/7").token(41)).await;
    let deleted = pair
        .way_of_a
        .arm(Point::After(Statement::Close), Action::Hold);
    pair.b.forward(put("/orders/7").token(42)).await;
    deleted.sprung().await;
    pair.a.stale(put("/orders/7").token(41)).await;
    deleted.release();
    pair.a.forward(put("/orders/7").token(43)).await;
    pair.upstream.assert_no_overtaking();
}
