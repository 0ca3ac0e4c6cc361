//! Statements whose answer is lost: each may have been committed, may commit later, or never. Its
//! request is refused and not sent in any case. Newer tokens pass without waiting for `settle`,
//! which is longer here than any test.

use crate::support::pair::{around, through};
use crate::support::postgres::free_port;
use crate::support::relay::{Point, Statement};
use crate::support::{
    Config, Pair, Proxy, Store, all_forwarded, forwarded, joined, or_return, post, put,
};

/// Nothing settles within a test, and nobody is declared dead.
const LIVELY: &str = "{ store: { lease: 200s }, barrier: { wait: 25s, settle: 300s } }";
/// The same with a store that is soon given up.
const BRIEF: &str = "{ store: { lease: 200s, timeout: 4s }, barrier: { wait: 25s, settle: 300s } }";

/// Reads the mark.
fn mark(resource: &str) -> String {
    format!("SELECT token FROM marks WHERE resource = '{resource}'")
}

/// Counts the open epochs of a token.
fn open(store: &Store, resource: &str, token: i64) -> String {
    store.open_epochs(&format!("resource = '{resource}' AND token = {token}"))
}

/// Asserts that the store could not be asked, and that trying again is advised.
async fn refused(proxy: &Proxy, path: &str, token: i64) {
    let answer = proxy.send(put(path).token(token)).await;
    let problem = answer.assert_problem(503, "store-unavailable");
    assert_eq!(problem["retry"], "same-token");
    assert!(answer.retry_after().is_some());
}

