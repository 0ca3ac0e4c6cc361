//! What only a server can show: locks between sessions, refusals of unfit servers and poolers,
//! crashes, news.

use fencepost::store::{Administration, Instances, Marks};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::config::settings::Secret;
use fencepost::store::postgres::PostgresStore;
use fencepost::store::{Heard, Notification, Override, StoreError, Terms};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::sync::mpsc::Receiver;

use super::{TIMEOUT, advance, ask, epoch, epochs_of, instance, key, mark_of, opening, own, token};
use crate::support::postgres::{Cluster, PgBouncer, free_port};
use crate::support::relay::Relay;
use crate::support::skip::lacks;
use crate::support::store::has_postgres;

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    open_within(url, TIMEOUT).await
}

async fn open_within(url: &str, timeout: Duration) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(Secret::Literal(url.to_owned()), "test", timeout, true).await
}

async fn fresh() -> (String, PostgresStore) {
    let url = Cluster::shared().create_database().await;
    let store = open(&url).await.expect("the store opens");
    (url, store)
}

async fn refusal(url: &str) -> String {
    match open(url).await {
        Err(StoreError::Unfit(why)) => why,
        Err(error) => panic!("not Unfit: {error}"),
        Ok(_) => panic!("it opened"),
    }
}

async fn shell(url: &str) -> PgConnection {
    url.parse::<PgConnectOptions>()
        .expect("the URL is good")
        .connect()
        .await
        .expect("the server accepts connections")
}

async fn sql(shell: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(shell)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
}

async fn number(shell: &mut PgConnection, query: &'static str) -> i64 {
    sqlx::query_scalar(query)
        .fetch_one(shell)
        .await
        .expect("the query is good")
}

/// Looks until a condition of the server holds.
async fn until(shell: &mut PgConnection, what: &str, query: &'static str) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while number(shell, query).await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A row's, that is: who notifies waits for one of the whole cluster.
const WAITS_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE wait_event IN ('tuple', 'transactionid') AND datname = current_database()";

/// Rows are written, and so locked, in the byte order of their keys: for new rows the table shows
/// it, for old ones a session that holds one of them.
#[tokio::test]
async fn rows_are_locked_in_key_order() {
    if !has_postgres("rows_are_locked_in_key_order") {
        return;
    }
    let (url, store) = fresh().await;
    let mut shell = shell(&url).await;
    let mut keys: Vec<String> = (0..300).map(|n| format!("k{}", (n * 7919) % 300)).collect();
    keys.extend(["Z", "a", "é", "E", "_"].map(str::to_owned));
    let asks: Vec<_> = keys.iter().map(|key| ask(key, 1)).collect();
    store
        .advance(&instance(1), 0, &asks)
        .await
        .expect("an answer");
    keys.sort_unstable();
    let written: Vec<String> = sqlx::query_scalar("SELECT resource FROM marks ORDER BY ctid")
        .fetch_all(&mut shell)
        .await
        .expect("the query is good");
    assert_eq!(written, keys);
    let mut holder = self::shell(&url).await;
    let held = "k150";
    sql(
        &mut holder,
        &format!("BEGIN; SELECT * FROM marks WHERE resource = '{held}' FOR UPDATE"),
    )
    .await;
    let store = Arc::new(store);
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.advance(&instance(1), 0, &asks).await }
    });
    until(&mut shell, "the batch waits", WAITS_FOR_A_LOCK).await;
    let free: Vec<String> =
        sqlx::query_scalar("SELECT resource FROM marks ORDER BY resource FOR UPDATE SKIP LOCKED")
            .fetch_all(&mut shell)
            .await
            .expect("the query is good");
    keys.retain(|key| key.as_str() > held);
    assert_eq!(free, keys);
    sql(&mut holder, "COMMIT").await;
    waiting.await.expect("no panic").expect("an answer");
}

