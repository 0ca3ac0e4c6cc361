//! A store of version 0.1.0, which has recorded the path and the template of each route and no
//! more.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr as _};

use super::{ACCEPT, ORDERS, routes};
use crate::support::{Config, Proxy, Store, Upstream, over_both_stores, put};

/// The rows of 0.1.0 for the route [`ORDERS`], and for one that is long gone.
const ROWS: &str = "
    INSERT INTO namespaces (namespace, era) VALUES ('NAMESPACE', 0);
    INSERT INTO templates (namespace, path, template) VALUES
        ('NAMESPACE', '/orders/{id}/{*rest}', 'order:{id}'),
        ('NAMESPACE', '/orders/{id}/items', 'gone:{id}');
    INSERT INTO marks (namespace, resource, token, era, changed_at)
        VALUES ('NAMESPACE', 'order:7', 42, 0, NOW)";

/// The first version's migrations.
fn migrator(engine: &str) -> Migrator {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("src/store/migrations/{engine}/0001_marks.sql"));
    let text = std::fs::read_to_string(file).expect("the first migration");
    let sql = AssertSqlSafe(text).into_sql_str();
    let first = Migration::new(1, "marks".into(), MigrationType::Simple, sql, false);
    let mut migrator = Migrator::with_migrations(vec![first]);
    migrator.dangerous_set_table_name("fencepost_migrations");
    migrator
}

/// Makes the store, as that version has left it.
async fn older(store: &Store) {
    let rows = |namespace: &str, now: &str| {
        let rows = ROWS.replace("NAMESPACE", namespace).replace("NOW", now);
        sqlx::raw_sql(AssertSqlSafe(rows))
    };
    if store.is_shared() {
        let mut shell = store.direct().await;
        let migrated = migrator("postgres")
            .run_direct(None, &mut shell, false)
            .await;
        migrated.expect("the first schema");
        rows("orders", "now()")
            .execute(&mut shell)
            .await
            .expect("rows");
    } else {
        let mut shell = store.file().await;
        let migrated = migrator("sqlite").run_direct(None, &mut shell, false).await;
        migrated.expect("the first schema");
        rows("default", "0")
            .execute(&mut shell)
            .await
            .expect("rows");
        shell.close().await.expect("closed");
    }
}

