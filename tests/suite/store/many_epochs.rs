//! Very many open epochs: none of it holds up the work, or a stop.

use crate::support::relay::Statement;
use crate::support::{Pair, or_return, put};

const MANY: i64 = 1_000_000;

/// One statement ends them all, and no row is touched.
#[tokio::test]
async fn a_stop_ends_very_many_epochs_at_once() {
    let brief = "{ store: { lease: 200s, timeout: 5s }, barrier: { settle: 300s }, \
        shutdown: { deadline: 5s } }";
    let mut pair = or_return!(Pair::start(brief).await);
    pair.a.forward(put("/orders/7").token(41)).await;
    // Of the instance that has one open at `order:7`.
    let more = format!(
        "INSERT INTO marks (namespace, resource, token, era, changed_at, open) \
         SELECT m.namespace, 'order:m' || g, 1, 0, now(), ARRAY[m.open[1], 1000000 + g, 1] \
         FROM generate_series(1, {MANY}) AS g, marks AS m WHERE m.resource = 'order:7'"
    );
    pair.store.execute(&more).await;
    pair.a.stop().await;
    assert_eq!(pair.way_of_a.passed(Statement::Leave), 1);
    for touching in [Statement::Cede, Statement::Repair] {
        assert_eq!(pair.way_of_a.passed(touching), 0, "{touching:?}");
    }
    for order in ["7", "m1", "m77", "m1000000"] {
        pair.b
            .forward(put(&format!("/orders/{order}")).token(42))
            .await;
    }
    let there = pair.store.epochs("token < 42");
    assert_eq!(pair.store.number(&there).await, MANY - 3, "in their rows");
}