#[tokio::test]
async fn a_locked_row_is_not_waited_for_longer_than_half_the_timeout() {
    if !has_postgres("a_locked_row_is_not_waited_for_longer_than_half_the_timeout") {
        return;
    }
    let url = Cluster::shared().create_database().await;
    let store = open_within(&url, Duration::from_secs(2))
        .await
        .expect("it opens");
    advance(&store, ask("a", 1)).await;
    let mut shell = shell(&url).await;
    sql(&mut shell, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    let locked = store
        .advance(&instance(1), 0, &[ask("a", 2), ask("b", 2)])
        .await
        .expect_err("the row is locked");
    assert!(matches!(locked, StoreError::LockTimeout(_)), "{locked}");
    // One resource at a time, the other one goes.
    assert_eq!(advance(&store, ask("b", 3)).await.before, None);
    sql(&mut shell, "ROLLBACK").await;
    assert_eq!(advance(&store, ask("a", 2)).await.before, Some(token(1)));
}

/// What waits for a lock sees what was committed before it got it, not what its snapshot shows.
#[tokio::test]
async fn a_statement_that_waited_finds_what_is_there_when_it_goes_on() {
    if !has_postgres("a_statement_that_waited_finds_what_is_there_when_it_goes_on") {
        return;
    }
    let (url, store) = fresh().await;
    let store = Arc::new(store);
    advance(&*store, ask("a", 5)).await;
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(&mut holder, "BEGIN; UPDATE marks SET token = 8").await;
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { advance(&*store, opening("a", 7, 1)).await }
    });
    until(&mut watcher, "the advance waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let found = waiting.await.expect("an answer");
    assert_eq!(found.before, Some(token(8)));
    assert_eq!(epochs_of(&*store, "a").await, []);
}

/// What people look at while the writer is at work costs neither of them a connection: after a new one, the writer would
/// have to ask whether it is another server's.
#[tokio::test]
async fn people_who_look_leave_the_lane_its_connection() {
    if !has_postgres("people_who_look_leave_the_lane_its_connection") {
        return;
    }
    let (url, store) = fresh().await;
    let store = Arc::new(store);
    advance(&*store, opening("a", 5, 1)).await;
    assert_eq!(mark_of(&*store, "a").await, Some(5));
    let made = store.connections();
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(&mut holder, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { advance(&*store, ask("a", 6)).await }
    });
    until(&mut watcher, "the advance waits", WAITS_FOR_A_LOCK).await;
    let open = store.open_epochs(&key("a")).await.expect("an answer");
    assert_eq!(open, [epoch("a", 1, 1, 5)]);
    sql(&mut holder, "COMMIT").await;
    assert_eq!(waiting.await.expect("an answer").before, Some(token(5)));
    assert_eq!(store.connections(), made);
}

/// A caller that leaves sends no cancel: what the server was told happens there, late.
#[tokio::test]
async fn a_dropped_call_may_still_commit() {
    if !has_postgres("a_dropped_call_may_still_commit") {
        return;
    }
    let (url, store) = fresh().await;
    let store = Arc::new(store);
    advance(&*store, ask("a", 5)).await;
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(&mut holder, "BEGIN; SELECT * FROM marks FOR UPDATE").await;
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { advance(&*store, opening("a", 7, 1)).await }
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
         WHERE application_name = 'fencepost' AND datname = current_database()",
    )
    .await;
}

/// The override takes the row's lock first, so an advance that was there before it is seen.
#[tokio::test]
async fn an_override_sees_the_epoch_of_an_advance_it_waited_for() {
    if !has_postgres("an_override_sees_the_epoch_of_an_advance_it_waited_for") {
        return;
    }
    let (url, store) = fresh().await;
    let store = Arc::new(store);
    advance(&*store, ask("a", 5)).await;
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    // An advance that has not committed yet.
    sql(
        &mut holder,
        &format!(
            "BEGIN; UPDATE marks SET token = 6; \
             INSERT INTO epochs VALUES ('test', 'a', '{}', 1, 6)",
            instance(9)
        ),
    )
    .await;
    let overriding = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.override_mark(&key("a"), token(1), "why", "me").await }
    });
    until(&mut watcher, "the override waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let refused = overriding.await.expect("no panic").expect("an answer");
    assert_eq!(refused, Override::EpochsOpen(vec![epoch("a", 9, 1, 6)]));
    assert_eq!(mark_of(&*store, "a").await, Some(6));
}

