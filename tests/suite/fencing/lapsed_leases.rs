//! Leases, deaths, joins and stops whose statements are held, cut or late.

use std::time::{Duration, Instant};

use crate::support::pair::{around, through};
use crate::support::relay::{Point, Relay, Statement, Trap};
use crate::support::store::{LIVING, NOT_SETTLED};
use crate::support::{Config, Pair, Proxy, forwarded, or_return, put};

/// Nothing settles within a test, and nobody is declared dead.
const LIVELY: &str = "{ store: { lease: 200s }, barrier: { wait: 25s, settle: 300s } }";
/// Deaths are soon found, and settle soon after.
const MORTAL: &str = "{ upstream: { undelivered: 500ms }, store: { lease: 2s }, \
    barrier: { wait: 28s, grace: 300s, settle: 2s } }";

/// Changes when anybody takes another id: the rows stay.
const IDS: &str = "SELECT count(*) FROM instances";

/// Holds every statement that passes from now on.
fn hold_all(way: &Relay, point: Point) -> Vec<Trap> {
    (0..100).map(|_| way.hold(point)).collect()
}

#[tokio::test]
async fn a_death_and_its_settling_survive_cuts() {
    let mut pair = or_return!(Pair::mortal_a(MORTAL).await);
    let request = put("/orders/7").token(41);
    let (older, gate) = pair.a.begin_held(&pair.upstream, request).await;
    let cuts = [
        Point::After(Statement::DeclareDead),
        Point::Before(Statement::Settle),
        Point::After(Statement::Settle),
    ]
    .map(|point| pair.way_of_b.cut(point));
    let newer = pair.b.start_request(put("/orders/7").token(42));
    pair.b.waiting("order:7", 1).await;
    pair.a.kill9();
    let killed = Instant::now();
    gate.open();
    drop(older);
    forwarded(newer).await;
    let waited = pair.upstream.last().began - killed;
    assert!(waited >= Duration::from_secs(2), "`settle`: {waited:?}");
    for cut in cuts {
        cut.sprung().await;
    }
    pair.store.until(NOT_SETTLED, 1).await;
    pair.upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_stop_that_cannot_be_told_is_a_stop_all_the_same() {
    for point in around(Statement::Leave) {
        let mut pair = or_return!(Pair::start(LIVELY).await);
        pair.a.forward(put("/orders/7").token(41)).await;
        let cut = pair.way_of_a.cut(point);
        pair.a.stop().await;
        assert!(cut.has_sprung(), "{point:?}");
        pair.b.forward(put("/orders/7").token(42)).await;
        pair.upstream.assert_no_overtaking();
    }
}

#[tokio::test]
async fn late_renewals_revive_nobody() {
    let pair = or_return!(Pair::mortal_a(MORTAL).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    a.forward(put("/orders/7").token(41)).await;
    let held = hold_all(way_of_a, Point::Before(Statement::Renew));
    a.until_status(503, put("/orders/8").token(1)).await;
    b.forward(put("/orders/7").token(42)).await;

    // The held statement arrives now, long after A has been declared dead and settled.
    assert!(held.iter().any(Trap::has_sprung));
    drop(held);
    a.until_forwarded(put("/orders/7").token(43)).await;
    assert_eq!(store.number(LIVING).await, 2);
    b.stale(put("/orders/7").token(42)).await;
    assert_eq!(upstream.tokens("order:7"), [41, 42, 43]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn who_lapsed_and_was_not_missed_goes_on_under_the_same_id() {
    // B would miss it only after the lease that A has on record: it takes no answer to its reads
    // for one.
    let more = "{ store: { lease: 4s }, barrier: { wait: 28s, settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    a.forward(put("/orders/7").token(41)).await;
    let before = store.number(IDS).await;
    // The counter moves, as B sees; but A never learns that it does.
    let held = hold_all(way_of_a, Point::After(Statement::Renew));
    a.until_status(503, put("/orders/7").token(41)).await;
    // A living proxy cedes its epochs, lapsed or not.
    b.forward(put("/orders/7").token(42)).await;
    a.refuse(put("/orders/8").token(41), 503, "store-unavailable")
        .await;
    drop(held);
    a.until_forwarded(put("/orders/7").token(43)).await;
    assert_eq!(store.number(IDS).await, before, "nobody has another id");
    let seen = upstream.tokens("order:7");
    assert!(seen.is_sorted() && seen.ends_with(&[42, 43]), "{seen:?}");
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn an_advance_of_a_dead_proxy_that_commits_once_it_has_settled_holds_nobody_up() {
    let mut pair = or_return!(Pair::start(MORTAL).await);
    let late = pair.way_of_a.hold(Point::Before(Statement::Advance));
    let given_up = pair.a.begin(&put("/orders/7").token(41), b"").await;
    late.sprung().await;
    pair.a.kill9();
    drop(given_up);
    pair.store.until(NOT_SETTLED, 1).await;
    late.release();
    pair.store
        .until("SELECT count(*) FROM marks WHERE token = 41", 1)
        .await;
    assert_eq!(pair.store.number(&pair.store.epochs("token = 41")).await, 1);
    pair.b.forward(put("/orders/7").token(42)).await;
    assert_eq!(pair.store.number(&pair.store.epochs("token = 41")).await, 0);
    assert_eq!(pair.upstream.tokens("order:7"), [42]);
}

#[tokio::test]
async fn a_declaration_that_comes_late_kills_nobody() {
    let more = "{ store: { lease: 4s }, barrier: { wait: 28s, grace: 300s, settle: 2s } }";
    let pair = or_return!(Pair::start(more).await);
    pair.a.forward(put("/orders/7").token(41)).await;
    let ids = pair.store.number(IDS).await;
    let declarations = hold_all(&pair.way_of_b, Point::Before(Statement::DeclareDead));
    let renewals = hold_all(&pair.way_of_a, Point::Before(Statement::Renew));
    declarations[0].sprung().await;
    // A lives on, and then it is said to be dead.
    let renewals_of = "SELECT sum(renewals)::bigint FROM instances";
    let living = format!("{renewals_of} WHERE state = 0");
    let counted = pair.store.number(&living).await;
    drop(renewals);
    pair.a.until_forwarded(put("/orders/7").token(41)).await;
    assert!(pair.store.number(renewals_of).await > counted);
    let answered = pair.way_of_b.answer_to(Statement::DeclareDead);
    drop(declarations);
    answered.sprung().await;
    pair.b.forward(put("/orders/7").token(42)).await;
    assert_eq!(pair.store.number(LIVING).await, 2);
    assert_eq!(pair.store.number(IDS).await, ids, "nobody has another id");
    pair.upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_join_in_doubt_leaves_an_instance_that_settles() {
    let mut pair = or_return!(Pair::start(MORTAL).await);
    pair.a.stop().await;
    let config = Config::new(&pair.upstream, &pair.store).with(MORTAL);
    for point in around(Statement::Join) {
        let cut = pair.way_of_a.cut(point);
        let mut again = Proxy::start(&through(&config, &pair.store, &pair.way_of_a)).await;
        assert!(cut.has_sprung(), "{point:?}");
        again.forward(put("/orders/7").token(41)).await;
        pair.store.until(NOT_SETTLED, 2).await;
        again.stop().await;
    }
    // The same when it rejoins.
    let again = Proxy::start(&through(&config, &pair.store, &pair.way_of_a)).await;
    let joins = pair.way_of_a.passed(Statement::Join);
    let cuts = around(Statement::Join).map(|point| pair.way_of_a.cut(point));
    again.pause().await;
    pair.store.until(LIVING, 1).await;
    again.resume();
    for cut in cuts {
        cut.sprung().await;
    }
    again.until_forwarded(put("/orders/7").token(42)).await;
    pair.store.until(NOT_SETTLED, 2).await;
    // One lost its answer, one did not.
    assert!(pair.way_of_a.passed(Statement::Join) >= joins + 2);
    pair.b.forward(put("/orders/7").token(43)).await;
    pair.upstream.assert_no_overtaking();
}
