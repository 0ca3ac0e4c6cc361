//! The promises that only Postgres can break: locks between sessions, unfit servers, notifications.

mod locks;
mod notifications;
mod servers;

use std::time::Duration;

use fencepost::store::postgres::PostgresStore;
use fencepost::store::{
    Administration, Ask, Found, Heard, Instances, Lane, MarkStore, Notification, Override,
    StoreError, Terms,
};
use sqlx::postgres::PgConnection;

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

/// Asks of instance 1 in era 0. None of its epochs is dropped.
async fn batch(store: &PostgresStore, lane: Lane, asks: &[Ask]) -> Result<Vec<Found>, StoreError> {
    store.advance(lane, super::batch(asks)).await
}

/// Ends all other sessions of this one's database.
const END_THE_OTHERS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// Asserts that the database is refused as unfit, and that it says all of this.
async fn refused_for(url: &str, says: &[&str]) {
    match open(url).await {
        Err(StoreError::Unfit(why)) => {
            assert!(says.iter().all(|word| why.contains(word)), "{why}");
        }
        Err(error) => panic!("not Unfit: {error}"),
        Ok(_) => panic!("it opened"),
    }
}