/// Somebody who renews at the last moment lives.
#[tokio::test]
async fn a_renewal_under_way_outlives_the_declaration_that_waits_for_it() {
    if !has_postgres("a_renewal_under_way_outlives_the_declaration_that_waits_for_it") {
        return;
    }
    let (url, store) = fresh().await;
    let store = Arc::new(store);
    store
        .join(&instance(1), &Terms::default())
        .await
        .expect("an answer");
    let mut holder = shell(&url).await;
    let mut watcher = shell(&url).await;
    sql(
        &mut holder,
        "BEGIN; UPDATE instances SET renewals = renewals + 1",
    )
    .await;
    let declaring = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.declare_dead(&instance(1), 0).await }
    });
    until(&mut watcher, "the declaration waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    assert!(!declaring.await.expect("no panic").expect("an answer"));
}

/// A trigger notes what the session that writes marks has set.
/// Either the one who replaces the route table sees the one who joins, or that one sees the new table.
#[tokio::test]
async fn a_join_and_a_replacement_of_the_routes_see_each_other() {
    if !has_postgres("a_join_and_a_replacement_of_the_routes_see_each_other") {
        return;
    }
    let (url, store) = fresh().await;
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
    let replacing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.replace_routes("new").await }
    });
    until(&mut watcher, "the replacement waits", WAITS_FOR_A_LOCK).await;
    sql(&mut holder, "COMMIT").await;
    let left = replacing.await.expect("no panic").expect("an answer");
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
    let recorded = joining.await.expect("no panic").expect("an answer");
    assert_eq!(recorded.document.as_deref(), Some("new"));
}

async fn note_settings(url: &str) -> PgConnection {
    let mut shell = shell(url).await;
    sql(
        &mut shell,
        "CREATE TABLE seen (commit text, isolation text, name text); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO seen VALUES (current_setting('synchronous_commit'), \
         current_setting('transaction_isolation'), current_setting('application_name')); \
         RETURN NULL; END $$; \
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON marks \
         FOR EACH STATEMENT EXECUTE FUNCTION note()",
    )
    .await;
    shell
}

#[tokio::test]
async fn commits_are_flushed_whatever_the_server_says() {
    if !has_postgres("commits_are_flushed_whatever_the_server_says") {
        return;
    }
    for (server, session) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let (url, store) = fresh().await;
        drop(store);
        let mut shell = note_settings(&url).await;
        sql(
            &mut shell,
            &format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = {server}', \
                 current_database()); \
                 EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', \
                 current_database()); END $$"
            ),
        )
        .await;
        let store = open(&url).await.expect("it opens");
        advance(&store, ask("a", 1)).await;
        let seen: Vec<(String, String, String)> =
            sqlx::query_as("SELECT DISTINCT commit, isolation, name FROM seen")
                .fetch_all(&mut shell)
                .await
                .expect("the query is good");
        let expected = (session.into(), "read committed".into(), "fencepost".into());
        assert_eq!(seen, [expected], "server: {server}");
    }
}

