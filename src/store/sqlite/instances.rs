//! [`Instances`] for [`SqliteStore`]: the one instance that lives, and the rows of earlier ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::batch::owners;
use super::marks::keys_json;
use super::{Beat, SqliteStore};
use crate::routing::ResourceKey;
use crate::store::rows::{self, Failure, InstanceColumns, start};
use crate::store::{
    Burial, Cursor, Era, InstanceId, InstanceRow, Instances, Renewal, StoreError, Terms,
};

/// How many epochs one step of a reaping deletes, within a few milliseconds. Requests wait for it:
/// there is one connection.
const MAX_REAPED: i64 = 2048;

#[async_trait]
impl Instances for SqliteStore {
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        self.expect_beats(terms.lease).await;
        // Without the log, all that this instance forwards from now on is missing.
        let beat = Beat::Of(instance.clone(), terms.renewals);
        let insertion = self
            .query(
                "INSERT INTO instances (namespace, id, renewals, lease_ms, settle_ms, \
                     undelivered_ms, routes, dead, boot) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8)",
            )
            .bind(instance.as_str())
            .bind(terms.renewals)
            .bind(rows::millis(terms.lease))
            .bind(rows::millis(terms.settle))
            .bind(rows::millis(terms.undelivered))
            .bind(&terms.routes)
            .bind(&*self.known.boot);
        self.turn(Some(beat), move |connection, namespace| {
            Box::pin(async move {
                insertion.execute(&mut *connection).await?;
                Ok(sqlx::query_scalar(
                    "INSERT INTO namespaces (namespace, era) VALUES (?1, 0) \
                     ON CONFLICT (namespace) DO UPDATE SET era = era RETURNING era",
                )
                .bind(namespace)
                .fetch_one(connection)
                .await?)
            })
        })
        .await
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        let update = self
            .query("UPDATE instances SET routes = ?3 WHERE namespace = ?1 AND id = ?2")
            .bind(instance.as_str())
            .bind(digest);
        self.execute(update).await.map(drop)
    }

    /// The counter itself moves by the heartbeat, in the same transaction.
    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        let instance = instance.clone();
        let beat = Beat::Of(instance.clone(), renewals);
        self.turn(Some(beat), move |connection, namespace| {
            Box::pin(async move {
                let row: Option<(bool, Era)> = sqlx::query_as(
                    "SELECT dead, coalesce( \
                         (SELECT n.era FROM namespaces AS n WHERE n.namespace = ?1), 0) \
                     FROM instances WHERE namespace = ?1 AND id = ?2",
                )
                .bind(namespace)
                .bind(instance.as_str())
                .fetch_optional(connection)
                .await?;
                Ok(match row {
                    Some((false, era)) => Renewal::Alive(era),
                    Some((true, _)) => Renewal::Dead,
                    None => Renewal::Unknown,
                })
            })
        })
        .await
    }

    fn proven(&self) -> Option<Duration> {
        let began = self.known.proven.load(Ordering::Acquire);
        (began > 0).then(|| Duration::from_nanos(began))
    }

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = lock.check_aside().await;
        if lock.lost().is_some() {
            // The next turn saves what only the log has: the sooner, the better.
            let _ = self.read(|_, _| Box::pin(async { Ok(()) })).await;
        }
        checked
    }

    async fn disconnect(&self) {
        // The next holder of the lock takes this process for ended, so the process keeps the lock.
        std::mem::forget(self.lock.upgrade());
        SqliteStore::close(self).await;
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        let insertion = self
            .query(
                "INSERT INTO namespaces (namespace, era) VALUES (?1, ?2) \
                 ON CONFLICT (namespace) DO UPDATE SET era = max(era, excluded.era)",
            )
            .bind(era);
        self.execute(insertion).await.map(drop)
    }

    fn connections(&self) -> u64 {
        0
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let known = Arc::clone(&self.known);
        self.read(move |connection, namespace| {
            Box::pin(async move { instances(connection, namespace, &known.boot).await })
        })
        .await
    }

    fn instances_over(&self) -> u64 {
        0
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let instance = instance.clone();
        let update = self
            .query(
                "UPDATE instances SET dead = 1 \
                 WHERE namespace = ?1 AND id = ?2 AND renewals = ?3",
            )
            .bind(instance.as_str())
            .bind(renewals);
        self.write(move |connection, namespace| {
            Box::pin(async move {
                update.execute(&mut *connection).await?;
                is_dead(connection, namespace, &instance).await
            })
        })
        .await
    }

    /// A page is read first: the index has its rows in order, next to each other. Then everything
    /// between its first row and its last is deleted. If the rows were named one by one, `SQLite`
    /// would look for them among all of the instance's.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        let (instance, first, after) = (instance.clone(), keys_json(first), after.cloned());
        self.write(move |connection, namespace| {
            Box::pin(async move {
                if !is_dead(&mut *connection, namespace, &instance).await? {
                    return Ok(Burial::default());
                }
                let (resource, opening) = start(after.as_ref());
                let page: Vec<(String, i64)> = sqlx::query_as(
                    "SELECT resource, opening FROM epochs WHERE namespace = ?1 AND instance = ?2 \
                     AND (resource, opening) > (?3, ?4) ORDER BY resource, opening LIMIT ?5",
                )
                .bind(namespace)
                .bind(instance.as_str())
                .bind(resource)
                .bind(opening)
                .bind(MAX_REAPED)
                .fetch_all(&mut *connection)
                .await?;
                let full = i64::try_from(page.len()) == Ok(MAX_REAPED);
                let next = page.last().filter(|_| full).cloned();
                if let Some((last, last_opening)) = page.last() {
                    sqlx::query(
                        "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 \
                         AND (resource, opening) > (?3, ?4) AND (resource, opening) <= (?5, ?6)",
                    )
                    .bind(namespace)
                    .bind(instance.as_str())
                    .bind(resource)
                    .bind(opening)
                    .bind(last)
                    .bind(last_opening)
                    .execute(&mut *connection)
                    .await?;
                }
                let mut freed: Vec<String> = sqlx::query_scalar(
                    "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 \
                     AND resource IN (SELECT value FROM json_each(?3)) RETURNING resource",
                )
                .bind(namespace)
                .bind(instance.as_str())
                .bind(first)
                .fetch_all(&mut *connection)
                .await?;
                freed.extend(page.into_iter().map(|(resource, _)| resource));
                if !full {
                    sqlx::query("DELETE FROM instances WHERE namespace = ?1 AND id = ?2")
                        .bind(namespace)
                        .bind(instance.as_str())
                        .execute(connection)
                        .await?;
                }
                Ok(rows::burial(freed, next)?)
            })
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let statements = [
            "DELETE FROM instances WHERE namespace = ?1 AND id = ?2 AND NOT EXISTS \
             (SELECT 1 FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2)",
            "UPDATE instances SET dead = 1 WHERE namespace = ?1 AND id = ?2",
        ];
        let statements = statements.map(|sql| self.query(sql).bind(instance.as_str()));
        self.write(move |connection, _| {
            Box::pin(async move {
                for statement in statements {
                    statement.execute(&mut *connection).await?;
                }
                Ok(())
            })
        })
        .await
    }
}

