//! The promises that only Postgres can break: locks between sessions, unfit servers, notifications.

mod locks;
mod notifications;
mod servers;

use std::time::Duration;

use fencepost::store::postgres::PostgresStore;
use fencepost::store::{
    Administration, Heard, Instances, Lane, MarkStore, Notification, StoreError, Terms,
};
use sqlx::postgres::PgConnection;

use super::{
    Must, TIMEOUT, advance, ask, assert_unfit, epoch, epochs_of, instance, key, mark_of, token,
};
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::{Cluster, free_port};
use crate::support::sql::{number, shell, sql, until};
use crate::support::store::{address, has_postgres};
use crate::support::{Store, or_return};

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(address(url), "test", TIMEOUT, true).await
}

/// A database of its own; `None`, and a line that says so, without Postgres.
async fn database() -> Option<String> {
    Some(Store::postgres().await?.url())
}

/// A store in a database of its own.
async fn fresh() -> Option<(String, PostgresStore)> {
    let url = database().await?;
    let store = open(&url).must().await;
    Some((url, store))
}

/// Ends all other sessions of this one's database.
const END_THE_OTHERS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// Asserts that the database is refused as unfit, and that it says all of this.
async fn refused_for(url: &str, says: &[&str]) {
    assert_unfit(open(url).await, says);
}
