//! The promises that only Postgres can break: locks between sessions, unfit servers, notifications,
//! outages.

mod locks;
mod notifications;
mod outages;
mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::store::postgres::PostgresStore;
use fencepost::store::{
    Administration, Ask, Batch, Found, Heard, Instances, Lane, MarkStore, Notification, Override,
    PruneStep, StoreError, Terms,
};
use sqlx::postgres::PgConnection;
use tokio::sync::mpsc::Receiver;

use super::{
    Must, TIMEOUT, advance, ask, epoch, epochs_of, instance, key, mark_of, opening, signed, token,
};
use crate::support::or_return;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::{Cluster, free_port};
use crate::support::skip::lacks;
use crate::support::sql::{number, shell, sql, until};
use crate::support::store::{address, has_postgres};

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    open_within(url, TIMEOUT).await
}

async fn open_within(url: &str, timeout: Duration) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(address(url), "test", timeout, true).await
}

/// A database of its own; `None`, and a line that says so, without Postgres.
async fn database() -> Option<String> {
    if !has_postgres() {
        return None;
    }
    Some(Cluster::shared().create_database().await)
}

/// A store in a database of its own.
async fn fresh() -> Option<(String, PostgresStore)> {
    let url = database().await?;
    let store = open(&url).must().await;
    Some((url, store))
}

/// A store in which `a` has a mark of 5, a session that holds rows by `statement`, and one that
/// watches.
async fn locked(statement: &str) -> Option<(Arc<PostgresStore>, PgConnection, PgConnection)> {
    let (url, store) = fresh().await?;
    advance(&store, ask("a", 5)).await;
    let (mut holder, watcher) = (shell(&url).await, shell(&url).await);
    sql(&mut holder, statement).await;
    Some((Arc::new(store), holder, watcher))
}

/// Asks of instance 1 in era 0. None of its epochs is dropped.
async fn batch(store: &PostgresStore, lane: Lane, asks: &[Ask]) -> Result<Vec<Found>, StoreError> {
    let batch = Batch {
        instance: instance(1),
        era: 0,
        asks,
        used: &[],
        next: 0,
    };
    store.advance(lane, batch).await
}

/// Makes a call from a task of its own.
fn beside<S: Send + Sync + 'static, F: Future<Output: Send + 'static> + Send + 'static>(
    store: &Arc<S>,
    call: impl FnOnce(Arc<S>) -> F + Send + 'static,
) -> tokio::task::JoinHandle<F::Output> {
    tokio::spawn(call(Arc::clone(store)))
}

async fn refusal(url: &str) -> String {
    match open(url).await {
        Err(StoreError::Unfit(why)) => why,
        Err(error) => panic!("not Unfit: {error}"),
        Ok(_) => panic!("it opened"),
    }
}
