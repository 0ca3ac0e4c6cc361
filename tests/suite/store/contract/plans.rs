//! The rows that statements read on Postgres: those that they name, however many marks and
//! instances there are, and whatever the server's statistics say of them.

use std::sync::Arc;

use fencepost::store::MarkStore;

use super::{Home, Must, instance, key, script};
use crate::support::{Store, or_return};

/// The marks, the instances that have settled, and the keys that a statement names.
const MARKS: i64 = 50_000;
const SETTLED: i64 = 10_000;
const NAMED: usize = 500;
/// More than all statements together read when each finds its rows by their keys.
const MOST: i64 = 25_000;

/// Rows and index entries.
const READ: &str = "SELECT ((SELECT sum(seq_tup_read) FROM pg_stat_user_tables) \
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes))::bigint";
/// The other sessions of clients: each reports what it has read at its end.
const LEFT: &str = "SELECT (count(*) = 0)::int::bigint FROM pg_stat_activity \
    WHERE datname = current_database() AND pid <> pg_backend_pid() \
    AND backend_type = 'client backend'";

/// The rows that all sessions have read, once they have ended.
async fn read_so_far(database: &Store) -> i64 {
    database.until(LEFT, 1).await;
    database.number(READ).await
}

/// Every statement that names rows, with resources from this one on, so many of which have a mark.
async fn each_statement(home: &Home, store: &Arc<dyn MarkStore>, from: usize, marks: usize) {
    let keys: Vec<_> = (0..NAMED)
        .map(|n| format!("r{:06}", from + n * 37))
        .collect();
    let each = |line: &str, between| {
        let lines = keys.iter().map(|key| line.replace("KEY", key));
        lines.collect::<Vec<_>>().join(between)
    };
    let ask = "KEY 2 #50001 !a >=1 present";
    let script = format!(
        "advance {asks}
         advance {alone}
         cede {epochs}
         give r000001 2 a
         repair {repairs}
         renew 0
         2: dead -1
         3: settle",
        asks = each(ask, "; "),
        alone = ask.replace("KEY", &keys[0]),
        epochs = each("KEY:1#50001@2", " "),
        repairs = each("KEY 3 1#50001@2", "; "),
    );
    let resources: Vec<_> = keys.iter().map(|resource| key(resource)).collect();
    assert_eq!(store.look(&resources).must().await.len(), marks);
    script::play_on(home, Arc::clone(store), &script).await;
    assert!(store.instances().must().await.len() < 10);
}

/// Each mark has the epochs of two instances, one of which is on record.
async fn fill(database: &Store) {
    let (two, four) = (instance(2).get(), instance(4).get());
    let rows = format!(
        "INSERT INTO marks SELECT 'test', 'r' || to_char(g, 'FM000000'), 1, NULL, NULL, 0, now(), \
             0, ARRAY[{two}, g, 1, {four}, g, 1] \
         FROM generate_series(1, {MARKS}) AS g; \
         INSERT INTO instances SELECT 'test', g, 2, 0, 0, 0, 0, '', 9223372036854775807, '{{}}' \
         FROM generate_series(1, {SETTLED}) AS g"
    );
    database.execute(&rows).await;
}

/// The first sessions have planned their statements while there was nothing; then the tables are
/// filled, and the server has not counted them again. The second ones begin when it has.
#[tokio::test]
async fn what_is_read_does_not_grow_with_the_tables() {
    let database = or_return!(Store::postgres().await);
    let home = Home(database.clone());
    let store = home.open().await;
    for table in ["marks", "instances"] {
        let alone = format!("ALTER TABLE {table} SET (autovacuum_enabled = off)");
        database.execute(&alone).await;
        // The server has counted, and there was nothing.
        database.execute(&format!("VACUUM ANALYZE {table}")).await;
    }
    for of in [1, 2] {
        store.join(instance(of), &script::terms()).must().await;
    }
    each_statement(&home, &store, 1, 0).await;
    // No TRUNCATE: it would have the server plan again.
    database.execute("DELETE FROM marks").await;
    fill(&database).await;
    each_statement(&home, &store, 1, NAMED).await;
    drop(store);
    let uncounted = read_so_far(&database).await;
    assert!(uncounted < MOST, "{uncounted} were read");
    let empty = "TRUNCATE marks; DELETE FROM instances WHERE state = 2";
    database.execute(empty).await;
    fill(&database).await;
    database.execute("ANALYZE marks; ANALYZE instances").await;
    let before = read_so_far(&database).await;
    let store = home.open().await;
    each_statement(&home, &store, 2, NAMED).await;
    drop(store);
    let counted = read_so_far(&database).await - before;
    assert!(counted < MOST, "{counted} were read");
}
