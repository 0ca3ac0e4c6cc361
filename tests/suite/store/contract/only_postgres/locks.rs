//! Row locks: in which order they are taken, how long they are waited for, and what a statement
//! finds that has waited.

use std::sync::Arc;

use fencepost::store::{PruneStep, Publication, Renewal};
use tokio::task::JoinHandle;

use super::*;
use crate::support::Must;

/// A row's, that is: who notifies waits for one of the whole cluster.
const WAITS_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE wait_event IN ('tuple', 'transactionid') AND datname = current_database()";

/// A store, a session that holds locks, and one that watches.
struct Rig {
    store: Arc<PostgresStore>,
    holder: PgConnection,
    watcher: PgConnection,
}

impl Rig {
    async fn new() -> Option<Self> {
        let (url, store) = fresh().await?;
        Some(Self {
            store: Arc::new(store),
            holder: shell(&url).await,
            watcher: shell(&url).await,
        })
    }

    /// One in which `a` has a mark of 5.
    async fn with_5() -> Option<Self> {
        let rig = Self::new().await?;
        advance(&*rig.store, ask("a", 5)).await;
        Some(rig)
    }

    /// The holder has done this, and has not committed.
    async fn hold(&mut self, statement: &str) {
        sql(&mut self.holder, &format!("BEGIN; {statement}")).await;
    }

    async fn commit(&mut self) {
        sql(&mut self.holder, "COMMIT").await;
    }

    /// Makes a call from a task of its own.
    fn start<F: Future<Output: Send + 'static> + Send + 'static>(
        &self,
        call: impl FnOnce(Arc<PostgresStore>) -> F,
    ) -> JoinHandle<F::Output> {
        tokio::spawn(call(Arc::clone(&self.store)))
    }

    async fn until_it_waits(&mut self) {
        until(&mut self.watcher, "the call waits", WAITS_FOR_A_LOCK).await;
    }

    /// Makes a call that waits for the holder, which has done this and commits then. Returns the
    /// answer.
    async fn behind<T, F>(
        &mut self,
        statement: &str,
        call: impl FnOnce(Arc<PostgresStore>) -> F,
    ) -> T
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.hold(statement).await;
        let waiting = self.start(call);
        self.until_it_waits().await;
        self.commit().await;
        waiting.must().await.expect("an answer")
    }

    /// As [`Self::behind`]: what a batch of these asks finds.
    async fn batch_behind(&mut self, statement: &str, asks: Vec<Ask>) -> Vec<Found> {
        let call =
            |store: Arc<PostgresStore>| async move { batch(&store, Lane::Main(0), &asks).await };
        self.behind(statement, call).await
    }

    /// The openings in the row of a resource.
    async fn open(&self, resource: &str) -> Vec<i64> {
        let open = epochs_of(&*self.store, resource).await;
        open.iter().map(|epoch| epoch.opening).collect()
    }
}

/// The row of `a`, with this mark and an epoch of that token and opening of this instance.
fn written(of: u64, opening: i64, number: i64) -> String {
    let of = instance(of).get();
    format!(
        "UPDATE marks SET token = {number}, open = ARRAY[{of}, {opening}, {number}] \
         WHERE resource = 'a'"
    )
}

/// Rows are written, and so locked, in the byte order of their keys: for new rows the table shows
/// it, for old ones a session that holds one of them.
#[tokio::test]
async fn rows_are_locked_in_key_order() {
    let mut rig = or_return!(Rig::new().await);
    let mut keys: Vec<String> = (0..300).map(|n| format!("k{}", (n * 7919) % 300)).collect();
    keys.extend(["Z", "a", "é", "E", "_"].map(str::to_owned));
    let asks: Vec<_> = keys.iter().map(|key| ask(key, 1)).collect();
    batch(&rig.store, Lane::Main(0), &asks).must().await;
    keys.sort_unstable();
    let written = sqlx::query_scalar("SELECT resource FROM marks ORDER BY ctid");
    let written: Vec<String> = written.fetch_all(&mut rig.watcher).must().await;
    assert_eq!(written, keys);
    let held = "k150";
    rig.hold(&format!(
        "SELECT * FROM marks WHERE resource = '{held}' FOR UPDATE"
    ))
    .await;
    let waiting = rig.start(|store| async move { batch(&store, Lane::Main(0), &asks).await });
    rig.until_it_waits().await;
    let free = "SELECT resource FROM marks ORDER BY resource FOR UPDATE SKIP LOCKED";
    let free: Vec<String> = sqlx::query_scalar(free)
        .fetch_all(&mut rig.watcher)
        .must()
        .await;
    keys.retain(|key| key.as_str() > held);
    assert_eq!(free, keys);
    rig.commit().await;
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
        let mut rig = or_return!(Rig::with_5().await);
        for (before, number, after) in [(41, 42, 42), (50, 49, 50)] {
            let mut asks = vec![opening("a", number, number)];
            asks.extend(in_company.then(|| ask("b", 1)));
            let mut found = rig
                .batch_behind(&written(2, before, before), asks)
                .await
                .remove(0);
            found.open.sort();
            assert_eq!(found.before, Some(token(before)));
            let mut open = vec![epoch(2, before, before)];
            open.extend((after == number).then(|| epoch(1, number, number)));
            open.sort();
            assert_eq!(found.open, open);
            assert_eq!(epochs_of(&*rig.store, "a").await, open);
            assert_eq!(mark_of(&*rig.store, "a").await, Some(after));
        }
    }
}

