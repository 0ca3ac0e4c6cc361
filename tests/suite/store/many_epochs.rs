//! Very many open epochs, and what reads and deletes them: none of it holds up the work, or takes
//! what is in use.

use std::time::Duration;

use crate::support::relay::{Action, Point, Statement};
use crate::support::{Pair, Store, or_return, put};

/// Epochs of the instance that has one open at `order:7`, which knows nothing of them: as if the
/// answers to this many openings had been lost.
async fn strays(store: &Store, count: u32) {
    store
        .execute(&format!(
            "INSERT INTO epochs SELECT 'orders', 'stray:' || g, e.instance, 1000000 + g, 1 \
             FROM generate_series(1, {count}) AS g, epochs AS e WHERE e.resource = 'order:7'"
        ))
        .await;
}

/// The walk stands still at a page, for longer than any statement may take; nothing else does.
#[tokio::test]
async fn a_walk_through_the_own_rows_holds_up_neither_requests_nor_the_lease() {
    let brief = "{ store: { lease: 3s, timeout: 20s }, barrier: { wait: 25s, settle: 300s } }";
    let pair = or_return!(Pair::start(brief).await);
    let (a, b, way_of_a, _, _) = pair.parts();
    way_of_a.lose_notifications(true);
    let walk = way_of_a.arm(Point::Before(Statement::Own), Action::Hold);
    walk.sprung().await;
    let renewals = way_of_a.passed(Statement::Renew);
    for token in 1..=20 {
        a.forward(put("/orders/7").token(token)).await;
    }
    way_of_a.until_passed(Statement::Renew, renewals + 4).await;
    // And what comes of it: the rows that nobody here knows of go, and what is in use stays.
    strays(&pair.store, 3000).await;
    way_of_a.lose_notifications(false);
    walk.release();
    pair.store
        .until(
            "SELECT count(*) FROM epochs WHERE resource LIKE 'stray:%'",
            0,
        )
        .await;
    assert!(way_of_a.passed(Statement::Own) >= 4);
    b.forward(put("/orders/7").token(21)).await;
    pair.upstream.assert_no_overtaking();
}

/// More than can be deleted within `store.timeout`, and all within `shutdown.deadline`.
#[tokio::test]
async fn a_stop_has_its_deadline_for_very_many_epochs() {
    let brief = "{ store: { lease: 200s, timeout: 5s }, barrier: { settle: 300s } }";
    let mut pair = or_return!(Pair::start(brief).await);
    pair.a.forward(put("/orders/7").token(41)).await;
    // The connection that deletes is there: a new one and its first statement would take more than
    // `store.timeout`.
    pair.way_of_a.lose_notifications(true);
    pair.way_of_a.until_passed(Statement::Own, 1).await;
    pair.way_of_a.lose_notifications(false);
    strays(&pair.store, 240_000).await;
    // All statements together take more than `store.timeout`. Each takes a small part of it, so
    // that one may be slow, or fail and be tried again on a new connection.
    pair.way_of_a.delay(Duration::from_millis(120));
    pair.a.stop().await;
    assert_eq!(pair.store.number("SELECT count(*) FROM epochs").await, 0);
    assert!(pair.way_of_a.passed(Statement::CloseOwn) >= 12);
}
