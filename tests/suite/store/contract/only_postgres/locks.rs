//! Row locks: in which order they are taken, how long they are waited for, and what a statement
//! finds that has waited.

use std::sync::Arc;

use fencepost::store::{Publication, Renewal};
use tokio::task::JoinHandle;

use super::super::{Home, batch, script};
use super::*;
use crate::support::{Must, joined};

/// A row's, that is: who notifies waits for one of the whole cluster.
const WAITS_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE wait_event IN ('tuple', 'transactionid') AND datname = current_database()";

/// A store in a database, a session that holds locks, and one that watches.
struct Rig {
    database: Store,
    store: Arc<dyn MarkStore>,
    holder: PgConnection,
    watcher: PgConnection,
}

impl Rig {
    async fn new() -> Option<Self> {
        let database = Store::postgres().await?;
        Some(Self {
            store: Home(database.clone()).open().await,
            holder: database.direct().await,
            watcher: database.direct().await,
            database,
        })
    }

    /// The holder has done this, and has not committed.
    async fn hold(&mut self, statement: &str) {
        sql(&mut self.holder, &format!("BEGIN; {statement}")).await;
    }

    async fn commit(&mut self) {
        sql(&mut self.holder, "COMMIT").await;
    }

    /// Plays a script in a task of its own.
    fn start(&self, script: impl Into<String>) -> JoinHandle<()> {
        let (home, store) = (Home(self.database.clone()), Arc::clone(&self.store));
        let script = script.into();
        tokio::spawn(async move { script::play_on(&home, store, &script).await })
    }

    async fn play(&self, script: &str) {
        joined(self.start(script)).await;
    }

    async fn until_it_waits(&mut self) {
        until(&mut self.watcher, "the call waits", WAITS_FOR_A_LOCK).await;
    }