/// Every instance recorded, and every id that only an epoch row knows.
pub(super) async fn instances(
    connection: &mut SqliteConnection,
    namespace: &str,
    boot: &str,
) -> Result<Vec<InstanceRow>, Failure> {
    let rows: Vec<InstanceColumns> = sqlx::query_as(concat!(
        owners!(),
        "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead,
                 boot = '' OR boot <> ?2 FROM instances
             WHERE namespace = ?1
             UNION ALL
             SELECT o.id, 0, 0, 0, 0, '', 1, 0 FROM owners AS o
             WHERE o.id IS NOT NULL AND NOT EXISTS (
                 SELECT 1 FROM instances AS i WHERE i.namespace = ?1 AND i.id = o.id)"
    ))
    .bind(namespace)
    .bind(boot)
    .fetch_all(connection)
    .await?;
    Ok(rows::all(rows, rows::instance)?)
}

/// Dead, or known from epoch rows at most.
async fn is_dead(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: &InstanceId,
) -> Result<bool, Failure> {
    let dead: Option<bool> =
        sqlx::query_scalar("SELECT dead FROM instances WHERE namespace = ?1 AND id = ?2")
            .bind(namespace)
            .bind(instance.as_str())
            .fetch_optional(connection)
            .await?;
    Ok(dead.unwrap_or(true))
}
