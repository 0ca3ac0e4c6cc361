//! [`Instances`] for [`SqliteStore`]: the one instance that lives, and the rows of earlier ones.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::batch::json;
use super::{Kind, SqliteStore, count};
use crate::store::rows::{self, Failure, InstanceColumns};
use crate::store::{
    Era, InstanceId, InstanceRow, Instances, Opening, Publication, Renewal, StoreError, Terms,
};

#[async_trait]
impl Instances for SqliteStore {
    async fn join(&self, instance: InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let insertion = self
            .query(
                "INSERT INTO instances (namespace, id, state, renewals, lease_ms, settle_ms, \
                     undelivered_ms, routes, closed_below, left_open, place) \
                 VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, 0, '[]', ?8)",
            )
            .bind(instance.get())
            .bind(terms.renewals)
            .bind(rows::millis(terms.lease))
            .bind(rows::millis(terms.settle))
            .bind(rows::millis(terms.undelivered))
            .bind(&terms.routes)
            .bind(&*self.known.boot);
        // Without the log, all that this instance forwards from now on is missing.
        self.turn(Kind::Heartbeat, move |connection, namespace| {
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

    async fn renew(
        &self,
        instance: InstanceId,
        terms: &Terms,
        publication: &Publication,
    ) -> Result<Renewal, StoreError> {
        let update = self
            .query(
                "UPDATE instances SET renewals = max(renewals, ?3), routes = ?4, \
                     closed_below = ?5, left_open = ?6 \
                 WHERE namespace = ?1 AND id = ?2 AND state = 0",
            )
            .bind(instance.get())
            .bind(terms.renewals)
            .bind(&terms.routes)
            .bind(publication.below)
            .bind(json(&publication.left));
        self.turn(Kind::Heartbeat, move |connection, namespace| {
            Box::pin(async move {
                update.execute(&mut *connection).await?;
                let row: Option<(bool, Era)> = sqlx::query_as(
                    "SELECT state > 0, coalesce( \
                         (SELECT n.era FROM namespaces AS n WHERE n.namespace = ?1), 0) \
                     FROM instances WHERE namespace = ?1 AND id = ?2",
                )
                .bind(namespace)
                .bind(instance.get())
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

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = count::in_place(&lock).await;
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

    async fn declare_dead(&self, instance: InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let update = self
            .query(
                "UPDATE instances SET state = 1 \
                 WHERE namespace = ?1 AND id = ?2 AND renewals = ?3 AND state = 0",
            )
            .bind(instance.get())
            .bind(renewals);
        self.write(move |connection, namespace| {
            Box::pin(async move {
                update.execute(&mut *connection).await?;
                let alive = sqlx::query(
                    "SELECT 1 FROM instances WHERE namespace = ?1 AND id = ?2 AND state = 0",
                )
                .bind(namespace)
                .bind(instance.get());
                Ok(alive.fetch_optional(connection).await?.is_none())
            })
        })
        .await
    }

    async fn settle(&self, instance: InstanceId) -> Result<bool, StoreError> {
        let settled = self
            .query(
                "INSERT INTO instances (namespace, id, state, renewals, lease_ms, settle_ms, \
                     undelivered_ms, routes, closed_below, left_open, place) \
                 VALUES (?1, ?2, 2, 0, 0, 0, 0, '', ?3, '[]', '') \
                 ON CONFLICT (namespace, id) DO UPDATE SET state = 2, \
                     closed_below = excluded.closed_below, left_open = excluded.left_open \
                 WHERE instances.state > 0",
            )
            .bind(instance.get())
            .bind(Opening::MAX);
        Ok(self.execute(settled).await? > 0)
    }

    async fn leave(
        &self,
        instance: InstanceId,
        publication: &Publication,
    ) -> Result<(), StoreError> {
        let (state, below) = publication.at_leave();
        let update = self
            .query(
                "UPDATE instances SET state = ?3, closed_below = ?4, left_open = ?5 \
                 WHERE namespace = ?1 AND id = ?2 AND state = 0",
            )
            .bind(instance.get())
            .bind(state)
            .bind(below)
            .bind(json(&publication.left));
        self.execute(update).await.map(drop)
    }
}

/// The instances that have not settled.
pub(super) async fn instances(
    connection: &mut SqliteConnection,
    namespace: &str,
    boot: &str,
) -> Result<Vec<InstanceRow>, Failure> {
    let rows: Vec<InstanceColumns> = sqlx::query_as(
        "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, routes, state > 0, \
             place <> '' AND place = ?2 FROM instances WHERE namespace = ?1 AND state < 2",
    )
    .bind(namespace)
    .bind(boot)
    .fetch_all(connection)
    .await?;
    Ok(rows::all(rows, rows::instance)?)
}
