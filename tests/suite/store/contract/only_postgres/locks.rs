//! Row locks: in which order they are taken, how long they are waited for, and what a statement
//! finds that has waited.

use fencepost::store::{Publication, Renewal};

use super::*;
use crate::support::Must;

/// A row's, that is: who notifies waits for one of the whole cluster.
const WAITS_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE wait_event IN ('tuple', 'transactionid') AND datname = current_database()";

/// Rows are written, and so locked, in the byte order of their keys: for new rows the table shows
/// it, for old ones a session that holds one of them.
#[tokio::test]
async fn rows_are_locked_in_key_order() {
    let (url, store) = or_return!(fresh().await);
    let mut shell = shell(&url).await;
    let mut keys: Vec<String> = (0..300).map(|n| format!("k{}", (n * 7919) % 300)).collect();
    keys.extend(["Z", "a", "é", "E", "_"].map(str::to_owned));
    let asks: Vec<_> = keys.iter().map(|key| ask(key, 1)).collect();
    batch(&store, Lane::Main(0), &asks).must().await;
    keys.sort_unstable();
    let written: Vec<String> = sqlx::query_scalar("SELECT resource FROM marks ORDER BY ctid")
        .fetch_all(&mut shell)
        .must()
        .await;
    assert_eq!(written, keys);
    let mut holder = self::shell(&url).await;
    let held = "k150";
    sql(
        &mut holder,
        &format!("BEGIN; SELECT * FROM marks WHERE resource = '{held}' FOR UPDATE"),
    )
    .await;
    let store = Arc::new(store);
    let waiting = beside(&store, |store| async move {
        batch(&store, Lane::Main(0), &asks).await
    });
    until(&mut shell, "the batch waits", WAITS_FOR_A_LOCK).await;
    let free: Vec<String> =
        sqlx::query_scalar("SELECT resource FROM marks ORDER BY resource FOR UPDATE SKIP LOCKED")
            .fetch_all(&mut shell)
            .must()
            .await;
    keys.retain(|key| key.as_str() > held);
    assert_eq!(free, keys);
    sql(&mut holder, "COMMIT").await;
    waiting.must().await.expect("an answer");
}

