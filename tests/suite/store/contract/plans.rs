//! The rows that statements read on Postgres: those that they name, whatever else is open, and
//! whatever the server's statistics say of it.

use fencepost::store::{Instances, Marks};
use std::time::Duration;

use fencepost::config::settings::Secret;
use fencepost::routing::{Needs, ResourceKey};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::{Ask, Batch, EpochRow};
use sqlx::Connection as _;

use super::{Must, TIMEOUT, instance, key, token};
use crate::support::postgres::Cluster;
use crate::support::sql::shell;
use crate::support::store::has_postgres;

/// How many epochs are open, and how many keys a statement names.
const OPEN: i64 = 100_000;
const NAMED: i64 = 500;
/// More than all statements together read when each finds its rows by their keys.
const MOST: i64 = 25_000;

async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(Secret::Literal(url.to_owned()), "test", TIMEOUT, true)
        .must()
        .await
}

async fn sql(url: &str, statement: &str) {
    let mut shell = shell(url).await;
    crate::support::sql::sql(&mut shell, statement).await;
    shell.close().must().await;
}

/// Rows and index entries.
const READ: &str = "SELECT ((SELECT sum(seq_tup_read) FROM pg_stat_user_tables) \
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes))::bigint";
/// Pages of tables and indexes.
const PAGES: &str = "SELECT (SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit) \
    FROM pg_statio_user_tables)::bigint";

/// How many [`READ`] or [`PAGES`] have been read by all sessions that have ended, once none is left
/// but those of the application `apart`. A session reports at its end.
async fn read_so_far(url: &str, what: &'static str, apart: &str) -> i64 {
    const LEFT: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid() \
        AND backend_type = 'client backend' AND application_name <> $1";
    let mut shell = shell(url).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let left: i64 = sqlx::query_scalar(LEFT)
            .bind(apart)
            .fetch_one(&mut shell)
            .must()
            .await;
        if left == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{left} are left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sqlx::query_scalar(what).fetch_one(&mut shell).must().await
}

fn resources(from: i64) -> Vec<ResourceKey> {
    (0..NAMED)
        .map(|n| key(&format!("r{:06}", from + n * 37)))
        .collect()
}

fn row(resource: &ResourceKey, opening: i64) -> EpochRow {
    EpochRow {
        resource: resource.clone(),
        instance: instance(1),
        opening,
        token: token(2),
    }
}

/// Every statement that names rows or goes through an instance's, at resources from `from` on.
async fn each_statement(store: &PostgresStore, from: i64) {
    let resources = resources(from);
    let asks: Vec<Ask> = (1..)
        .zip(&resources)
        .map(|(opening, resource)| Ask {
            resource: resource.clone(),
            token: token(2),
            opening: Some(OPEN + from + opening),
            spend: Some("a".to_owned()),
            needs: Needs {
                least: Some(token(1)),
                present: true,
            },
        })
        .collect();
    let found = store.advance(&instance(1), 0, &asks).await;
    assert_eq!(found.expect("an answer").len(), resources.len());
    let mut rows = store.epochs(&resources).must().await;
    rows.retain(|row| row.instance == instance(1) && row.token == token(2));
    assert_eq!(rows.len(), resources.len());
    let own = store.own_of(&instance(1), &resources).await;
    assert!(own.expect("an answer").len() >= resources.len());
    let marks = store.marks(&resources).must().await;
    assert_eq!(marks.len(), resources.len());
    store.close(&rows).must().await;
    let spends: Vec<_> = resources
        .iter()
        .map(|resource| (resource.clone(), token(2), "a".to_owned()))
        .collect();
    store.give_back(&spends).must().await;
    let lost: Vec<EpochRow> = (1..)
        .zip(&resources)
        .map(|(opening, resource)| row(resource, -opening))
        .collect();
    store.reopen(&lost).must().await;
    store.close(&lost).must().await;
    store.own(&instance(1), None, 1024).must().await;
    store.instances().must().await;
    store.recorded().must().await;
    let after = (key("r000000"), 0);
    let me = instance(1);
    let closed = store.close_own(&me, Some(&after), 1024, &[3, 4]);
    closed.must().await;
    let burial = store.bury(&instance(2), &resources, None).await;
    assert!(burial.expect("an answer").freed.len() >= resources.len());
}

