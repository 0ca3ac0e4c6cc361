//! Warnings as such, without a standby: any of them makes a statement's fate unknown, whatever the
//! process logs and whatever the database is configured to suppress.

use std::net::SocketAddr;
use std::sync::Arc;

use fencepost::routing::Token;
use fencepost::store::{Found, Lane, MarkStore, StoreError};

use crate::store::contract::{Home, ask, batch};
use crate::support::metrics::Metrics;
use crate::support::postgres::free_port;
use crate::support::sql::{shell, sql, until};
use crate::support::{Config, Proxy, Store, Upstream, eventually, get, or_return, put};

async fn advance(store: &dyn MarkStore, token: i64) -> Result<Vec<Found>, StoreError> {
    let asks = [ask("a", token)];
    store.advance(Lane::Main(0), batch(&asks)).await
}

/// A store whose server warns with this text at each write of a mark; its database too.
async fn warning(says: &str) -> Option<(Arc<dyn MarkStore>, Store)> {
    let database = Store::postgres().await?;
    let store = Home(database.clone()).open().await;
    let trigger = format!(
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE WARNING '{says}'; RETURN NULL; END $$; \
         CREATE TRIGGER warn AFTER INSERT OR UPDATE ON marks \
         FOR EACH STATEMENT EXECUTE FUNCTION warn()"
    );
    database.execute(&trigger).await;
    Some((store, database))
}

async fn assert_warned(store: &dyn MarkStore, token: i64) {
    match advance(store, token).await {
        Err(StoreError::Warned(text)) => assert!(text.contains("frobnicated"), "{text}"),
        other => panic!("not warned: {other:?}"),
    }
}

/// Warnings come by way of the program's own logging; what of that is shown must make no
/// difference.
#[tokio::test]
async fn the_log_level_makes_no_difference() {
    let (_, database) = or_return!(warning("frobnicated").await);
    let upstream = Upstream::start().await;
    let asked = |target| get(target).host(Some("localhost"));
    for level in ["off", "error", "sqlx=off,fencepost=trace"] {
        // Its log does not say where it listens.
        let [data, admin] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let config = Config::new(&upstream, &database).with(&format!(
            "{{ listen: '{data}', admin: {{ listen: '{admin}' }}, log: {{ level: '{level}' }} }}"
        ));
        let _running = Proxy::starting(&config);
        eventually("it is ready", || async {
            let answer = asked("/readyz").attempt(admin).await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
        let answer = put("/orders/7").token(42).send(data).await;
        answer.assert_problem(503, "store-unavailable");
        let metrics = Metrics::parse(&asked("/metrics").send(admin).await.text());
        let warned = metrics.sum("fencepost_store_errors_total", &[("kind", "warned")]);
        assert!(warned >= 1.0, "{level}");
    }
    assert_eq!(upstream.count(), 0);
}

/// Nor what the database suppresses. The connection that was warned on is not used again; the next
/// statement makes another one.
#[tokio::test]
async fn a_warned_connection_is_closed() {
    let (store, database) = or_return!(warning("frobnicated").await);
    assert_warned(&*store, 1).await;
    drop(store);
    let url = database.url();
    let name = url.rsplit('/').next().expect("a name");
    let less = format!("ALTER DATABASE {name} SET client_min_messages = error");
    database.execute(&less).await;
    let store = Home(database.clone()).open().await;
    assert_warned(&*store, 2).await;
    let mut shell = shell(&url).await;
    sql(&mut shell, "DROP TRIGGER warn ON marks").await;
    let found = advance(&*store, 3).await.expect("an answer");
    assert_eq!(found[0].before, Token::new(2), "it had been committed");
    let gone = "SELECT (count(*) <= 1)::int::bigint FROM pg_stat_activity \
        WHERE application_name LIKE 'fencepost%' AND datname = current_database() \
        AND query LIKE '%INSERT INTO marks%'";
    until(&mut shell, "the warned connection is gone", gone).await;
}

/// Postgres warns so with every write, for weeks, before it stops by itself.
#[tokio::test]
async fn the_wrap_around_of_transaction_ids_is_no_doubt() {
    let text = "database \"x\" must be vacuumed within 39985967 transactions";
    let (store, _) = or_return!(warning(text).await);
    advance(&*store, 1).await.expect("an answer");
    advance(&*store, 2).await.expect("an answer");
}
