//! Warnings as such, without a standby: any of them makes a statement's fate unknown, whatever the
//! process logs and whatever the database is configured to suppress.

use fencepost::store::MarkStore;
use std::time::Duration;

use fencepost::routing::{Needs, ResourceKey, Token};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::{Ask, Batch, Found, InstanceId, Lane, StoreError};
use tracing::instrument::WithSubscriber as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::support::or_return;
use crate::support::postgres::Cluster;
use crate::support::sql::{shell, sql, until};
use crate::support::store::{address, has_postgres};

async fn open(url: &str) -> PostgresStore {
    let url = address(url);
    PostgresStore::open(url, "test", Duration::from_secs(20), true)
        .await
        .expect("the store opens")
}

async fn advance(store: &PostgresStore, token: i64) -> Result<Vec<Found>, StoreError> {
    let ask = Ask {
        resource: ResourceKey::new("a").expect("a good key"),
        token: Token::new(token).expect("a good token"),
        opening: None,
        spend: None,
        needs: Needs::default(),
    };
    let batch = Batch {
        instance: InstanceId::from_bits(1),
        era: 0,
        asks: &[ask],
        used: &[],
        next: 1,
    };
    store.advance(Lane::Main(0), batch).await
}

/// A store whose server warns with this text at each write of a mark; its database's URL too.
async fn warning(says: &str) -> Option<(PostgresStore, String)> {
    if !has_postgres() {
        return None;
    }
    let url = Cluster::shared().create_database().await;
    let store = open(&url).await;
    let mut shell = shell(&url).await;
    sql(
        &mut shell,
        &format!(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE WARNING '{says}'; RETURN NULL; END $$; \
             CREATE TRIGGER warn AFTER INSERT OR UPDATE ON marks \
             FOR EACH STATEMENT EXECUTE FUNCTION warn()"
        ),
    )
    .await;
    Some((store, url))
}

async fn assert_warned(store: &PostgresStore, token: i64) {
    match advance(store, token).await {
        Err(StoreError::Warned(text)) => assert!(text.contains("frobnicated"), "{text}"),
        other => panic!("not warned: {other:?}"),
    }
}

#[tokio::test]
async fn they_are_heard_whoever_else_listens() {
    let (store, url) = or_return!(warning("frobnicated").await);
    // This test binary has no subscriber at all.
    assert_warned(&store, 1).await;
    for filter in ["off", "error", "trace", "sqlx=off"] {
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::sink);
        let filter: Targets = filter.parse().expect("a good filter");
        let subscriber = tracing_subscriber::registry().with(filter).with(lines);
        async {
            assert_warned(&store, 2).await;
            // A store that is made in that scope hears no less.
            assert_warned(&open(&url).await, 3).await;
        }
        .with_subscriber(subscriber)
        .await;
    }
    // And after all of those are gone.
    assert_warned(&store, 4).await;
    assert_warned(&open(&url).await, 5).await;
}

#[tokio::test]
async fn a_database_cannot_keep_them_back() {
    let (store, url) = or_return!(warning("frobnicated").await);
    drop(store);
    let name = url.rsplit('/').next().expect("a name");
    let mut shell = shell(&url).await;
    sql(
        &mut shell,
        &format!("ALTER DATABASE {name} SET client_min_messages = error"),
    )
    .await;
    assert_warned(&open(&url).await, 1).await;
}

/// The connection that was warned on is not used again; the next statement makes another one.
#[tokio::test]
async fn a_warned_connection_is_closed() {
    let (store, url) = or_return!(warning("frobnicated").await);
    assert_warned(&store, 1).await;
    let mut shell = shell(&url).await;
    sql(&mut shell, "DROP TRIGGER warn ON marks").await;
    let found = advance(&store, 2).await.expect("an answer");
    assert_eq!(found[0].before, Token::new(1), "it had been committed");
    until(
        &mut shell,
        "the warned connection is gone",
        "SELECT (count(*) <= 1)::int::bigint FROM pg_stat_activity WHERE application_name LIKE 'fencepost%' \
         AND datname = current_database() AND query LIKE '%INSERT INTO marks%'",
    )
    .await;
}

/// Postgres warns so with every write, for weeks, before it stops by itself.
#[tokio::test]
async fn the_wrap_around_of_transaction_ids_is_no_doubt() {
    let text = "database \"x\" must be vacuumed within 39985967 transactions";
    let (store, _) = or_return!(warning(text).await);
    advance(&store, 1).await.expect("an answer");
    advance(&store, 2).await.expect("an answer");
}