#[tokio::test]
async fn a_locked_row_is_not_waited_for_longer_than_half_the_timeout() {
    let url = or_return!(database().await);
    let store = open_within(&url, Duration::from_secs(4)).must().await;
    advance(&store, ask("a", 1)).await;
    let mut shell = shell(&url).await;
    sql(&mut shell, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    for (lane, least, most) in [(Lane::Main(1), 1500, 4000), (Lane::Aside, 90, 1500)] {
        // A new connection is not part of the wait.
        batch(&store, lane, &[ask("c", 1)]).must().await;
        let start = tokio::time::Instant::now();
        let locked = batch(&store, lane, &[ask("a", 2), ask("b", 2)]).await;
        let locked = locked.expect_err("the row is locked");
        assert!(matches!(locked, StoreError::LockTimeout(_)), "{locked}");
        let waited = start.elapsed().as_millis();
        assert!((least..most).contains(&waited), "{lane:?}: {waited} ms");
    }
    // The batch was rolled back as a whole.
    assert_eq!(advance(&store, ask("b", 3)).await.before, None);
    sql(&mut shell, "ROLLBACK").await;
    assert_eq!(advance(&store, ask("a", 2)).await.before, Some(token(1)));
}

/// A statement that waited for a lock sees all commits before it got it, not its snapshot: the
/// mark, and the epochs in the row. So of two tokens that come at once, one finds the other.
#[tokio::test]
async fn a_statement_that_waited_finds_what_is_there_when_it_goes_on() {
    for in_company in [false, true] {
        let (store, mut holder, mut watcher) = or_return!(locked("BEGIN").await);
        for (before, number, after) in [(41, 42, 42), (50, 49, 50)] {
            let theirs = epoch(2, before, before);
            let write = format!(
                "BEGIN; UPDATE marks SET token = {before}, open = ARRAY[{}, {before}, {before}]",
                instance(2).get()
            );
            sql(&mut holder, &write).await;
            let waiting = beside(&store, move |store| async move {
                let mut asks = vec![opening("a", number, number)];
                asks.extend(in_company.then(|| ask("b", 1)));
                batch(&store, Lane::Main(0), &asks).await
            });
            until(&mut watcher, "the advance waits", WAITS_FOR_A_LOCK).await;
            sql(&mut holder, "COMMIT").await;
            let mut found = waiting.must().await.expect("an answer").remove(0);
            found.open.sort();
            assert_eq!(found.before, Some(token(before)));
            let mut open = vec![theirs];
            open.extend((after == number).then(|| epoch(1, number, number)));
            open.sort();
            assert_eq!(found.open, open);
            assert_eq!(epochs_of(&*store, "a").await, open);
            assert_eq!(mark_of(&*store, "a").await, Some(after));
        }
    }
}

/// Two lanes with the same keys, each in another order, new rows among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_the_same_keys_do_not_deadlock() {
    let (_, store) = or_return!(fresh().await);
    let store = Arc::new(store);
    let lanes: Vec<_> = (0..store.lanes())
        .map(|lane| {
            beside(&store, move |store| async move {
                for round in 0..100_i64 {
                    let mut keys: Vec<i64> = (round..round + 20).collect();
                    if lane % 2 == 1 {
                        keys.reverse();
                    }
                    let asks = keys
                        .iter()
                        .map(|at| opening(&format!("k{at}"), round, round));
                    let asks: Vec<Ask> = asks.collect();
                    let found = batch(&store, Lane::Main(lane), &asks).must().await;
                    assert_eq!(found.len(), asks.len());
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.must().await;
    }
}

/// A cede waits for no row. It removes the named epochs, and leaves the others in their order.
#[tokio::test]
async fn a_cede_leaves_out_the_rows_that_are_locked() {
    let (url, store) = or_return!(fresh().await);
    for resource in ["a", "b", "c"] {
        for number in 1..=5 {
            advance(&store, opening(resource, number, number)).await;
        }
    }
    let named = |resource: &str, number| (key(resource), epoch(1, number, number));
    let all = [
        named("c", 4),
        named("b", 2),
        named("a", 2),
        named("b", 4),
        named("b", 7),
        named("missing", 1),
        (key("c"), epoch(2, 1, 1)),
    ];
    let mut holder = shell(&url).await;
    let lock = "BEGIN; SELECT * FROM marks WHERE resource = 'a' FOR NO KEY UPDATE";
    sql(&mut holder, lock).await;
    assert_eq!(store.cede(&all).must().await, [key("b"), key("c")]);
    let left = async |resource: &str| {
        let open = epochs_of(&store, resource).await;
        open.iter().map(|epoch| epoch.opening).collect::<Vec<_>>()
    };
    assert_eq!(left("a").await, [1, 2, 3, 4, 5]);
    assert_eq!(left("b").await, [1, 3, 5]);
    assert_eq!(left("c").await, [1, 2, 3, 5]);
    sql(&mut holder, "ROLLBACK").await;
    let rows = ["a", "b", "c"].map(key);
    assert_eq!(store.cede(&all).must().await, rows);
    assert_eq!(left("a").await, [1, 3, 4, 5]);
    assert_eq!(left("b").await, [1, 3, 5]);
}

/// Each writes the row as the other has left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cede_loses_no_epoch_that_is_opened_meanwhile() {
    const ROUNDS: i64 = 300;
    let (_, store) = or_return!(fresh().await);
    let store = Arc::new(store);
    let opened = beside(&store, |store| async move {
        for number in 1..=ROUNDS {
            let asks = [opening("a", 1, number), opening("b", 1, number)];
            batch(&store, Lane::Main(0), &asks).must().await;
        }
    });
    let mut ceded = 2;
    while ceded <= ROUNDS {
        let epoch = epoch(1, ceded, 1);
        if epochs_of(&*store, "a").await.contains(&epoch) {
            let done = store.cede(&[(key("a"), epoch)]).must().await;
            // Every other one is ceded.
            ceded += 2 * i64::from(!done.is_empty());
        }
    }
    opened.must().await;
    let left = |epochs: Vec<fencepost::store::Epoch>| -> Vec<i64> {
        epochs.iter().map(|epoch| epoch.opening).collect()
    };
    let odd: Vec<i64> = (1..=ROUNDS).step_by(2).collect();
    assert_eq!(left(epochs_of(&*store, "a").await), odd);
    let all: Vec<i64> = (1..=ROUNDS).collect();
    assert_eq!(left(epochs_of(&*store, "b").await), all);
}

/// Notifications that a server refuses, since their queue is full or for another reason, fail no
/// request.
#[tokio::test]
async fn a_notification_that_is_refused_costs_its_cede_alone() {
    let (url, store) = or_return!(fresh().await);
    let mut shell = shell(&url).await;
    sql(
        &mut shell,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', \
         current_database()); END $$; \
         CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS \
         $$ BEGIN RAISE 'too many notifications in the NOTIFY queue'; END $$",
    )
    .await;
    drop(store);
    let store = open(&url).must().await;
    advance(&store, opening("a", 5, 1)).await;
    let ceded = [(key("a"), epoch(1, 1, 5))];
    let refused = store.cede(&ceded).await.expect_err("it is refused");
    assert!(refused.to_string().contains("NOTIFY queue"), "{refused}");
    let found = advance(&store, opening("a", 6, 2)).await;
    assert_eq!(found.open, [epoch(1, 1, 5), epoch(1, 2, 6)]);
}

/// A caller that leaves sends no cancel: what the server was told happens there, late.
#[tokio::test]
async fn a_dropped_call_may_still_commit() {
    let (store, mut holder, mut watcher) =
        or_return!(locked("BEGIN; SELECT * FROM marks FOR UPDATE").await);
    let waiting = beside(&store, |store| async move {
        advance(&*store, opening("a", 7, 1)).await
    });
    until(&mut watcher, "the advance waits", WAITS_FOR_A_LOCK).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    // The next call is not stuck behind the lost one's connection.
    assert_eq!(advance(&*store, ask("b", 1)).await.before, None);
    assert_eq!(number(&mut watcher, WAITS_FOR_A_LOCK).await, 1);
    sql(&mut holder, "COMMIT").await;
    until(
        &mut watcher,
        "the late commit",
        "SELECT count(*) FROM marks WHERE resource = 'a' AND token = 7 AND open[2] = 1",
    )
    .await;
    assert_eq!(mark_of(&*store, "a").await, Some(7));
    // And its session ends, with nobody left to answer.
    until(
        &mut watcher,
        "the lost session is gone",
        "SELECT (count(*) <= 4)::int::bigint FROM pg_stat_activity \
         WHERE application_name LIKE 'fencepost%' AND datname = current_database()",
    )
    .await;
}

/// The override takes the row's lock first, so an advance that was there before it is seen.
#[tokio::test]
async fn an_override_sees_the_epoch_of_an_advance_it_waited_for() {
    let uncommitted = format!(
        "BEGIN; UPDATE marks SET token = 6, open = ARRAY[{}, 1, 6]",
        instance(9).get()
    );
    let (store, mut holder, mut watcher) = or_return!(locked(&uncommitted).await);
    let overriding = beside(&store, |store| async move {
        store
            .override_mark(&key("a"), token(1), &signed("why", "me"))
            .await
    });
    until(&mut watcher, "the override waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let refused = overriding.must().await.expect("an answer");
    assert_eq!(refused, Override::EpochsOpen(vec![epoch(9, 1, 6)]));
    assert_eq!(mark_of(&*store, "a").await, Some(6));
}

/// Somebody who renews at the last moment lives.
#[tokio::test]
async fn a_renewal_under_way_outlives_the_declaration_that_waits_for_it() {
    let (url, store) = or_return!(fresh().await);
    let store = Arc::new(store);
    store.join(instance(1), &Terms::default()).must().await;
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(
        &mut holder,
        "BEGIN; UPDATE instances SET renewals = renewals + 1",
    )
    .await;
    let declaring = beside(&store, |store| async move {
        store.declare_dead(instance(1), 0).await
    });
    until(&mut watcher, "the declaration waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    assert!(!declaring.must().await.expect("an answer"));
}

/// Either the one who replaces the route table sees the one who joins, or that one sees the new
/// table.
#[tokio::test]
async fn a_join_and_a_replacement_of_the_routes_see_each_other() {
    let (url, store) = or_return!(fresh().await);
    let store = Arc::new(store);
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    // A join that has not committed yet.
    sql(
        &mut holder,
        "BEGIN; INSERT INTO instances (namespace, id, state, renewals, lease_ms, settle_ms, \
             undelivered_ms, routes, closed_below, left_open) \
         VALUES ('test', 7, 0, 0, 1, 1, 1, '', 0, '{}'); UPDATE namespaces SET era = era",
    )
    .await;
    let replacing = beside(
        &store,
        |store| async move { store.replace_routes("new").await },
    );
    until(&mut watcher, "the replacement waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let left = replacing.must().await.expect("an answer");
    assert_eq!(left.len(), 1);
    sql(&mut holder, "DELETE FROM instances").await;

    // A replacement that has not committed yet.
    sql(&mut holder, "BEGIN; UPDATE namespaces SET routes = 'new'").await;
    let joining = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            store.join(instance(1), &Terms::default()).await?;
            store.routes().await
        }
    });
    until(&mut watcher, "the join waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let recorded = joining.must().await.expect("an answer");
    assert_eq!(recorded.as_deref(), Some("new"));
}

/// Else an instance whose row a failover has lost would be on record again without having waited
/// for the replacement.
#[tokio::test]
async fn a_join_that_does_not_get_the_lock_leaves_no_row() {
    let (url, store) = or_return!(fresh().await);
    let mut holder = shell(&url).await;
    sql(&mut holder, "BEGIN; UPDATE namespaces SET routes = 'new'").await;
    let joined = store.join(instance(1), &Terms::default()).await;
    assert!(
        matches!(joined, Err(StoreError::LockTimeout(_))),
        "{joined:?}"
    );
    let visible: i64 = sqlx::query_scalar("SELECT count(*) FROM instances")
        .fetch_one(&mut holder)
        .must()
        .await;
    assert_eq!(visible, 0);
    sql(&mut holder, "COMMIT").await;
    let (terms, publication) = (Terms::default(), Publication::default());
    let renewal = store.renew(instance(1), &terms, &publication);
    assert_eq!(renewal.must().await, Renewal::Unknown);
}

/// A prune leaves out the row that a request has locked, and a request that waits for a prune's row
/// makes the mark again: no epoch is ever open without a mark.
#[tokio::test]
async fn a_prune_and_a_request_of_one_resource_take_turns() {
    let (url, store) = or_return!(fresh().await);
    let (mut holder, mut shell) = (shell(&url).await, shell(&url).await);
    advance(&store, ask("a", 5)).await;
    advance(&store, ask("b", 5)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let step = PruneStep {
        prefix: String::new(),
        after: None,
        unchanged: Duration::from_millis(1),
        dry_run: false,
        by: signed("a test", "me"),
    };
    // As a request of an equal token does it.
    let request = format!(
        "BEGIN; UPDATE marks SET open = ARRAY[{}, 7, 5] WHERE resource = 'a'",
        instance(2).get()
    );
    sql(&mut holder, &request).await;
    let done = store.prune(&step).must().await;
    assert_eq!((done.deleted, done.open), (1, 0), "b alone");
    sql(&mut holder, "COMMIT").await;
    let done = store.prune(&step).must().await;
    assert_eq!((done.deleted, done.open), (0, 1));

    // As a prune does it: a request waits meanwhile.
    sql(&mut holder, "BEGIN; DELETE FROM marks WHERE resource = 'a'").await;
    let store = Arc::new(store);
    let waiting = beside(&store, |store| async move {
        batch(&store, Lane::Main(0), &[opening("a", 3, 1)]).await
    });
    until(&mut shell, "the request waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let found = waiting.must().await.expect("an answer");
    assert_eq!(found[0].before, None);
    assert_eq!(mark_of(&*store, "a").await, Some(3));
    assert_eq!(epochs_of(&*store, "a").await, [epoch(1, 1, 3)]);

    // One that may not make a mark makes none.
    sql(&mut holder, "BEGIN; DELETE FROM marks WHERE resource = 'a'").await;
    let waiting = beside(&store, |store| async move {
        let mut beyond = opening("a", 9, 2);
        beyond.needs.present = true;
        batch(&store, Lane::Main(0), &[beyond, ask("b", 1)]).await
    });
    until(&mut shell, "the request waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let found = waiting.must().await.expect("an answer");
    assert_eq!([found[0].before, found[1].before], [None, None]);
    assert_eq!(mark_of(&*store, "a").await, None);
}
