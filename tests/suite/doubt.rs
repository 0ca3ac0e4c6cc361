//! Doubt: a statement whose answer is lost may have been committed, may commit later, or never. Whatever
//! it was, its request is refused and not sent, and newer tokens pass without waiting for `settle`,
//! which is longer here than any test.

use std::time::Duration;

use crate::support::relay::{Action, Point, Relay, Statement};
use crate::support::{Gate, Pair, Proxy, Step, Store, eventually, post, put, soon};

/// Nothing settles within a test, and nobody is declared dead.
const LIVELY: &str = "{ store: { lease: 200s }, barrier: { wait: 25s, settle: 300s } }";
/// The same with a store that is soon given up.
const BRIEF: &str = "{ store: { lease: 200s, timeout: 1s }, barrier: { wait: 25s, settle: 300s } }";

async fn mark(store: &Store, resource: &str) -> i64 {
    let query = format!("SELECT token FROM marks WHERE resource = '{resource}'");
    store.number(&query).await
}

/// How many epochs of a token are on record.
async fn open(store: &Store, resource: &str, token: u64) -> i64 {
    let query =
        format!("SELECT count(*) FROM epochs WHERE resource = '{resource}' AND token = {token}");
    store.number(&query).await
}

async fn until_closed(store: &Store, resource: &str, token: u64) {
    eventually(&format!("{token} is closed at {resource}"), || async {
        (open(store, resource, token).await == 0).then_some(())
    })
    .await;
}

/// Asserts that the store could not be asked, and that trying again is advised.
async fn refused(proxy: &Proxy, path: &str, token: u64) {
    let answer = proxy.send(put(path).token(token)).await;
    let problem = answer.assert_problem(503, "store-unavailable");
    assert_eq!(problem["retry"], "same-token");
    assert!(answer.retry_after().is_some());
}

