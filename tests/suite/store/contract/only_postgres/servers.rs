//! Which servers, roles and URLs are good enough, and what is said of those that are not.

use fencepost::config::{PostgresAddress, Secret};
use fencepost::store::Publication;

use super::*;
use crate::support::wait::eventually;
use crate::support::{Must, return_unless};

/// Each statement that writes marks notes the settings of its session.
const NOTE_SETTINGS: &str = "CREATE TABLE seen (commit text, isolation text, name text); \
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    INSERT INTO seen VALUES (current_setting('synchronous_commit'), \
    current_setting('transaction_isolation'), current_setting('application_name')); \
    RETURN NULL; END $$; \
    CREATE TRIGGER note AFTER INSERT OR UPDATE ON marks FOR EACH STATEMENT EXECUTE FUNCTION note()";

#[tokio::test]
async fn commits_are_flushed_whatever_the_server_says() {
    return_unless!(has_postgres());
    for (server, session) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let (url, store) = fresh().await.expect("there is Postgres");
        drop(store);
        let name = url.rsplit('/').next().expect("a name");
        let mut shell = shell(&url).await;
        let settings = format!(
            "ALTER DATABASE {name} SET synchronous_commit = {server}; \
             ALTER DATABASE {name} SET default_transaction_isolation = serializable; \
             {NOTE_SETTINGS}"
        );
        sql(&mut shell, &settings).await;
        let store = open(&url).must().await;
        advance(&store, ask("a", 1)).await;
        let seen = sqlx::query_scalar(
            "SELECT DISTINCT concat_ws(', ', commit, isolation, name) FROM seen",
        );
        let seen: Vec<String> = seen.fetch_all(&mut shell).must().await;
        assert_eq!(
            seen,
            [format!("{session}, read committed, fencepost")],
            "server: {server}"
        );
    }
}

/// Its server may be behind the one that the counter was read from. The connection stays that of the
/// renewals.
#[tokio::test]
async fn a_declaration_over_another_connection_than_the_counters_is_refused_and_costs_none() {
    let (url, store) = or_return!(fresh().await);
    store.join(instance(1), &Terms::default()).must().await;
    store.instances().must().await;
    let mut shell = shell(&url).await;
    sql(&mut shell, END_THE_OTHERS).await;
    let terms = Terms {
        renewals: 1,
        ..Terms::default()
    };
    let none = Publication::default();
    let renewed = || async { store.renew(instance(1), &terms, &none).await.ok() };
    eventually("a new connection", renewed).await;
    let mut pids: Vec<String> = Vec::new();
    for _ in 0..3 {
        let refused = store.declare_dead(instance(1), 0).await;
        let refused = refused.expect_err("the counter was read over another one");
        assert!(matches!(refused, StoreError::Connection(_)), "{refused}");
        let open = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity \
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        pids.push(sqlx::query_scalar(open).fetch_one(&mut shell).must().await);
    }
    assert!(pids.iter().all(|one| *one == pids[0]), "{pids:?}");
    store.instances().must().await;
    assert!(store.declare_dead(instance(1), 1).must().await);
}

#[tokio::test]
async fn unfit_servers_are_refused_at_the_start() {
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let store = open(&url).must().await;
    for (setting, says) in [
        ("fsync=off", "fsync=off"),
        ("default_transaction_read_only=on", "read-only"),
    ] {
        cluster.stop();
        cluster.start_with(&[setting]);
        refused_for(&url, &[says]).await;
    }
    // To one that runs, a server that cannot be written to may be a failover that passes.
    let mut error = store.look(&[key("a")]).await.expect_err("read-only");
    while !error.to_string().contains("read-only") {
        assert!(matches!(error, StoreError::Connection(_)), "{error}");
        error = store.look(&[key("a")]).await.expect_err("read-only");
    }
    assert!(matches!(error, StoreError::Connection(_)), "{error}");
    cluster.stop();
    cluster.start_with(&[]);
    assert_eq!(mark_of(&store, "a").await, None);
}

/// One that does not pass on the session's settings.
#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused() {
    let url = or_return!(database().await);
    let database = url.rsplit('/').next().expect("a name");
    let pooler = or_return!(PgBouncer::start(Cluster::shared(), "").await);
    refused_for(&pooler.url(database), &["PgBouncer"]).await;
}

#[tokio::test]
async fn many_proxies_migrate_at_once() {
    let url = or_return!(database().await);
    futures_util::future::join_all((0..6).map(|_| open(&url).must())).await;
}

#[tokio::test]
async fn urls_name_sockets_several_hosts_and_files() {
    return_unless!(has_postgres());
    let cluster = Cluster::shared();
    let url = cluster.create_database().await;
    let database = url.rsplit('/').next().expect("a name");
    let dead = free_port();
    let good = cluster.port();
    for url in [
        cluster.socket_url(database),
        format!("postgres://postgres@127.0.0.1:{dead},127.0.0.1:{good}/{database}"),
        format!("postgres://postgres@127.0.0.1:{good},127.0.0.1:{dead}/{database}"),
    ] {
        advance(&open(&url).must().await, ask("a", 1)).await;
    }
    // A secret that is mounted is read at each connect.
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{url}\n")).expect("it is ours");
    let address = PostgresAddress {
        url: Secret::File(file.path().to_owned()),
        ..address("")
    };
    let store = PostgresStore::open(address, "test", TIMEOUT, true)
        .must()
        .await;
    let elsewhere = cluster.create_database().await;
    std::fs::write(file.path(), elsewhere).expect("it is ours");
    // The reader has not connected yet; there the schema is missing.
    let read = store.look(&[key("a")]).await;
    let error = read.expect_err("no schema there");
    assert!(matches!(error, StoreError::Statement(_)), "{error}");
    std::fs::write(file.path(), &url).expect("it is ours");
    assert_eq!(store.look(&[key("a")]).must().await.len(), 1);
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused() {
    return_unless!(has_postgres());
    let cluster = Cluster::shared();
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = format!("in_{}", encoding.to_lowercase());
        let make = format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
        );
        cluster.execute("postgres", &make).await;
        refused_for(&cluster.url(&name), &[encoding, "instead of UTF8"]).await;
    }
}

#[tokio::test]
async fn messages_name_the_server_and_never_the_password() {
    return_unless!(has_postgres());
    let dead = free_port();
    let url = format!("postgres://me:hunter2@127.0.0.1:{dead}/db");
    let error = open(&url).await.map(drop).expect_err("nobody is there");
    assert!(matches!(error, StoreError::Connection(_)), "{error}");
    let said = format!("{error} {error:?}");
    assert!(said.contains(&format!("127.0.0.1:{dead}")), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    let none = Cluster::shared().url("no_such_database");
    refused_for(&none, &["create it first"]).await;
}
