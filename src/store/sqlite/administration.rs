//! [`Administration`] for [`SqliteStore`]: the check of the file, the marks that operators read and
//! change, the audit, and the route table.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::instances::instances;
use super::marks::{MARKS, keys_json};
use super::{SqliteStore, batch, schema};
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, AuditColumns, Failure, MarkColumns, Schema};
use crate::store::{
    Administration, AuditRow, Count, EpochRow, Era, InstanceId, InstanceRow, MarkRow, Marks,
    Override, PruneStep, Pruned, StoreError,
};

pub(super) const AUDIT: &str = "
    INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, CAST(unixepoch('subsec') * 1000 AS INTEGER))";

#[async_trait]
impl Administration for SqliteStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        // The schema was checked when the file was opened.
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        // An empty transaction would not notice a file that has become read-only.
        let touch = self.query(
            "INSERT INTO namespaces (namespace, era) VALUES (?1, 0) \
             ON CONFLICT (namespace) DO UPDATE SET era = era",
        );
        self.write(move |connection, _| {
            Box::pin(async move {
                touch.execute(&mut *connection).await?;
                match schema(connection).await? {
                    Schema::Current => Ok(()),
                    Schema::Behind => Err(rows::schema_behind().into()),
                }
            })
        })
        .await
    }

    /// Both ends are plain comparisons, so that the index gives no more than the page. Every blob
    /// sorts after every text.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let Some(span) = rows::span(prefix, after) else {
            return Ok(Vec::new());
        };
        self.look(move |connection, namespace| {
            Box::pin(async move {
                let marks: Vec<MarkColumns> = sqlx::query_as(
                    "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
                     WHERE namespace = ?1 AND resource >= max(?2, coalesce(?3, ?2)) \
                     AND (?3 IS NULL OR resource > ?3) AND resource < coalesce(?4, x'') \
                     ORDER BY resource LIMIT ?5",
                )
                .bind(namespace)
                .bind(span.from)
                .bind(span.after)
                .bind(span.until)
                .bind(i64::from(limit))
                .fetch_all(connection)
                .await?;
                Ok(rows::all(marks, rows::mark)?)
            })
        })
        .await
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        Ok(self.marks(std::slice::from_ref(resource)).await?.pop())
    }

    async fn view(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<EpochRow>)>, StoreError> {
        let keys = keys_json(std::slice::from_ref(resource));
        self.look(move |connection, namespace| {
            Box::pin(async move {
                let mark = sqlx::query_as(MARKS).bind(namespace).bind(&keys);
                let Some(mark) = mark.fetch_optional(&mut *connection).await? else {
                    return Ok(None);
                };
                let epochs = batch::epochs(connection, namespace, &keys).await?;
                Ok(Some((rows::mark(mark)?, epochs)))
            })
        })
        .await
    }

    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError> {
        self.epochs(std::slice::from_ref(resource)).await
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        let keys = keys_json(std::slice::from_ref(resource));
        let (resource, reason, actor) = (resource.clone(), reason.to_owned(), actor.to_owned());
        self.write(move |connection, namespace| {
            Box::pin(async move {
                let before: Option<i64> = sqlx::query_scalar(
                    "SELECT token FROM marks WHERE namespace = ?1 AND resource = ?2",
                )
                .bind(namespace)
                .bind(resource.as_str())
                .fetch_optional(&mut *connection)
                .await?;
                let Some(before) = before else {
                    return Ok(Override::Absent);
                };
                let open = batch::epochs(&mut *connection, namespace, &keys).await?;
                if !open.is_empty() {
                    return Ok(Override::EpochsOpen(open));
                }
                let era = next_era(&mut *connection, namespace).await?;
                sqlx::query(
                    "UPDATE marks SET previous = token, token = ?3, spent_by = NULL, era = ?4, \
                     changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) \
                     WHERE namespace = ?1 AND resource = ?2",
                )
                .bind(namespace)
                .bind(resource.as_str())
                .bind(token.get())
                .bind(era)
                .execute(&mut *connection)
                .await?;
                sqlx::query(AUDIT)
                    .bind(namespace)
                    .bind(resource.as_str())
                    .bind("override")
                    .bind(before)
                    .bind(token.get())
                    .bind(reason)
                    .bind(actor)
                    .execute(connection)
                    .await?;
                let before = rows::number(before)?;
                Ok(Override::Done { before, era })
            })
        })
        .await
    }

    async fn announce_prune(&self, me: &InstanceId) -> Result<(Era, Duration), StoreError> {
        self.announce_prune_of(me).await
    }

    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        self.prune_step(step).await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        let insertion = self
            .query(AUDIT)
            .bind(row.resource.as_str())
            .bind(&row.action)
            .bind(row.before.map(Token::get))
            .bind(row.after.map(Token::get))
            .bind(&row.reason)
            .bind(&row.actor);
        self.execute(insertion).await.map(drop)
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let resource = resource.clone();
        self.look(move |connection, namespace| {
            Box::pin(async move {
                let entries: Vec<AuditColumns> = sqlx::query_as(
                    "SELECT resource, action, before, after, reason, actor, at FROM audit \
                     WHERE namespace = ?1 AND resource = ?2 ORDER BY id DESC LIMIT ?3",
                )
                .bind(namespace)
                .bind(resource.as_str())
                .bind(i64::from(limit))
                .fetch_all(connection)
                .await?;
                Ok(rows::all(entries, rows::audit)?)
            })
        })
        .await
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        let known = Arc::clone(&self.known);
        if known.miscounted.load(Ordering::Acquire) {
            self.read(move |connection, namespace| {
                Box::pin(async move {
                    let (marks, _) = count(connection, namespace).await?;
                    // Within the turn: nothing is added meanwhile.
                    known.marks.store(marks, Ordering::Release);
                    known.miscounted.store(false, Ordering::Release);
                    Ok(())
                })
            })
            .await?;
        }
        Ok(Count {
            marks: self.counted().unwrap_or_default(),
            more: false,
        })
    }

    fn counted(&self) -> Option<u64> {
        Some(self.known.marks.load(Ordering::Acquire))
    }

    async fn routes(&self) -> Result<Option<String>, StoreError> {
        self.read(move |connection, namespace| {
            Box::pin(async move {
                let document: Option<Option<String>> =
                    sqlx::query_scalar("SELECT routes FROM namespaces WHERE namespace = ?1")
                        .bind(namespace)
                        .fetch_optional(connection)
                        .await?;
                Ok(document.flatten())
            })
        })
        .await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        let insertion = self
            .query(
                "INSERT INTO namespaces (namespace, era, routes) \
                 SELECT ?1, 0, ?3 WHERE ?2 IS NULL \
                     OR EXISTS (SELECT 1 FROM namespaces AS o WHERE o.namespace = ?1) \
                 ON CONFLICT (namespace) DO UPDATE SET routes = excluded.routes \
                 WHERE namespaces.routes IS ?2",
            )
            .bind(known)
            .bind(document);
        Ok(self.execute(insertion).await? == 1)
    }

    /// One transaction of the one process that has the file.
    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        let replacement = self
            .query(
                "INSERT INTO namespaces (namespace, era, routes) VALUES (?1, 0, ?2) \
                 ON CONFLICT (namespace) DO UPDATE SET routes = excluded.routes",
            )
            .bind(document);
        self.write(move |connection, namespace| {
            Box::pin(async move {
                // Only whether there are any.
                let present = instances(connection, namespace, "").await?;
                if present.is_empty() {
                    replacement.execute(connection).await?;
                }
                Ok(present)
            })
        })
        .await
    }
}

/// Begins the namespace's next era, and returns it.
pub(super) async fn next_era(
    connection: &mut SqliteConnection,
    namespace: &str,
) -> Result<Era, Failure> {
    let era = sqlx::query_scalar(
        "INSERT INTO namespaces (namespace, era) VALUES (?1, 1) \
         ON CONFLICT (namespace) DO UPDATE SET era = era + 1 RETURNING era",
    );
    Ok(era.bind(namespace).fetch_one(connection).await?)
}

/// The marks of a namespace, and when one of them last changed.
pub(super) async fn count(
    connection: &mut SqliteConnection,
    namespace: &str,
) -> Result<(u64, Option<i64>), Failure> {
    let (marks, latest_ms): (i64, Option<i64>) =
        sqlx::query_as("SELECT count(*), max(changed_at) FROM marks WHERE namespace = ?1")
            .bind(namespace)
            .fetch_one(connection)
            .await?;
    Ok((marks.unsigned_abs(), latest_ms))
}