/// Two instances have this many epochs open, one of them is dead.
async fn fill(url: &str) {
    let (one, two) = (instance(1), instance(2));
    sql(
        url,
        &format!(
            "INSERT INTO epochs SELECT 'test', 'r' || to_char(g, 'FM000000'), i, g, 1 \
             FROM generate_series(1, {OPEN} / 2) AS g, unnest(ARRAY['{one}', '{two}']) AS i; \
             INSERT INTO marks SELECT 'test', 'r' || to_char(g, 'FM000000'), 1, NULL, NULL, 0, now() \
             FROM generate_series(1, {OPEN} / 2) AS g"
        ),
    )
    .await;
}

/// The first sessions have run their statements while nothing was open, more often than it takes
/// for a plan to be kept; then this many epochs are open, and the server has not counted them. The
/// second ones begin when it has.
#[tokio::test]
async fn what_is_read_does_not_grow_with_what_is_open() {
    if !has_postgres() {
        return;
    }
    let url = Cluster::shared().create_database().await;
    let store = open(&url).await;
    sql(
        &url,
        "ALTER TABLE epochs SET (autovacuum_enabled = off); \
         ALTER TABLE marks SET (autovacuum_enabled = off)",
    )
    .await;
    for turn in 0..7 {
        let resources = resources(turn);
        let rows: Vec<EpochRow> = resources.iter().map(|r| row(r, turn)).collect();
        store.epochs(&resources).must().await;
        store.marks(&resources).must().await;
        store.own_of(&instance(1), &resources).must().await;
        store.close(&rows).must().await;
        store.bury(&instance(2), &resources, None).must().await;
    }
    // No TRUNCATE: it would have the server plan again.
    sql(&url, "DELETE FROM epochs; DELETE FROM marks").await;
    fill(&url).await;
    each_statement(&store, 1).await;
    drop(store);
    let uncounted = read_so_far(&url, READ, "none").await;
    assert!(uncounted < MOST, "{uncounted} were read");
    sql(&url, "TRUNCATE epochs, marks").await;
    fill(&url).await;
    sql(&url, "ANALYZE epochs; ANALYZE marks").await;
    let store = open(&url).await;
    each_statement(&store, 2).await;
    drop(store);
    let counted = read_so_far(&url, READ, "none").await - uncounted;
    assert!(counted < MOST, "{counted} were read");
}

/// The read behind an advance, planned while nothing is open, finds what others have open by the
/// keys of the batch. It passes nothing else of theirs, whether their ids come before or after.
#[tokio::test]
async fn a_batch_does_not_read_what_is_open_elsewhere() {
    const KEYS: i64 = 50;
    let url = Cluster::shared().create_database().await;
    let store = open(&url).await;
    let batch = async |me: u64, resource: String, opening: i64| {
        let ask = Ask {
            resource: key(&resource),
            token: token(2),
            opening: Some(opening),
            spend: None,
            needs: Needs::default(),
        };
        let batch = Batch {
            instance: &instance(me),
            era: 0,
            asks: &[ask],
            closes: &[],
            looks: &[],
            hasty: false,
        };
        let done = store.batch(batch).must().await;
        done.epochs.expect("the read behind it")
    };
    assert_eq!(batch(1, "first".to_owned(), 1).await, []);
    fill(&url).await;
    let before = read_so_far(&url, PAGES, "fencepost").await;
    for n in 1..=KEYS {
        for me in [0, 3] {
            let open = batch(me, format!("r{n:06}"), n).await;
            let older = open.iter().filter(|row| row.token < token(2));
            assert_eq!(older.count(), 2);
        }
        for me in [0, 3] {
            assert_eq!(batch(me, format!("new-{me}-{n}"), n).await, []);
        }
    }
    drop(store);
    let pages = read_so_far(&url, PAGES, "none").await - before;
    // Some 30 for each batch; several hundred where it passes the rows of the others.
    assert!(pages < 4 * KEYS * 100, "{pages} were read");
}
