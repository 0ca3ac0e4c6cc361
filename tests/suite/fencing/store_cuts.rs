//! A bad connection to the store: cuts at any point of a hand-over or a repair, and slowness. Work
//! still changes hands, and nothing waits for `settle`.

use std::time::{Duration, Instant};

use crate::support::pair::around;
use crate::support::relay::{Point, Statement};
use crate::support::{Pair, Proxy, all_forwarded, eventually, or_return, put};

/// The token passes at this proxy; until then the store cannot be reached.
async fn passes(proxy: &Proxy, token: u64, point: Point) {
    eventually(&format!("{token} passes in spite of {point:?}"), || async {
        let answer = proxy.send(put("/orders/7").token(token)).await;
        if answer.status() == 503 {
            answer.assert_problem(503, "store-unavailable");
            return None;
        }
        answer.assert_forwarded();
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_hand_over_survives_a_cut_anywhere() {
    let more = "{ store: { lease: 200s }, barrier: { wait: 25s, settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    let way_of_b = &pair.way_of_b;
    let mut token = 0;
    for (way, statement) in [
        (way_of_a, Statement::Cede),
        (way_of_a, Statement::Renew),
        (way_of_b, Statement::Advance),
        (way_of_b, Statement::Notify),
        (way_of_b, Statement::Look),
        (way_of_b, Statement::Instances),
    ] {
        for point in around(statement) {
            token += 2;
            a.forward(put("/orders/7").token(token)).await;
            let cut = way.cut(point);
            passes(b, token + 1, point).await;
            cut.sprung().await;
        }
    }
    let mut seen = upstream.tokens("order:7");
    seen.dedup();
    assert_eq!(seen, (2..=token + 1).collect::<Vec<u64>>());
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_slow_store_refuses_nobody() {
    let more = "{ store: { timeout: 20s }, barrier: { wait: 25s, settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    for way in [way_of_a, &pair.way_of_b] {
        way.delay(Duration::from_millis(100));
    }
    let began = Instant::now();
    for token in 1..=6 {
        let (now, before) = if token % 2 == 0 { (a, b) } else { (b, a) };
        now.forward(put("/orders/7").token(token)).await;
        let problem = before.stale(put("/orders/7").token(token - 1)).await;
        assert_eq!(problem["mark"], token.to_string());
        before.forward(put("/orders/7").token(token)).await;
    }
    // Each advance waits both ways.
    assert!(began.elapsed() >= Duration::from_millis(1200));
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_repair_survives_cuts() {
    let more = "{ upstream: { undelivered: 500ms }, store: { lease: 4s }, barrier: { wait: 25s, \
        settle: 1s } }";
    let pair = or_return!(Pair::start(more).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    let cuts = [Statement::Look, Statement::Repair].map(around);
    for (token, point) in (41..).zip(cuts.into_iter().flatten()) {
        let older = put("/orders/7").token(2 * token);
        a.until_forwarded(older.clone()).await;
        let (at_work, gate) = a.held(upstream, older).await;
        store.execute("UPDATE marks SET open = '{}'").await;
        // A looks at the rows of its epochs when the store answers again.
        let cut = way_of_a.cut(point);
        let outage = way_of_a.cut(Point::Before(Statement::Renew));
        outage.sprung().await;
        cut.sprung().await;
        store.until(&store.open_epochs("token % 2 = 0"), 1).await;
        let newer = b.start_request(put("/orders/7").token(2 * token + 1));
        b.waiting("order:7", 1).await;
        gate.open();
        all_forwarded([at_work, newer]).await;
    }
    upstream.assert_no_overtaking();
}