/// A schema of 0.1.0 stays while a proxy of it renews, which waits for less after a death.
#[tokio::test]
async fn no_upgrade_beside_a_proxy_of_0_1_0() {
    let Some(store) = Store::postgres("no_upgrade_beside_…").await else {
        return;
    };
    older(&store).await;
    let mut shell = store.direct().await;
    sqlx::raw_sql(
        "INSERT INTO instances (namespace, id, renewals, lease_ms, settle_ms, dead) \
         VALUES ('orders', 'living', 1, 1000, 1000, false), ('orders', 'silent', 1, 1000, 1000, false)",
    )
    .execute(&mut shell)
    .await
    .expect("rows");
    let renewing = tokio::spawn(async move {
        let renewal = "UPDATE instances SET renewals = renewals + 1 WHERE id = 'living'";
        loop {
            sqlx::raw_sql(renewal)
                .execute(&mut shell)
                .await
                .expect("renewed");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with(&routes(&[ORDERS]));
    let (status, said) = Proxy::run_with(&config, &["migrate"]).await;
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains("instance living of namespace orders is alive"),
        "{said}"
    );
    let (status, said) = Proxy::refused(&config).await;
    assert!(
        status.code() == Some(1) && said.contains("version 0.1.0"),
        "{said}"
    );
    renewing.abort();
    let (status, said) = Proxy::run_with(&config, &["migrate"]).await;
    assert!(status.success(), "{said}");
}

/// A start that waits for the store to be brought up to date hears SIGTERM.
#[tokio::test]
async fn a_stop_ends_a_start_that_waits_for_the_upgrade() {
    let Some(store) = Store::postgres("a_stop_ends_a_start_…").await else {
        return;
    };
    older(&store).await;
    let mut shell = store.direct().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE instances")
        .execute(&mut shell)
        .await
        .expect("locked");
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with(&routes(&[ORDERS]));
    let mut starting = Proxy::starting(&config);
    let mut watcher = store.direct().await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND application_name LIKE 'fencepost%' AND wait_event_type = 'Lock'";
    let mut waiting = 0_i64;
    while waiting == 0 {
        assert!(starting.process.ended().is_none(), "it waits for the lock");
        let counted = sqlx::query_scalar(waits).fetch_one(&mut watcher).await;
        waiting = counted.expect("a count");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    starting.process.signal(Signal::TERM);
    assert!(starting.process.exit().await.success());
}

/// A proxy of 0.1.0 that was cut off or frozen during the upgrade is silent, and comes back after
/// it.
#[tokio::test]
async fn a_proxy_of_0_1_0_that_comes_back_after_the_upgrade_is_kept_out() {
    const JOIN: &str = "INSERT INTO instances (namespace, id, renewals, lease_ms, settle_ms, dead) \
        VALUES ('orders', $1, $2, 1000, 1000, false)";
    const RENEWAL: &str = "UPDATE instances SET renewals = GREATEST(renewals, $2) \
        WHERE namespace = 'orders' AND id = $1 AND NOT dead";
    let Some(store) = Store::postgres("a_proxy_of_0_1_0_that_comes_back_…").await else {
        return;
    };
    older(&store).await;
    let mut shell = store.direct().await;
    let mut say = async |statement: &'static str, id: &str, renewals: i64| {
        let query = sqlx::query(statement).bind(id.to_owned()).bind(renewals);
        query
            .execute(&mut shell)
            .await
            .map(|done| done.rows_affected())
    };
    let joined = say(JOIN, "away", 1).await.expect("joined");
    let renewed = say(RENEWAL, "away", 2).await.expect("renewed");
    assert_eq!((joined, renewed), (1, 1));
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with(&routes(&[ORDERS]));
    let (status, said) = Proxy::run_with(&config, &["migrate"]).await;
    assert!(status.success(), "{said}");
    // It finds itself dead, and cannot join under another id.
    assert_eq!(say(RENEWAL, "away", 3).await.expect("no row"), 0);
    let refused = say(JOIN, "away again", 1).await.expect_err("no default");
    let code = refused
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("23502"), "{refused}");
    // This version's proxies do join, and renew.
    let proxy = Proxy::start(&config).await;
    proxy
        .send(put("/orders/7").token(43))
        .await
        .assert_forwarded();
}

over_both_stores! {
    async fn a_store_of_0_1_0_goes_on_with_the_same_keys(store: Store) {
        older(&store).await;
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store);
        let renamed = "{ path: '/orders/{order}/{*more}', resource: 'order:{order}' }";
        let more = "{ path: '/bills/{id}', resource: 'bill:{id}' }";
        let mut proxy = Proxy::start(&config.clone().with(&routes(&[renamed, more]))).await;
        proxy.send(put("/orders/7").token(41)).await.assert_problem(412, "stale-token");
        proxy.send(put("/orders/7").token(43)).await.assert_forwarded();
        proxy.stop().await;
        // From then on the whole table is on record, and what it replaced counts no more.
        let other = "{ path: '/orders/{id}/items', resource: 'gone:{id}' }";
        let (status, said) = Proxy::refused(&config.with(&routes(&[ORDERS, more, other]))).await;
        assert!(status.code() == Some(1) && said.contains("gone:2"), "{said}");
    }

    async fn a_store_of_0_1_0_takes_no_other_key_for_its_paths(store: Store) {
        older(&store).await;
        let upstream = Upstream::start().await;
        let other = "{ path: '/orders/{id}/{*rest}', resource: 'other:{id}' }";
        let config = Config::new(&upstream, &store).with(&routes(&[other]));
        let (status, said) = Proxy::refused(&config).await;
        assert!(status.code() == Some(1) && said.contains("order:2"), "{said}");
        let (status, said) = Proxy::run_with(&config, ACCEPT).await;
        assert!(status.success() && said.contains("other:2"), "{said}");
        let proxy = Proxy::start(&config).await;
        proxy.send(put("/orders/7").token(41)).await.assert_forwarded();
    }
}
