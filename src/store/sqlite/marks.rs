//! [`Marks`] for [`SqliteStore`]: the statements of requests, and of an instance's own rows.
//!
//! The own rows are read and deleted in pages, so that requests do not wait long for the one
//! connection.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::mpsc;

use super::batch::{self, BatchJson, epochs_json};
use super::unbroken::Unbroken;
use super::{SqliteStore, connection};
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, start};
use crate::store::{
    Batch, Batched, Cursor, EpochRow, Heard, InstanceId, MarkRow, Marks, Notification, Opening,
    OwnRow, StoreError,
};

/// The marks of the keys in a JSON array.
pub(super) const MARKS: &str = "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
     WHERE namespace = ?1 AND resource IN (SELECT value FROM json_each(?2))";

#[async_trait]
impl Marks for SqliteStore {
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let load = BatchJson::new(batch);
        let (session, known) = (Arc::clone(&self.session), Arc::clone(&self.known));
        // Like every other call, but in the task of its caller.
        let work = Unbroken::new(|begun| async move {
            let mut session = session.lock_owned().await;
            begun.set();
            let (done, log) = session.batch(&known, load).await?;
            if log.is_some_and(connection::is_long) {
                // No caller waits for this.
                tokio::spawn(async move { session.tidy_if(log).await });
            } else {
                session.tidy_if(log).await;
            }
            Ok(done)
        });
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(StoreError::Timeout(self.timeout)),
        }
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        let read = self.query(batch::EPOCHS).bind(keys_json(resources));
        self.rows(read, rows::epoch).await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let deletion = self
            .query(
                "DELETE FROM epochs WHERE namespace = ?1 AND (instance, resource, opening) IN \
                 (SELECT e.value ->> 1, e.value ->> 0, e.value ->> 2 FROM jsonb_each(?2) AS e)",
            )
            .bind(epochs_json(epochs));
        self.execute(deletion).await.map(drop)
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let insertion = self
            .query(
                "INSERT INTO epochs (namespace, resource, instance, opening, token) \
                 SELECT ?1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3 \
                 FROM json_each(?2) AS e WHERE true ON CONFLICT DO NOTHING",
            )
            .bind(epochs_json(epochs));
        self.execute(insertion).await.map(drop)
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let spends = spends
            .iter()
            .map(|(resource, token, name)| (resource.as_str(), token.get(), name));
        let update = self
            .query(
                "UPDATE marks SET given_back = given_back + 1, spent_by = NULL \
                 FROM json_each(?2) AS s WHERE namespace = ?1 AND resource = s.value ->> 0 \
                 AND token = s.value ->> 1 AND spent_by = s.value ->> 2",
            )
            .bind(json!(spends.collect::<Vec<_>>()).to_string());
        self.execute(update).await.map(drop)
    }

    async fn announce(&self, _notifications: &[Notification]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        let (resource, opening) = start(after);
        let read = self
            .query(
                "SELECT e.resource, e.instance, e.opening, e.token, ( \
                     SELECT m.token FROM marks AS m \
                     WHERE m.namespace = ?1 AND m.resource = e.resource) \
                 FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2 \
                 AND (e.resource, e.opening) > (?3, ?4) \
                 ORDER BY e.resource, e.opening LIMIT ?5",
            )
            .bind(instance.as_str())
            .bind(resource)
            .bind(opening)
            .bind(limit);
        self.rows(read, rows::own).await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        let read = self
            .query(
                "SELECT e.resource, e.instance, e.opening, e.token, ( \
                     SELECT m.token FROM marks AS m \
                     WHERE m.namespace = ?1 AND m.resource = e.resource) \
                 FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2 \
                 AND e.resource IN (SELECT value FROM json_each(?3))",
            )
            .bind(instance.as_str())
            .bind(keys_json(resources));
        self.rows(read, rows::own).await
    }

    /// A range at a time: naming a million rows one by one takes longer than deleting them.
    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError> {
        let (instance, after, kept) = (instance.clone(), after.cloned(), json!(kept).to_string());
        self.write(move |connection, namespace| {
            Box::pin(async move {
                let (resource, opening) = start(after.as_ref());
                let last: Option<(String, i64)> = sqlx::query_as(
                    "SELECT resource, opening FROM epochs \
                     WHERE namespace = ?1 AND instance = ?2 AND (resource, opening) > (?3, ?4) \
                     ORDER BY resource, opening LIMIT 1 OFFSET ?5",
                )
                .bind(namespace)
                .bind(instance.as_str())
                .bind(resource)
                .bind(opening)
                .bind(i64::from(limit.max(1)) - 1)
                .fetch_optional(&mut *connection)
                .await?;
                // Two texts: the index is not searched by a bound that may be absent.
                let sql = if last.is_some() {
                    "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 \
                     AND (resource, opening) > (?3, ?4) \
                     AND opening NOT IN (SELECT value FROM json_each(?5)) \
                     AND (resource, opening) <= (?6, ?7)"
                } else {
                    "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 \
                     AND (resource, opening) > (?3, ?4) \
                     AND opening NOT IN (SELECT value FROM json_each(?5))"
                };
                let mut deletion = sqlx::query(sql)
                    .bind(namespace)
                    .bind(instance.as_str())
                    .bind(resource)
                    .bind(opening)
                    .bind(kept);
                if let Some((resource, opening)) = &last {
                    deletion = deletion.bind(resource).bind(opening);
                }
                deletion.execute(connection).await?;
                Ok(last.map(rows::cursor).transpose()?)
            })
        })
        .await
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        let read = self.query(MARKS).bind(keys_json(resources));
        self.rows(read, rows::mark).await
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        None
    }
}

/// The keys as one JSON array, which a statement takes as a single parameter.
pub(super) fn keys_json(resources: &[ResourceKey]) -> String {
    let keys: Vec<&str> = resources.iter().map(ResourceKey::as_str).collect();
    json!(keys).to_string()
}