#[tokio::test]
async fn a_cut_around_the_commit_refuses_and_holds_nobody_up() {
    let Some(pair) = Pair::start("a_cut_around_the_commit_…", LIVELY).await else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        store,
        ..
    } = &pair;
    let cuts = [
        (Point::Before(Statement::Advance), 41),
        (Point::After(Statement::Advance), 42),
        (Point::Before(Statement::Epochs), 42),
        (Point::After(Statement::Epochs), 42),
    ];
    for (case, (point, durable)) in cuts.into_iter().enumerate() {
        // The same token again, or a newer one at the other proxy.
        for again in [true, false] {
            let (path, resource) = (
                format!("/orders/{case}-{again}"),
                format!("order:{case}-{again}"),
            );
            a.send(put(&path).token(41)).await.assert_forwarded();
            let cut = way_of_a.arm(point, Action::Cut);
            refused(a, &path, 42).await;
            assert!(cut.has_sprung(), "{point:?}");
            assert_eq!(mark(store, &resource).await, durable, "{point:?}");
            assert_eq!(upstream.tokens(&resource), [41], "{point:?}");
            let mut seen = vec![41];
            if again {
                a.send(put(&path).token(42)).await.assert_forwarded();
                seen.push(42);
            } else {
                until_closed(store, &resource, 42).await;
            }
            b.send(put(&path).token(43)).await.assert_forwarded();
            seen.push(43);
            a.send(put(&path).token(42))
                .await
                .assert_problem(412, "stale-token");
            assert_eq!(upstream.tokens(&resource), seen, "{point:?}");
        }
    }
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn an_advance_that_commits_late_is_found_and_closed() {
    let Some(pair) = Pair::start("an_advance_that_commits_late_…", BRIEF).await else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        store,
        ..
    } = &pair;
    a.send(put("/orders/7").token(41)).await.assert_forwarded();
    let late = way_of_a.arm(Point::Before(Statement::Advance), Action::Hold);
    refused(a, "/orders/7", 42).await;
    assert_eq!(mark(store, "order:7").await, 41);
    late.release();
    eventually("it commits", || async {
        (mark(store, "order:7").await == 42).then_some(())
    })
    .await;
    assert_eq!(open(store, "order:7", 42).await, 1, "nobody knows of it");
    b.send(put("/orders/7").token(43)).await.assert_forwarded();
    a.send(put("/orders/7").token(42))
        .await
        .assert_problem(412, "stale-token");
    assert_eq!(upstream.tokens("order:7"), [41, 43]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn an_advance_that_comes_after_a_newer_one_changes_nothing() {
    let Some(pair) = Pair::start("an_advance_that_comes_after_…", BRIEF).await else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        store,
        ..
    } = &pair;
    a.send(put("/orders/7").token(41)).await.assert_forwarded();
    let late = way_of_a.arm(Point::Before(Statement::Advance), Action::Hold);
    refused(a, "/orders/7", 42).await;
    b.send(put("/orders/7").token(43)).await.assert_forwarded();
    // 43 is at work when the old statement arrives.
    let gate = Gate::shut();
    upstream.on_token(43, [Step::Wait(gate.clone()), Step::ok()]);
    let at_work = b.start_request(put("/orders/7").token(43));
    upstream.reached(3).await;
    let answered = way_of_a.arm(
        Point::After(Statement::Advance),
        Action::Delay(Duration::ZERO),
    );
    late.release();
    answered.sprung().await;
    assert_eq!(mark(store, "order:7").await, 43, "a mark never falls");
    assert_eq!(open(store, "order:7", 42).await, 0);
    a.send(put("/orders/7").token(42))
        .await
        .assert_problem(412, "stale-token");
    gate.open();
    soon("43", at_work)
        .await
        .expect("no panic")
        .assert_forwarded();
    a.send(put("/orders/7").token(44)).await.assert_forwarded();
    assert_eq!(upstream.tokens("order:7"), [41, 43, 43, 44]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn the_late_answer_of_a_statement_given_up_is_not_used() {
    let Some(pair) = Pair::start("the_late_answer_of_…", BRIEF).await else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        store,
        ..
    } = &pair;
    a.send(put("/orders/7").token(41)).await.assert_forwarded();
    for (token, statement) in [(42, Statement::Advance), (44, Statement::Epochs)] {
        // Longer than the store is waited for.
        let late = way_of_a.arm(
            Point::After(statement),
            Action::Delay(Duration::from_mins(10)),
        );
        refused(a, "/orders/7", token).await;
        assert!(late.has_sprung());
        assert_eq!(
            mark(store, "order:7").await,
            i64::try_from(token).expect("small")
        );
        let before = upstream.count();
        late.release();
        until_closed(store, "order:7", token).await;
        assert_eq!(upstream.count(), before, "nothing was sent for it");
        b.send(put("/orders/7").token(token + 1))
            .await
            .assert_forwarded();
        a.send(put("/orders/7").token(token))
            .await
            .assert_problem(412, "stale-token");
    }
    assert_eq!(upstream.tokens("order:7"), [41, 43, 45]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_hand_over_survives_a_cut_anywhere() {
    let Some(pair) = Pair::start("a_hand_over_survives_a_cut_anywhere", LIVELY).await else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        way_of_b,
        upstream,
        ..
    } = &pair;
    let at_a = [
        Statement::Close,
        Statement::Notify,
        Statement::Superseded,
        Statement::Renew,
    ];
    let at_b = [
        Statement::Advance,
        Statement::Epochs,
        Statement::Notify,
        Statement::Instances,
    ];
    let cuts = at_a
        .map(|statement| (way_of_a, statement))
        .into_iter()
        .chain(at_b.map(|statement| (way_of_b, statement)));
    let mut token = 0;
    for (way, statement) in cuts {
        for point in [Point::Before(statement), Point::After(statement)] {
            token += 2;
            a.send(put("/orders/7").token(token))
                .await
                .assert_forwarded();
            let cut = way.arm(point, Action::Cut);
            eventually(
                &format!("{} passes in spite of {point:?}", token + 1),
                || async {
                    let answer = b.send(put("/orders/7").token(token + 1)).await;
                    if answer.status() == 503 {
                        answer.assert_problem(503, "store-unavailable");
                        return None;
                    }
                    answer.assert_forwarded();
                    Some(())
                },
            )
            .await;
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
    let Some(pair) = Pair::start(
        "a_slow_store_refuses_nobody",
        "{ store: { timeout: 20s }, barrier: { wait: 25s, settle: 300s } }",
    )
    .await
    else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        way_of_b,
        upstream,
        ..
    } = &pair;
    for way in [way_of_a, way_of_b] {
        way.delay(Duration::from_millis(100));
    }
    for token in 1..=6 {
        let (now, before) = if token % 2 == 0 { (a, b) } else { (b, a) };
        now.send(put("/orders/7").token(token))
            .await
            .assert_forwarded();
        before
            .send(put("/orders/7").token(token))
            .await
            .assert_forwarded();
    }
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_death_and_a_burial_survive_cuts() {
    let Some(mut pair) = Pair::start(
        "a_death_and_a_burial_survive_cuts",
        "{ store: { lease: 2s }, barrier: { wait: 28s, settle: 2s } }",
    )
    .await
    else {
        return;
    };
    let gate = Gate::shut();
    pair.upstream
        .on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let older = pair.a.begin(&put("/orders/7").token(41), b"").await;
    pair.upstream.reached(1).await;
    let cuts = [
        Point::After(Statement::DeclareDead),
        Point::Before(Statement::Bury),
        Point::After(Statement::Bury),
    ]
    .map(|point| pair.way_of_b.arm(point, Action::Cut));
    let newer = pair.b.start_request(put("/orders/7").token(42));
    pair.b.waiting("order:7", 1).await;
    pair.a.kill9();
    let killed = std::time::Instant::now();
    gate.open();
    drop(older);
    soon("42", newer)
        .await
        .expect("no panic")
        .assert_forwarded();
    let waited = pair.upstream.last().began - killed;
    assert!(
        waited >= Duration::from_secs(2),
        "it waited {waited:?}: less than `settle`"
    );
    for cut in cuts {
        cut.sprung().await;
    }
    eventually("the dead one is gone", || async {
        (pair.store.number("SELECT count(*) FROM instances").await == 1).then_some(())
    })
    .await;
    pair.upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_stop_that_cannot_be_told_is_a_stop_all_the_same() {
    for point in [
        Point::Before(Statement::Leave),
        Point::After(Statement::Leave),
    ] {
        let Some(mut pair) = Pair::start("a_stop_that_cannot_be_told_…", LIVELY).await else {
            return;
        };
        pair.a
            .send(put("/orders/7").token(41))
            .await
            .assert_forwarded();
        let cut = pair.way_of_a.arm(point, Action::Cut);
        pair.a.stop().await;
        assert!(cut.has_sprung(), "{point:?}");
        pair.b
            .send(put("/orders/7").token(42))
            .await
            .assert_forwarded();
        pair.upstream.assert_no_overtaking();
    }
}

/// Every renewal from now on is held at this point.
fn hold_renewals(way: &Relay, point: Point) -> Vec<crate::support::relay::Trap> {
    (0..100).map(|_| way.arm(point, Action::Hold)).collect()
}

#[tokio::test]
async fn under_a_lapsed_lease_not_a_byte_goes_out_and_late_renewals_revive_nobody() {
    let Some(pair) = Pair::start(
        "under_a_lapsed_lease_…",
        "{ store: { lease: 2s }, barrier: { wait: 28s, drain: 300s, settle: 3s }, body: { buffer: 1KiB } }",
    )
    .await
    else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        store,
        ..
    } = &pair;
    let upload = put("/orders/7").token(41).header("Content-Length", "40000");
    let mut older = a.begin(&upload, "a".repeat(20_000).as_bytes()).await;
    upstream
        .until("the first half", |all| {
            all.first().is_some_and(|one| one.body.len() == 20_000)
        })
        .await;
    let held = hold_renewals(way_of_a, Point::Before(Statement::Renew));
    eventually("the lease lapses", || async {
        let answer = a.send(put("/orders/8").token(1)).await;
        (answer.status() == 503).then_some(())
    })
    .await;
    older
        .wire
        .send("b".repeat(20_000).as_bytes())
        .await
        .expect("the kernel takes it");
    upstream
        .until("A lets go of its exchange", |all| all[0].left)
        .await;
    let seen = upstream.arrivals();
    assert_eq!(
        (seen[0].whole, seen[0].body.len()),
        (false, 20_000),
        "not a byte more"
    );
    b.send(put("/orders/7").token(42)).await.assert_forwarded();

    // What was held arrives now, long after A has been declared dead and buried.
    assert!(held.iter().any(super::support::relay::Trap::has_sprung));
    drop(held);
    eventually("A serves again", || async {
        let answer = a.send(put("/orders/7").token(43)).await;
        (answer.status() == 200).then_some(())
    })
    .await;
    assert_eq!(
        store
            .number("SELECT count(*) FROM instances WHERE NOT dead")
            .await,
        2
    );
    b.send(put("/orders/7").token(42))
        .await
        .assert_problem(412, "stale-token");
    assert_eq!(upstream.tokens("order:7"), [41, 42, 43]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn who_lapsed_and_was_not_missed_goes_on_under_the_same_id() {
    // B would miss it only after the lease that A has on record: it takes no answer to its reads for one.
    let Some(pair) = Pair::start(
        "who_lapsed_and_was_not_missed_…",
        "{ store: { lease: 2s }, barrier: { wait: 28s, settle: 300s } }",
    )
    .await
    else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        store,
        ..
    } = &pair;
    a.send(put("/orders/7").token(41)).await.assert_forwarded();
    let ids = "SELECT sum(hashtext(id))::bigint FROM instances";
    let before = store.number(ids).await;
    // The counter moves, as B sees; but A never learns that it does.
    let held = hold_renewals(way_of_a, Point::After(Statement::Renew));
    eventually("the lease lapses", || async {
        let answer = a.send(put("/orders/7").token(41)).await;
        (answer.status() == 503).then_some(())
    })
    .await;
    // A living proxy closes its epochs, lapsed or not.
    b.send(put("/orders/7").token(42)).await.assert_forwarded();
    a.send(put("/orders/7").token(41))
        .await
        .assert_problem(412, "stale-token");
    drop(held);
    eventually("A serves again", || async {
        let answer = a.send(put("/orders/7").token(43)).await;
        (answer.status() == 200).then_some(())
    })
    .await;
    assert_eq!(store.number(ids).await, before, "nobody has another id");
    let seen = upstream.tokens("order:7");
    assert!(seen.is_sorted() && seen.ends_with(&[42, 43]), "{seen:?}");
    upstream.assert_no_overtaking();
}

const ONCE: &str = "{ store: { lease: 200s }, barrier: { wait: 25s, settle: 300s }, \
    routes: [{ path: '/orders/{id}', resource: 'order:{id}', reuse: once }] }";

#[tokio::test]
async fn a_spending_in_doubt_counts_as_spent() {
    let Some(pair) = Pair::start("a_spending_in_doubt_counts_as_spent", ONCE).await else {
        return;
    };
    let Pair {
        a,
        b,
        way_of_a,
        upstream,
        ..
    } = &pair;
    // The first advance raises the mark, the second one spends the token.
    let raised = way_of_a.arm(Point::After(Statement::Advance), Action::Hold);
    let request = a.start_request(post("/orders/7").token(41));
    raised.sprung().await;
    let spent = way_of_a.arm(Point::After(Statement::Advance), Action::Cut);
    raised.release();
    let answer = soon("41", request).await.expect("no panic");
    assert_eq!(
        answer.assert_problem(503, "store-unavailable")["retry"],
        "never"
    );
    assert!(spent.has_sprung());
    for proxy in [a, b] {
        proxy
            .send(post("/orders/7").token(41))
            .await
            .assert_problem(412, "stale-token");
    }
    assert_eq!(upstream.count(), 0);
    b.send(post("/orders/7").token(42)).await.assert_forwarded();
}