#[tokio::test]
async fn unfit_servers_are_refused_at_the_start() {
    if !has_postgres("unfit_servers_are_refused_at_the_start") {
        return;
    }
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let store = open(&url).await.expect("it opens");
    for (setting, says) in [
        ("fsync=off", "fsync=off"),
        ("default_transaction_read_only=on", "read-only"),
    ] {
        cluster.stop();
        cluster.start_with(&[setting]);
        let why = refusal(&url).await;
        assert!(why.contains(says), "{why}");
    }
    // To one that runs, a server that cannot be written to may be a failover that passes.
    let error = loop {
        let error = store.mark(&key("a")).await.expect_err("read-only");
        if !error.to_string().contains("read-only") {
            assert!(matches!(error, StoreError::Connection(_)), "{error}");
            continue;
        }
        break error;
    };
    assert!(matches!(error, StoreError::Connection(_)), "{error}");
    cluster.stop();
    cluster.start_again();
    assert_eq!(mark_of(&store, "a").await, None);
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused() {
    if !has_postgres("a_pooler_in_transaction_mode_is_refused") {
        return;
    }
    let url = Cluster::shared().create_database().await;
    let database = url.rsplit('/').next().expect("a name").to_owned();
    for settings in ["", "ignore_startup_parameters = options,extra_float_digits"] {
        let Some(pooler) = PgBouncer::start(Cluster::shared(), settings) else {
            lacks("a_pooler_in_transaction_mode_is_refused", "pgbouncer");
            return;
        };
        let why = refusal(&pooler.url(&database)).await;
        assert!(why.contains("PgBouncer"), "{why}");
    }
}

#[tokio::test]
async fn many_proxies_migrate_at_once() {
    if !has_postgres("many_proxies_migrate_at_once") {
        return;
    }
    let url = Cluster::shared().create_database().await;
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = url.clone();
        opening.spawn(async move { open(&url).await.map(drop) });
    }
    while let Some(opened) = opening.join_next().await {
        opened.expect("no panic").expect("it opens");
    }
}

#[tokio::test]
async fn a_role_without_rights_on_the_schema_suffices_at_run_time() {
    if !has_postgres("a_role_without_rights_on_the_schema_suffices_at_run_time") {
        return;
    }
    let (url, store) = fresh().await;
    drop(store);
    let mut admin = shell(&url).await;
    let role = format!("proxy_{}", url.rsplit('/').next().expect("a name"));
    sql(
        &mut admin,
        &format!(
            "CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
        ),
    )
    .await;
    let url = url.replace("postgres@", &format!("{role}@"));
    for migrate in [false, true] {
        let url = Secret::Literal(url.clone());
        let store = PostgresStore::open(url, "test", TIMEOUT, migrate).await;
        let store = store.expect("it opens");
        advance(&store, opening("a", 5, i64::from(migrate))).await;
        store
            .join(&instance(u128::from(migrate)), &Terms::default())
            .await
            .expect("an answer");
    }
    let store = open(&url).await.expect("it opens");
    store.close(&own(&store, 1).await).await.expect("an answer");
    let done = store.override_mark(&key("a"), token(1), "why", "me").await;
    assert!(matches!(done, Ok(Override::Done { .. })), "{done:?}");
}