/// A cede waits for no row. It removes the named epochs, and leaves the others in their order.
#[tokio::test]
async fn a_cede_leaves_out_the_rows_that_are_locked() {
    let mut rig = or_return!(Rig::new().await);
    for resource in ["a", "b", "c"] {
        for number in 1..=5 {
            advance(&*rig.store, opening(resource, number, number)).await;
        }
    }
    let named = [
        ("c", 4),
        ("b", 2),
        ("a", 2),
        ("b", 4),
        ("b", 7),
        ("missing", 1),
    ];
    let named = named.map(|(resource, number)| (key(resource), epoch(1, number, number)));
    let all = [&named[..], &[(key("c"), epoch(2, 1, 1))]].concat();
    rig.hold("SELECT * FROM marks WHERE resource = 'a' FOR NO KEY UPDATE")
        .await;
    assert_eq!(rig.store.cede(&all).must().await, [key("b"), key("c")]);
    assert_eq!(rig.open("a").await, [1, 2, 3, 4, 5]);
    assert_eq!(rig.open("b").await, [1, 3, 5]);
    assert_eq!(rig.open("c").await, [1, 2, 3, 5]);
    rig.commit().await;
    assert_eq!(rig.store.cede(&all).must().await, ["a", "b", "c"].map(key));
    assert_eq!(rig.open("a").await, [1, 3, 4, 5]);
    assert_eq!(rig.open("b").await, [1, 3, 5]);
}

/// Each writes the row as the other has left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cede_loses_no_epoch_that_is_opened_meanwhile() {
    const ROUNDS: i64 = 300;
    let rig = or_return!(Rig::new().await);
    let opened = rig.start(async move |store| {
        for number in 1..=ROUNDS {
            let asks = [opening("a", 1, number), opening("b", 1, number)];
            batch(&store, Lane::Main(0), &asks).must().await;
        }
    });
    let mut ceded = 2;
    while ceded <= ROUNDS {
        if rig.open("a").await.contains(&ceded) {
            let one = [(key("a"), epoch(1, ceded, 1))];
            let done = rig.store.cede(&one).must().await;
            // Every other one is ceded.
            ceded += 2 * i64::from(!done.is_empty());
        }
    }
    opened.must().await;
    let odd: Vec<i64> = (1..=ROUNDS).step_by(2).collect();
    assert_eq!(rig.open("a").await, odd);
    assert_eq!(rig.open("b").await, (1..=ROUNDS).collect::<Vec<_>>());
}

/// Notifications that a server refuses, since their queue is full or for another reason, fail no
/// request.
#[tokio::test]
async fn a_notification_that_is_refused_costs_its_cede_alone() {
    let (url, store) = or_return!(fresh().await);
    drop(store);
    let refuse = "DO $$ BEGIN EXECUTE format( \
         'ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$; \
         CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS \
         $$ BEGIN RAISE 'too many notifications in the NOTIFY queue'; END $$";
    sql(&mut shell(&url).await, refuse).await;
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
    let mut rig = or_return!(Rig::with_5().await);
    rig.hold("SELECT * FROM marks FOR UPDATE").await;
    let waiting = rig.start(|store| async move { advance(&*store, opening("a", 7, 1)).await });
    rig.until_it_waits().await;
    waiting.abort();
    assert!(waiting.await.is_err());
    // The next call is not stuck behind the lost one's connection.
    assert_eq!(advance(&*rig.store, ask("b", 1)).await.before, None);
    assert_eq!(number(&mut rig.watcher, WAITS_FOR_A_LOCK).await, 1);
    rig.commit().await;
    let committed = "SELECT count(*) FROM marks WHERE resource = 'a' AND token = 7 AND open[2] = 1";
    until(&mut rig.watcher, "the late commit", committed).await;
    assert_eq!(mark_of(&*rig.store, "a").await, Some(7));
    // And its session ends, with nobody left to answer.
    let gone = "SELECT (count(*) <= 4)::int::bigint FROM pg_stat_activity \
        WHERE application_name LIKE 'fencepost%' AND datname = current_database()";
    until(&mut rig.watcher, "the lost session is gone", gone).await;
}

