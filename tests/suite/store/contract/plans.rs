//! The rows that statements read on Postgres: those that they name, however many marks and
//! instances there are, and whatever the server's statistics say of them.

use fencepost::routing::{Needs, ResourceKey};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::{
    Administration, Ask, Batch, Epoch, Instances, Lane, MarkStore, Publication, Repair, Terms,
};
use sqlx::Connection as _;

use super::{Must, TIMEOUT, instance, key, token};
use crate::support::postgres::Cluster;
use crate::support::sql::{number, shell};
use crate::support::store::{address, has_postgres};

/// How many marks there are, how many instances that have settled, and how many keys a statement
/// names.
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

async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(address(url), "test", TIMEOUT, true)
        .must()
        .await
}

async fn sql(url: &str, statement: &str) {
    let mut shell = shell(url).await;
    crate::support::sql::sql(&mut shell, statement).await;
    shell.close().must().await;
}

/// How much all sessions have read, once they have ended.
async fn read_so_far(url: &str) -> i64 {
    let mut shell = shell(url).await;
    crate::support::sql::until(&mut shell, "all have ended", LEFT).await;
    number(&mut shell, READ).await
}

/// Every statement that names rows, with these resources.
async fn each_statement(store: &PostgresStore, resources: &[ResourceKey], found: usize) {
    let me = instance(1);
    let epoch = Epoch {
        instance: me,
        opening: MARKS + 1,
        token: token(2),
    };
    let asks = |present| {
        let ask = move |resource: &ResourceKey| Ask {
            resource: resource.clone(),
            token: epoch.token,
            opening: Some(epoch.opening),
            spend: Some("a".to_owned()),
            needs: Needs {
                least: Some(token(1)),
                present,
            },
        };
        resources.iter().map(ask).collect::<Vec<Ask>>()
    };
    for asks in [&asks(true), &asks(true)[..1]] {
        let batch = Batch {
            instance: me,
            era: 0,
            asks,
            used: &[],
            next: 0,
        };
        for lane in [Lane::Main(0), Lane::Aside] {
            let answer = store.advance(lane, batch).must().await;
            assert_eq!(answer.len(), asks.len());
        }
    }
    assert_eq!(store.look(resources).must().await.len(), found);
    let named: Vec<_> = resources.iter().map(|key| (key.clone(), epoch)).collect();
    assert_eq!(store.cede(&named).must().await.len(), found);
    store.give_back(&resources[0], token(2), "a").must().await;
    let repair = |resource: &ResourceKey| Repair {
        resource: resource.clone(),
        token: token(3),
        era: 0,
        spend: None,
        open: vec![epoch],
    };
    let repairs: Vec<Repair> = resources.iter().map(repair).collect();
    assert_eq!(store.repair(&repairs).must().await.len(), resources.len());
    let (terms, publication) = (Terms::default(), Publication::default());
    store.renew(me, &terms, &publication).must().await;
    assert!(store.instances().must().await.len() < 10);
    store.declare_dead(instance(2), -1).must().await;
    store.settle(instance(3)).must().await;
}

/// Each mark has the epochs of two instances, one of which is on record.
async fn fill(url: &str) {
    let (two, four) = (instance(2).get(), instance(4).get());
    sql(
        url,
        &format!(
            "INSERT INTO marks SELECT 'test', 'r' || to_char(g, 'FM000000'), 1, NULL, NULL, 0, now(), 0, \
                 ARRAY[{two}, g, 1, {four}, g, 1] \
             FROM generate_series(1, {MARKS}) AS g; \
             INSERT INTO instances SELECT 'test', g, 2, 0, 0, 0, 0, '', 9223372036854775807, '{{}}' \
             FROM generate_series(1, {SETTLED}) AS g"
        ),
    )
    .await;
}

fn resources(from: usize) -> Vec<ResourceKey> {
    (0..NAMED)
        .map(|n| key(&format!("r{:06}", from + n * 37)))
        .collect()
}

/// The first sessions have planned their statements while there was nothing; then the tables are
/// filled, and the server has not counted them again. The second ones begin when it has.
#[tokio::test]
async fn what_is_read_does_not_grow_with_the_tables() {
    if !has_postgres() {
        return;
    }
    let url = Cluster::shared().create_database().await;
    let store = open(&url).await;
    sql(
        &url,
        "ALTER TABLE marks SET (autovacuum_enabled = off); \
         ALTER TABLE instances SET (autovacuum_enabled = off)",
    )
    .await;
    // The server has counted, and there was nothing.
    sql(&url, "VACUUM ANALYZE marks").await;
    sql(&url, "VACUUM ANALYZE instances").await;
    store.join(instance(1), &Terms::default()).must().await;
    store.join(instance(2), &Terms::default()).must().await;
    each_statement(&store, &resources(1), 0).await;
    // No TRUNCATE: it would have the server plan again.
    sql(&url, "DELETE FROM marks").await;
    fill(&url).await;
    each_statement(&store, &resources(1), NAMED).await;
    drop(store);
    let uncounted = read_so_far(&url).await;
    assert!(uncounted < MOST, "{uncounted} were read");
    sql(
        &url,
        "TRUNCATE marks; DELETE FROM instances WHERE state = 2",
    )
    .await;
    fill(&url).await;
    sql(&url, "ANALYZE marks; ANALYZE instances").await;
    let before = read_so_far(&url).await;
    let store = open(&url).await;
    each_statement(&store, &resources(2), NAMED).await;
    drop(store);
    let counted = read_so_far(&url).await - before;
    assert!(counted < MOST, "{counted} were read");
}