#[tokio::test]
async fn urls_name_sockets_several_hosts_and_files() {
    if !has_postgres("urls_name_sockets_several_hosts_and_files") {
        return;
    }
    let cluster = Cluster::shared();
    let url = cluster.create_database().await;
    let database = url.rsplit('/').next().expect("a name");
    let dead = free_port();
    let good = cluster.port();
    let dir = cluster.dir().display();
    for url in [
        cluster.socket_url(database),
        format!("postgres:///{database}?host={dir}&port={good}&user=postgres"),
        format!("postgres://postgres@127.0.0.1:{dead},127.0.0.1:{good}/{database}"),
        format!("postgres://postgres@127.0.0.1:{good},127.0.0.1:{dead}/{database}"),
    ] {
        let store = open(&url)
            .await
            .unwrap_or_else(|error| panic!("{url}: {error}"));
        advance(&store, ask("a", 1)).await;
    }
    // A secret that is mounted is read at each connect.
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{url}\n")).expect("it is ours");
    let secret = Secret::File(file.path().to_owned());
    let store = PostgresStore::open(secret, "test", TIMEOUT, true).await;
    let store = store.expect("it opens");
    let elsewhere = cluster.create_database().await;
    std::fs::write(file.path(), elsewhere).expect("it is ours");
    // The reader has not connected yet; there the schema is missing.
    let read = store.own(&instance(1), None, 1).await;
    let error = read.expect_err("no schema there");
    assert!(matches!(error, StoreError::Statement(_)), "{error}");
    std::fs::write(file.path(), &url).expect("it is ours");
    assert_eq!(own(&store, 1).await, []);
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused() {
    if !has_postgres("a_database_of_another_encoding_is_refused") {
        return;
    }
    let cluster = Cluster::shared();
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = format!("in_{}", encoding.to_lowercase());
        let make = format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
        );
        cluster.execute("postgres", &make).await;
        let why = refusal(&cluster.url(&name)).await;
        assert!(
            why.contains(encoding) && why.contains("instead of UTF8"),
            "{why}"
        );
    }
}