/// The override takes the row's lock first, so an advance that was there before it is seen.
#[tokio::test]
async fn an_override_sees_the_epoch_of_an_advance_it_waited_for() {
    let mut rig = or_return!(Rig::with_5().await);
    let overriding = |store: Arc<PostgresStore>| async move {
        let by = signed("why", "me");
        store.override_mark(&key("a"), token(1), &by).await
    };
    let refused = rig.behind(&written(9, 1, 6), overriding).await;
    assert_eq!(refused, Override::EpochsOpen(vec![epoch(9, 1, 6)]));
    assert_eq!(mark_of(&*rig.store, "a").await, Some(6));
}

/// Somebody who renews at the last moment lives.
#[tokio::test]
async fn a_renewal_under_way_outlives_the_declaration_that_waits_for_it() {
    let mut rig = or_return!(Rig::new().await);
    rig.store.join(instance(1), &Terms::default()).must().await;
    let renewal = "UPDATE instances SET renewals = renewals + 1";
    let declaring =
        |store: Arc<PostgresStore>| async move { store.declare_dead(instance(1), 0).await };
    assert!(!rig.behind(renewal, declaring).await);
}

/// Either the one who replaces the route table sees the one who joins, or that one sees the new
/// table.
#[tokio::test]
async fn a_join_and_a_replacement_of_the_routes_see_each_other() {
    let mut rig = or_return!(Rig::new().await);
    let join = "INSERT INTO instances (namespace, id, state, renewals, lease_ms, settle_ms, \
             undelivered_ms, routes, closed_below, left_open) \
         VALUES ('test', 7, 0, 0, 1, 1, 1, '', 0, '{}'); UPDATE namespaces SET era = era";
    let replacing = |store: Arc<PostgresStore>| async move { store.replace_routes("new").await };
    assert_eq!(rig.behind(join, replacing).await.len(), 1);
    sql(&mut rig.holder, "DELETE FROM instances").await;

    let replacement = "UPDATE namespaces SET routes = 'new'";
    let joining = |store: Arc<PostgresStore>| async move {
        store.join(instance(1), &Terms::default()).await?;
        store.routes().await
    };
    let recorded = rig.behind(replacement, joining).await;
    assert_eq!(recorded.as_deref(), Some("new"));
}

/// Else an instance whose row a failover has lost would be on record again without having waited
/// for the replacement.
#[tokio::test]
async fn a_join_that_does_not_get_the_lock_leaves_no_row() {
    let mut rig = or_return!(Rig::new().await);
    rig.hold("UPDATE namespaces SET routes = 'new'").await;
    let terms = Terms::default();
    let joined = rig.store.join(instance(1), &terms).await;
    assert!(
        matches!(joined, Err(StoreError::LockTimeout(_))),
        "{joined:?}"
    );
    let rows = "SELECT count(*) FROM instances";
    assert_eq!(number(&mut rig.holder, rows).await, 0);
    rig.commit().await;
    let none = Publication::default();
    let renewal = rig.store.renew(instance(1), &terms, &none).must().await;
    assert_eq!(renewal, Renewal::Unknown);
}

/// A prune leaves out the row that a request has locked, and a request that waits for a prune's row
/// makes the mark again: no epoch is ever open without a mark.
#[tokio::test]
async fn a_prune_and_a_request_of_one_resource_take_turns() {
    let mut rig = or_return!(Rig::with_5().await);
    advance(&*rig.store, ask("b", 5)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let step = PruneStep {
        prefix: String::new(),
        after: None,
        unchanged: Duration::from_millis(1),
        dry_run: false,
        by: signed("a test", "me"),
    };
    // As a request of an equal token does it.
    rig.hold(&written(2, 7, 5)).await;
    let done = rig.store.prune(&step).must().await;
    assert_eq!((done.deleted, done.open), (1, 0), "b alone");
    rig.commit().await;
    let done = rig.store.prune(&step).must().await;
    assert_eq!((done.deleted, done.open), (0, 1));

    // As a prune does it: a request waits meanwhile.
    let pruned = "DELETE FROM marks WHERE resource = 'a'";
    let found = rig.batch_behind(pruned, vec![opening("a", 3, 1)]).await;
    assert_eq!(found[0].before, None);
    assert_eq!(mark_of(&*rig.store, "a").await, Some(3));
    assert_eq!(epochs_of(&*rig.store, "a").await, [epoch(1, 1, 3)]);

    // One that may not make a mark makes none.
    let mut beyond = opening("a", 9, 2);
    beyond.needs.present = true;
    let found = rig.batch_behind(pruned, vec![beyond, ask("b", 1)]).await;
    assert_eq!([found[0].before, found[1].before], [None, None]);
    assert_eq!(mark_of(&*rig.store, "a").await, None);
}
