//! Row locks: in which order they are taken, how long they are waited for, and what a statement
//! finds that has waited.

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
    store.advance(&instance(1), 0, &asks).must().await;
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
        store.advance(&instance(1), 0, &asks).await
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
    let store = open_within(&url, Duration::from_secs(2)).must().await;
    advance(&store, ask("a", 1)).await;
    let mut shell = shell(&url).await;
    sql(&mut shell, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    let locked = store
        .advance(&instance(1), 0, &[ask("a", 2), ask("b", 2)])
        .await
        .expect_err("the row is locked");
    assert!(matches!(locked, StoreError::LockTimeout(_)), "{locked}");
    // The batch was rolled back as a whole.
    assert_eq!(advance(&store, ask("b", 3)).await.before, None);
    let keys = [key("a"), key("b"), key("c")];
    let among = async || store.locked(&keys).must().await;
    assert_eq!(among().await, [key("a")]);
    sql(&mut shell, "ROLLBACK").await;
    assert_eq!(among().await, []);
    assert_eq!(advance(&store, ask("a", 2)).await.before, Some(token(1)));
}

/// A statement that waited for a lock sees all commits before it got it, not its snapshot.
#[tokio::test]
async fn a_statement_that_waited_finds_what_is_there_when_it_goes_on() {
    let (store, mut holder, mut watcher) =
        or_return!(locked("BEGIN; UPDATE marks SET token = 8").await);
    let waiting = beside(&store, |store| async move {
        advance(&*store, opening("a", 7, 1)).await
    });
    until(&mut watcher, "the advance waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let found = waiting.must().await;
    assert_eq!(found.before, Some(token(8)));
    assert_eq!(epochs_of(&*store, "a").await, []);
}

/// Reads by operators while the writer works cost neither of them a connection: after a new
/// one, the writer would have to ask whether it is another server's.
#[tokio::test]
async fn people_who_look_leave_the_lane_its_connection() {
    let (url, store) = or_return!(fresh().await);
    let store = Arc::new(store);
    advance(&*store, opening("a", 5, 1)).await;
    assert_eq!(mark_of(&*store, "a").await, Some(5));
    let made = store.connections();
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(&mut holder, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    let waiting = beside(&store, |store| async move {
        advance(&*store, ask("a", 6)).await
    });
    until(&mut watcher, "the advance waits", WAITS_FOR_A_LOCK).await;
    let open = store.open_epochs(&key("a")).must().await;
    assert_eq!(open, [epoch("a", 1, 1, 5)]);
    sql(&mut holder, "COMMIT").await;
    assert_eq!(waiting.must().await.before, Some(token(5)));
    assert_eq!(store.connections(), made);
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
        "SELECT count(*) FROM epochs WHERE token = 7 AND opening = 1",
    )
    .await;
    assert_eq!(mark_of(&*store, "a").await, Some(7));
    // And its session ends, with nobody left to answer.
    until(
        &mut watcher,
        "the lost session is gone",
        "SELECT (count(*) <= 3)::int::bigint FROM pg_stat_activity \
         WHERE application_name LIKE 'fencepost%' AND datname = current_database()",
    )
    .await;
}

/// The override takes the row's lock first, so an advance that was there before it is seen.
#[tokio::test]
async fn an_override_sees_the_epoch_of_an_advance_it_waited_for() {
    let uncommitted = format!(
        "BEGIN; UPDATE marks SET token = 6; INSERT INTO epochs VALUES ('test', 'a', '{}', 1, 6)",
        instance(9)
    );
    let (store, mut holder, mut watcher) = or_return!(locked(&uncommitted).await);
    let overriding = beside(&store, |store| async move {
        store.override_mark(&key("a"), token(1), "why", "me").await
    });
    until(&mut watcher, "the override waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let refused = overriding.must().await.expect("an answer");
    assert_eq!(refused, Override::EpochsOpen(vec![epoch("a", 9, 1, 6)]));
    assert_eq!(mark_of(&*store, "a").await, Some(6));
}

/// Somebody who renews at the last moment lives.
#[tokio::test]
async fn a_renewal_under_way_outlives_the_declaration_that_waits_for_it() {
    let (url, store) = or_return!(fresh().await);
    let store = Arc::new(store);
    store.join(&instance(1), &Terms::default()).must().await;
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(
        &mut holder,
        "BEGIN; UPDATE instances SET renewals = renewals + 1",
    )
    .await;
    let declaring = beside(&store, |store| async move {
        store.declare_dead(&instance(1), 0).await
    });
    until(&mut watcher, "the declaration waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    assert!(!declaring.must().await.expect("an answer"));
}

/// A trigger notes what the session that writes marks has set.
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
        "BEGIN; INSERT INTO instances \
             (namespace, id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead) \
         VALUES ('test', 'early', 0, 1, 1, 1, '', false); UPDATE namespaces SET era = era",
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
            store.join(&instance(1), &Terms::default()).await?;
            store.routes().await
        }
    });
    until(&mut watcher, "the join waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let recorded = joining.must().await.expect("an answer");
    assert_eq!(recorded.as_deref(), Some("new"));
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
        reason: "a test".to_owned(),
        actor: "me".to_owned(),
    };
    // As a request does it: the mark's row is locked before the epoch is open.
    sql(
        &mut holder,
        "BEGIN; UPDATE marks SET token = token WHERE resource = 'a'",
    )
    .await;
    let done = store.prune(&step).must().await;
    assert_eq!((done.deleted, done.open), (1, 0), "b alone");
    sql(&mut holder, "ROLLBACK").await;

    // As a prune does it: a request waits meanwhile.
    sql(&mut holder, "BEGIN; DELETE FROM marks WHERE resource = 'a'").await;
    let store = Arc::new(store);
    let waiting = beside(&store, |store| async move {
        store.advance(&instance(1), 0, &[opening("a", 3, 1)]).await
    });
    until(&mut shell, "the request waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let found = waiting.must().await.expect("an answer");
    assert_eq!(found[0].before, None);
    assert_eq!(mark_of(&*store, "a").await, Some(3));
    assert_eq!(epochs_of(&*store, "a").await, [epoch("a", 1, 1, 3)]);
}