#[tokio::test]
async fn messages_name_the_server_and_never_the_password() {
    if !has_postgres("messages_name_the_server_and_never_the_password") {
        return;
    }
    let dead = free_port();
    let url = format!("postgres://me:hunter2@127.0.0.1:{dead}/db");
    let error = open(&url).await.map(drop).expect_err("nobody is there");
    assert!(matches!(error, StoreError::Connection(_)), "{error}");
    let said = format!("{error} {error:?}");
    assert!(said.contains(&format!("127.0.0.1:{dead}")), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    let none = Cluster::shared().url("no_such_database");
    let why = refusal(&none).await;
    assert!(why.contains("create it first"), "{why}");
}

async fn next(heard: &mut Receiver<Heard>) -> Heard {
    tokio::time::timeout(TIMEOUT, heard.recv())
        .await
        .expect("something is heard")
        .expect("the listening goes on")
}

#[tokio::test]
async fn news_is_heard_in_its_namespace_and_after_a_break() {
    if !has_postgres("news_is_heard_in_its_namespace_and_after_a_break") {
        return;
    }
    let (url, store) = fresh().await;
    let other = PostgresStore::open(Secret::Literal(url.clone()), "other", TIMEOUT, true).await;
    let other = other.expect("it opens");
    let mut heard = store.listen().expect("it is shared");
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    // It has heard itself.
    assert_eq!(next(&mut heard).await, Heard::Whole(true));
    let newer = Notification::Newer {
        resource: key("order:ü\"7"),
        token: token(i64::MAX),
        era: 3,
        owner: Some(instance(1)),
    };
    let closed = Notification::Closed { resource: key("a") };
    let elsewhere = Notification::Closed { resource: key("b") };
    other.announce(&[elsewhere]).await.expect("an answer");
    store
        .announce(&[newer.clone(), closed.clone()])
        .await
        .expect("an answer");
    assert_eq!(next(&mut heard).await, Heard::Notification(newer.clone()));
    assert_eq!(next(&mut heard).await, Heard::Notification(closed));
    let mut shell = shell(&url).await;
    sql(
        &mut shell,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    assert_eq!(next(&mut heard).await, Heard::Whole(false));
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    assert_eq!(next(&mut heard).await, Heard::Whole(true));
    // The writer's connection broke too; it says so at most once.
    if store.announce(std::slice::from_ref(&newer)).await.is_err() {
        store
            .announce(std::slice::from_ref(&newer))
            .await
            .expect("an answer");
    }
    assert_eq!(next(&mut heard).await, Heard::Notification(newer));
    drop(heard);
    until(
        &mut shell,
        "the listening ended",
        "SELECT (count(*) = 0)::int::bigint FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
         AND (query LIKE '%LISTEN%' OR query LIKE '%echo%')",
    )
    .await;
}

/// The connection lives, and the notifications do not arrive: that is not taken for silence.
#[tokio::test]
async fn a_subscription_that_hears_nothing_says_so() {
    if !has_postgres("a_subscription_that_hears_nothing_says_so") {
        return;
    }
    let cluster = Cluster::shared();
    let url = cluster.create_database().await;
    let relay = Relay::start(cluster.port()).await;
    let store = open(&relay.url(&url)).await.expect("it opens");
    let mut heard = store.listen().expect("it is shared");
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    assert_eq!(next(&mut heard).await, Heard::Whole(true));
    relay.lose_notifications(true);
    assert_eq!(next(&mut heard).await, Heard::Whole(false));
    relay.lose_notifications(false);
    assert_eq!(
        next(&mut heard).await,
        Heard::Whole(true),
        "the same connection"
    );
}

/// A server that stops answering: calls end in time, and when it goes on, so does the store.
#[tokio::test]
async fn a_frozen_server_costs_timeouts_and_nothing_else() {
    if !has_postgres("a_frozen_server_costs_timeouts_and_nothing_else") {
        return;
    }
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let store = open_within(&url, Duration::from_secs(3))
        .await
        .expect("it opens");
    advance(&store, ask("a", 1)).await;
    cluster.freeze();
    for _ in 0..2 {
        let late = store
            .advance(&instance(1), 0, &[ask("a", 2)])
            .await
            .expect_err("it is frozen");
        assert!(matches!(late, StoreError::Timeout(_)), "{late}");
    }
    cluster.thaw();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut newest = 3;
    let found = loop {
        match store.advance(&instance(1), 0, &[ask("a", newest)]).await {
            Ok(mut found) => break found.remove(0),
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        // It may be committed all the same.
        newest += 1;
    };
    assert!(found.before >= Some(token(1)));
    assert!(found.before < Some(token(newest)));
}

/// The server is killed with SIGKILL under load, again and again: every mark that was answered is
/// there after its recovery, and the stores go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_token_is_lost_when_the_server_is_killed() {
    const RESOURCES: usize = 8;
    if !has_postgres("no_accepted_token_is_lost_when_the_server_is_killed") {
        return;
    }
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let accepted: Arc<[AtomicI64; RESOURCES]> =
        Arc::new(std::array::from_fn(|_| AtomicI64::new(-1)));
    let answers = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..4_usize {
        let store = open(&url).await.expect("it opens");
        let accepted = Arc::clone(&accepted);
        let answers = Arc::clone(&answers);
        tasks.spawn(async move {
            let lane_number = i64::try_from(lane).expect("a few");
            for round in 0_i64.. {
                let token = round * 4 + lane_number;
                let asks: Vec<_> = (0..RESOURCES)
                    .map(|at| opening(&format!("r{at}"), token, token))
                    .collect();
                let id = instance(u128::try_from(lane).expect("a few"));
                if store.advance(&id, 0, &asks).await.is_ok() {
                    for highest in accepted.iter() {
                        highest.fetch_max(token, Ordering::SeqCst);
                    }
                    answers.fetch_add(1, Ordering::SeqCst);
                } else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    for _ in 0..3 {
        // Under load, and only once it has recovered from the last time.
        let enough = answers.load(Ordering::SeqCst) + 100;
        let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
        while answers.load(Ordering::SeqCst) < enough {
            assert!(tokio::time::Instant::now() < deadline, "no recovery");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cluster.kill9();
        let given: Vec<i64> = accepted
            .iter()
            .map(|at| at.load(Ordering::SeqCst))
            .collect();
        cluster.start_again();
        let looker = open(&url).await.expect("it opens");
        for (at, given) in given.into_iter().enumerate() {
            let mark = mark_of(&looker, &format!("r{at}")).await;
            assert!(
                mark >= Some(given),
                "r{at}: {mark:?} after {given} was accepted"
            );
        }
    }
    tasks.shutdown().await;
}