#[tokio::test]
async fn a_cut_around_the_commit_refuses_and_holds_nobody_up() {
    let pair = or_return!(Pair::start(LIVELY).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    let cuts = around(Statement::Advance).into_iter().zip([41, 42]);
    for (case, (point, durable)) in cuts.enumerate() {
        // The same token again, or a newer one at the other proxy.
        for again in [true, false] {
            let path = format!("/orders/{case}-{again}");
            let resource = format!("order:{case}-{again}");
            a.forward(put(&path).token(41)).await;
            let cut = way_of_a.cut(point);
            refused(a, &path, 42).await;
            assert!(cut.has_sprung(), "{point:?}");
            assert_eq!(store.number(&mark(&resource)).await, durable, "{point:?}");
            assert_eq!(upstream.tokens(&resource), [41], "{point:?}");
            let mut seen = vec![41];
            if again {
                a.forward(put(&path).token(42)).await;
                seen.push(42);
            } else {
                store.until(&open(store, &resource, 42), 0).await;
            }
            b.forward(put(&path).token(43)).await;
            seen.push(43);
            a.stale(put(&path).token(42)).await;
            assert_eq!(upstream.tokens(&resource), seen, "{point:?}");
        }
    }
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn an_epoch_that_is_opened_after_a_stop_is_over_by_then() {
    let mut pair = or_return!(Pair::start(BRIEF).await);
    let late = pair.way_of_a.hold(Point::Before(Statement::Advance));
    refused(&pair.a, "/orders/7", 41).await;
    pair.a.stop().await;
    late.release();
    pair.store.until("SELECT count(*) FROM marks", 1).await;
    let (there, open) = (pair.store.epochs("true"), pair.store.open_epochs("true"));
    assert_eq!(pair.store.number(&there).await, 1);
    assert_eq!(pair.store.number(&open).await, 0);
    pair.b.forward(put("/orders/7").token(42)).await;
    assert_eq!(pair.upstream.tokens("order:7"), [42]);
}

#[tokio::test]
async fn an_advance_that_comes_after_a_newer_one_changes_nothing() {
    let pair = or_return!(Pair::start(BRIEF).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    a.forward(put("/orders/7").token(41)).await;
    let late = way_of_a.hold(Point::Before(Statement::Advance));
    refused(a, "/orders/7", 42).await;
    b.forward(put("/orders/7").token(43)).await;
    // 43 is in progress when the old statement arrives.
    let (at_work, gate) = b.held(upstream, put("/orders/7").token(43)).await;
    let answered = way_of_a.answer_to(Statement::Advance);
    late.release();
    answered.sprung().await;
    let mark = store.number(&mark("order:7")).await;
    assert_eq!(mark, 43, "a mark never falls");
    assert_eq!(store.number(&open(store, "order:7", 42)).await, 0);
    a.stale(put("/orders/7").token(42)).await;
    gate.open();
    forwarded(at_work).await;
    a.forward(put("/orders/7").token(44)).await;
    assert_eq!(upstream.tokens("order:7"), [41, 43, 43, 44]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn what_a_statement_given_up_does_late_is_not_used() {
    let pair = or_return!(Pair::start(BRIEF).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    a.forward(put("/orders/7").token(41)).await;
    let (errors, timeout) = ("fencepost_store_errors_total", [("kind", "timeout")]);
    // The mark while it is late: nothing has come of it, or only its answer is missing.
    for (point, token, durable) in [
        (Point::Before(Statement::Advance), 42, 41),
        (Point::After(Statement::Advance), 44, 44),
        (Point::After(Statement::Advance), 46, 46),
    ] {
        let given_up = a.sum(errors, &timeout).await;
        let late = way_of_a.hold(point);
        refused(a, "/orders/7", token).await;
        assert!(late.has_sprung());
        assert_eq!(store.number(&mark("order:7")).await, durable, "{point:?}");
        // The request is given up first, and then the statement: an answer in between is in time.
        a.until_metric(errors, &timeout, |count| count > given_up)
            .await;
        a.forward(put("/orders/8").token(token)).await;
        let before = upstream.count();
        late.release();
        store.until(&mark("order:7"), token).await;
        store.until(&open(store, "order:7", token), 0).await;
        assert_eq!(upstream.count(), before, "nothing was sent for it");
        b.forward(put("/orders/7").token(token + 1)).await;
        a.stale(put("/orders/7").token(token)).await;
    }
    assert_eq!(upstream.tokens("order:7"), [41, 43, 45, 47]);
    upstream.assert_no_overtaking();
}

const ONCE: &str = "{ store: { lease: 200s }, barrier: { wait: 25s, settle: 300s }, \
    routes: [{ path: '/orders/{id}', resource: 'order:{id}', reuse: once }] }";

#[tokio::test]
async fn a_spending_in_doubt_counts_as_spent() {
    let pair = or_return!(Pair::start(ONCE).await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    // The first advance raises the mark, the second one spends the token.
    let raised = way_of_a.hold(Point::After(Statement::Advance));
    let request = a.start_request(post("/orders/7").token(41));
    raised.sprung().await;
    let spent = way_of_a.cut(Point::After(Statement::Advance));
    raised.release();
    let answer = joined(request).await;
    assert_eq!(
        answer.assert_problem(503, "store-unavailable")["retry"],
        "never"
    );
    assert!(spent.has_sprung());
    for proxy in [a, b] {
        proxy.stale(post("/orders/7").token(41)).await;
    }
    assert_eq!(upstream.count(), 0);
    b.forward(post("/orders/7").token(42)).await;
}

#[tokio::test]
async fn a_token_whose_return_is_in_doubt_counts_as_spent() {
    let pair = or_return!(Pair::start(ONCE).await);
    let (_, _, way_of_a, _, store) = pair.parts();
    let nobody = Config::to(&format!("http://127.0.0.1:{}", free_port()), store).with(ONCE);
    let proxy = Proxy::start(&through(&nobody, store, way_of_a)).await;
    for (point, spent) in around(Statement::GiveBack).into_iter().zip([1, 0]) {
        let id = 10 + spent;
        let cut = way_of_a.cut(point);
        let answer = proxy.send(post(&format!("/orders/{id}")).token(41)).await;
        let problem = answer.assert_problem(502, "upstream-unreachable");
        assert_eq!(problem["retry"], "never", "{point:?}");
        assert!(cut.has_sprung(), "{point:?}");
        // If it was given back after all, nothing is lost: nothing was sent for it.
        let rows = format!(
            "SELECT count(*) FROM marks WHERE spent_by IS NOT NULL AND resource = 'order:{id}'"
        );
        assert_eq!(store.number(&rows).await, spent, "{point:?}");
    }
}

#[tokio::test]
async fn a_cession_that_comes_late_ends_nothing_new() {
    let pair = or_return!(Pair::start(BRIEF).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    a.forward(put("/orders/7").token(41)).await;
    // A cedes 41, which is still on its way when A's next publication ends 41 as well.
    let late = way_of_a.hold(Point::Before(Statement::Cede));
    b.forward(put("/orders/7").token(42)).await;
    assert!(late.has_sprung());
    let (at_work, gate) = a.held(upstream, put("/orders/7").token(43)).await;
    let answered = way_of_a.answer_to(Statement::Cede);
    late.release();
    answered.sprung().await;
    assert_eq!(store.number(&open(store, "order:7", 43)).await, 1);
    let newer = b.start_request(put("/orders/7").token(44));
    b.waiting("order:7", 1).await;
    assert_eq!(upstream.tokens("order:7"), [41, 42, 43], "44 waits");
    gate.open();
    all_forwarded([at_work, newer]).await;
    upstream.assert_no_overtaking();
}