    /// Plays a script that waits for the holder, which has done this and commits then.
    async fn behind(&mut self, statement: &str, script: &str) {
        self.hold(statement).await;
        let waiting = self.start(script);
        self.until_it_waits().await;
        self.commit().await;
        joined(waiting).await;
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
    let advance = format!("advance {} 1", keys.join(" 1; "));
    rig.play(&advance).await;
    keys.sort_unstable();
    let written = sqlx::query_scalar("SELECT resource FROM marks ORDER BY ctid");
    let written: Vec<String> = written.fetch_all(&mut rig.watcher).must().await;
    assert_eq!(written, keys);
    rig.hold("SELECT * FROM marks WHERE resource = 'k150' FOR UPDATE")
        .await;
    let waiting = rig.start(advance);
    rig.until_it_waits().await;
    let free = "SELECT resource FROM marks ORDER BY resource FOR UPDATE SKIP LOCKED";
    let free = sqlx::query_scalar(free).fetch_all(&mut rig.watcher);
    let free: Vec<String> = free.must().await;
    keys.retain(|key| key.as_str() > "k150");
    assert_eq!(free, keys);
    rig.commit().await;
    joined(waiting).await;
}

#[tokio::test]
async fn a_locked_row_is_not_waited_for_longer_than_half_the_timeout() {
    let url = or_return!(database().await);
    let timeout = Duration::from_secs(4);
    let store = PostgresStore::open(address(&url), "test", timeout, true);
    let store = store.must().await;
    advance(&store, ask("a", 1)).await;
    let mut shell = shell(&url).await;
    sql(&mut shell, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    for (lane, least, most) in [(Lane::Main(1), 1500, 4000), (Lane::Aside, 90, 1500)] {
        // A new connection is not part of the wait.
        store.advance(lane, batch(&[ask("c", 1)])).must().await;
        let start = tokio::time::Instant::now();
        let both = [ask("a", 2), ask("b", 2)];
        let locked = store.advance(lane, batch(&both)).await;
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
    let mut rig = or_return!(Rig::new().await);
    rig.play("advance a 5").await;
    for (company, answer) in [("", ""), ("; b 1", "; none")] {
        let newer = format!(
            "advance a 42 #42{company} = 41 1#42@42 2#41@41{answer}
             look a = 42 1#42@42 2#41@41"
        );
        rig.behind(&written(2, 41, 41), &newer).await;
        let answer = answer.replace("none", "1");
        let older = format!(
            "advance a 49 #49{company} = 50 2#50@50{answer}
             look a = 50 2#50@50"
        );
        rig.behind(&written(2, 50, 50), &older).await;
    }
}

/// A cede waits for no row. It removes the named epochs, and leaves the others in their order.
#[tokio::test]
async fn a_cede_leaves_out_the_rows_that_are_locked() {
    let mut rig = or_return!(Rig::new().await);
    let named = "c:1#4@5 b:1#2@5 a:1#2@5 b:1#4@5 b:1#7@5 missing:1#1@5 c:2#1@5";
    rig.play("advance a 5 #1..5").await;
    rig.play("advance b 5 #1..5").await;
    rig.play("advance c 5 #1..5").await;
    rig.hold("SELECT * FROM marks WHERE resource = 'a' FOR NO KEY UPDATE")
        .await;
    rig.play(&format!("cede {named} = b c")).await;
    rig.play("look a b = a: 5 1#1@5 1#2@5 1#3@5 1#4@5 1#5@5; b: 5 1#1@5 1#3@5 1#5@5")
        .await;
    rig.play("look c = 5 1#1@5 1#2@5 1#3@5 1#5@5").await;
    rig.commit().await;
    rig.play(&format!("cede {named} = a b c")).await;
    rig.play("look a b = a: 5 1#1@5 1#3@5 1#4@5 1#5@5; b: 5 1#1@5 1#3@5 1#5@5")
        .await;
}

/// Each writes the row as the other has left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cede_loses_no_epoch_that_is_opened_meanwhile() {
    const ROUNDS: i64 = 300;
    let rig = or_return!(Rig::new().await);
    let advances = (1..=ROUNDS).map(|n| format!("advance a 1 #{n}; b 1 #{n}\n"));
    let opened = rig.start(advances.collect::<String>());
    let mut ceded = 2;
    while ceded <= ROUNDS {
        if rig.open("a").await.contains(&ceded) {
            let one = [(key("a"), epoch(1, ceded, 1))];
            let done = rig.store.cede(&one).must().await;
            // Every other one is ceded.
            ceded += 2 * i64::from(!done.is_empty());
        }
    }
    joined(opened).await;
    let odd: Vec<i64> = (1..=ROUNDS).step_by(2).collect();
    assert_eq!(rig.open("a").await, odd);
    assert_eq!(rig.open("b").await, (1..=ROUNDS).collect::<Vec<_>>());
}

/// The override takes the row's lock first, so an advance that was there before it is seen.
#[tokio::test]
async fn an_override_sees_the_epoch_of_an_advance_it_waited_for() {
    let mut rig = or_return!(Rig::new().await);
    rig.play("advance a 5").await;
    let overriding = "
        override a 1 = EpochsOpen([Epoch { instance: 000000000009, opening: 1, token: Token(6) }])
        look a = 6 9#1@6
    ";
    rig.behind(&written(9, 1, 6), overriding).await;
}

/// Somebody who renews at the last moment lives.
#[tokio::test]
async fn a_renewal_under_way_outlives_the_declaration_that_waits_for_it() {
    let mut rig = or_return!(Rig::new().await);
    rig.play("join = 0").await;
    let renewal = "UPDATE instances SET renewals = renewals + 1";
    rig.behind(renewal, "dead 0 = false").await;
}

/// Either the one who replaces the route table sees the one who joins, or that one sees the new
/// table.
#[tokio::test]
async fn a_join_and_a_replacement_of_the_routes_see_each_other() {
    let mut rig = or_return!(Rig::new().await);
    let away = "sql CREATE TABLE away AS TABLE instances; DELETE FROM instances";
    rig.play(&format!("7: join = 0\n{away}")).await;
    let join = "INSERT INTO instances TABLE away; UPDATE namespaces SET era = era";
    rig.behind(join, "replace new = 7@0").await;
    rig.play("sql DELETE FROM instances").await;
    let replacement = "UPDATE namespaces SET routes = 'new'";
    rig.behind(replacement, "join = 0\nroutes = Some(new)")
        .await;
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
    let mut rig = or_return!(Rig::new().await);
    rig.play("advance a 5; b 5").await;
    // As a request of an equal token does it.
    rig.hold(&written(2, 7, 5)).await;
    rig.play("prune  1ms = Pruned { deleted: 1, open: 0, next: None, era: Some(1) }")
        .await;
    rig.commit().await;
    rig.play("prune  1ms = Pruned { deleted: 0, open: 1, next: None, era: None }")
        .await;

    // As a prune does it: a request waits meanwhile.
    let pruned = "DELETE FROM marks WHERE resource = 'a'";
    let made = "advance a 3 #1 = none 1#1@3\nlook a = 3 1#1@3";
    rig.behind(pruned, made).await;
    // One that may not make a mark makes none.
    let beyond = "advance a 9 #2 present; b 1 = none; none\nlook a =";
    rig.behind(pruned, beyond).await;
}
