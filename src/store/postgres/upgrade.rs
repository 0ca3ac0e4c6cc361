//! Keeps proxies of version 0.1.0 from running beside those of this version.
//!
//! They wait for less after a death: no `undelivered`, and no margin for clocks. They record no
//! bound for their own requests in flight. So their schema stays until none of them renews. One
//! that is only cut off is silent, too: the migration that follows marks it dead, and it cannot
//! join again.

use std::time::Duration;

use sqlx::PgConnection;

use super::MIGRATION;
use super::connect::{Connector, Phase};
use super::errors::error_of;
use crate::boot_clock::BootClock;
use crate::config::settings::PostgresAddress;
use crate::store::StoreError;
use crate::store::reckoning::Reckoning;

/// How often the counters are read.
const LOOK: Duration = Duration::from_millis(250);

/// `(namespace, id, renewals, lease_ms)`.
type Living = (String, String, i64, i64);

/// The first schema version that keeps proxies of version 0.1.0 out.
const KEEPS_OUT: i64 = 4;

/// If the schema lets proxies of version 0.1.0 in, waits until each of their instances that is not
/// known to be dead has been silent for its lease.
///
/// # Errors
///
/// [`StoreError::Unfit`] if one of them renews; else as [`super::migrate`].
pub(super) async fn none_of_before(address: &PostgresAddress) -> Result<(), StoreError> {
    let connector = Connector::new(address.clone(), MIGRATION, MIGRATION / 2);
    let mut line = connector.connect(Phase::Start).await?;
    let clock = BootClock::boottime();
    let first = living(line.bare()).await?;
    let since = clock.now();
    let longest = first.iter().map(|(_, _, _, lease)| *lease).max();
    let longest = Duration::from_millis(longest.unwrap_or(0).try_into().unwrap_or(0));
    let silence = Reckoning::shared(longest, Duration::ZERO, Duration::ZERO).silence(longest);
    let mut left = first.clone();
    while !left.is_empty() && clock.now().saturating_sub(since) < silence {
        tokio::time::sleep(LOOK).await;
        left = living(line.bare()).await?;
        let renewed = |now: &&Living| {
            let was = first
                .iter()
                .find(|was| (&was.0, &was.1) == (&now.0, &now.1));
            was.is_none_or(|was| was.2 != now.2)
        };
        if let Some((namespace, id, ..)) = left.iter().find(renewed) {
            return Err(StoreError::Unfit(format!(
                "instance {id} of namespace {namespace} is alive and of version 0.1.0, which does not wait \
                 long enough for the work of this version's proxies. Stop every proxy of version 0.1.0 first"
            )));
        }
    }
    Ok(())
}

/// The instances of version 0.1.0 that are not known to be dead, if the schema lets them in. One
/// statement, so that it reads none that has joined after a migration. The timeout is that of a
/// migration. The column `undelivered_ms` may exist, if an upgrade broke off halfway, or not.
async fn living(connection: &mut PgConnection) -> Result<Vec<Living>, StoreError> {
    tokio::time::timeout(MIGRATION, read_living(connection))
        .await
        .unwrap_or(Err(StoreError::Timeout(MIGRATION)))
}

async fn read_living(connection: &mut PgConnection) -> Result<Vec<Living>, StoreError> {
    let known: Vec<bool> = sqlx::query_scalar(
        "SELECT to_regclass('fencepost_migrations') IS NOT NULL AND to_regclass('instances') IS NOT NULL",
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(error_of)?;
    if known != [true] {
        return Ok(Vec::new());
    }
    sqlx::query_as(
        "SELECT namespace, id, renewals, lease_ms FROM instances AS i WHERE NOT dead \
         AND COALESCE((to_jsonb(i) ->> 'undelivered_ms')::bigint, 0) = 0 \
         AND NOT EXISTS (SELECT 1 FROM fencepost_migrations WHERE version >= $1)",
    )
    .bind(KEEPS_OUT)
    .fetch_all(connection)
    .await
    .map_err(error_of)
}
