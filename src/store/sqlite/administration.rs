//! [`Administration`] for [`SqliteStore`]: the check of the file, the marks that operators read,
//! change and prune, the audit, and the route table.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::batch::json;
use super::instances::instances;
use super::marks::look;
use super::{SqliteStore, schema};
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, Failure, Schema};
use crate::store::{
    Administration, AuditRow, Count, Epoch, Era, InstanceId, InstanceRow, MarkRow, Override,
    PruneStep, Pruned, StoreError,
};

/// How many marks one transaction of a prune looks at. Requests wait for it.
const PIECE: usize = 1000;

const AUDIT: &str = "
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
        let list = self
            .query(
                "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
                 WHERE namespace = ?1 AND resource >= max(?2, coalesce(?3, ?2)) \
                 AND (?3 IS NULL OR resource > ?3) AND resource < coalesce(?4, x'') \
                 ORDER BY resource LIMIT ?5",
            )
            .bind(span.from)
            .bind(span.after)
            .bind(span.until)
            .bind(i64::from(limit));
        self.rows(list, rows::mark).await
    }

    async fn view(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<Epoch>)>, StoreError> {
        let keys = json(&[resource]);
        self.read(move |connection, namespace| {
            Box::pin(async move { Ok(look(connection, namespace, &keys).await?.pop()) })
        })
        .await
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        let keys = json(&[resource]);
        let (resource, reason, actor) = (resource.clone(), reason.to_owned(), actor.to_owned());
        self.write(move |connection, namespace| {
            Box::pin(async move {
                let looked = look(&mut *connection, namespace, &keys).await?.pop();
                let Some((mark, open)) = looked else {
                    return Ok(Override::Absent);
                };
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
                    .bind(mark.token.get())
                    .bind(token.get())
                    .bind(reason)
                    .bind(actor)
                    .execute(connection)
                    .await?;
                let before = mark.token;
                Ok(Override::Done { before, era })
            })
        })
        .await
    }

    /// No other instance can have the file.
    async fn announce_prune(&self, _: InstanceId) -> Result<(Era, Duration), StoreError> {
        let era = self
            .write(|connection, namespace| Box::pin(next_era(connection, namespace)))
            .await?;
        Ok((era, Duration::ZERO))
    }

    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        let step = step.clone();
        let done = self
            .write(move |connection, namespace| {
                Box::pin(async move { prune(connection, namespace, &step).await })
            })
            .await?;
        if done.era.is_some() {
            let less = |marks: u64| Some(marks.saturating_sub(done.deleted));
            let (set, read) = (Ordering::AcqRel, Ordering::Acquire);
            let _ = self.known.marks.fetch_update(set, read, less);
        }
        Ok(done)
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
        let entries = self
            .query(
                "SELECT resource, action, before, after, reason, actor, at FROM audit \
                 WHERE namespace = ?1 AND resource = ?2 ORDER BY id DESC LIMIT ?3",
            )
            .bind(resource.as_str().to_owned())
            .bind(i64::from(limit));
        self.rows(entries, rows::audit).await
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
                let mut present = instances(connection, namespace, "").await?;
                if present.is_empty() {
                    present = unknown(connection, namespace).await?;
                }
                if present.is_empty() {
                    replacement.execute(connection).await?;
                }
                Ok(present)
            })
        })
        .await
    }
}

/// The ids that only epochs know.
async fn unknown(
    connection: &mut SqliteConnection,
    namespace: &str,
) -> Result<Vec<InstanceRow>, Failure> {
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT DISTINCT e.value FROM marks AS m, json_each(m.open) AS e \
         WHERE m.namespace = ?1 AND e.key % 3 = 0 AND NOT EXISTS ( \
             SELECT 1 FROM instances AS i WHERE i.namespace = ?1 AND i.id = e.value)",
    )
    .bind(namespace)
    .fetch_all(connection)
    .await?;
    let unknown = |id| InstanceRow::unknown(InstanceId::from_row(id));
    Ok(ids.into_iter().map(unknown).collect())
}

/// Begins the namespace's next era, and returns it.
async fn next_era(connection: &mut SqliteConnection, namespace: &str) -> Result<Era, Failure> {
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

/// Within a transaction.
async fn prune(
    connection: &mut SqliteConnection,
    namespace: &str,
    step: &PruneStep,
) -> Result<Pruned, Failure> {
    let Some(span) = rows::span(&step.prefix, step.after.as_deref()) else {
        return Ok(Pruned::default());
    };
    // Every blob sorts after every text.
    let piece: Vec<(String, bool, bool)> = sqlx::query_as(concat!(
        "SELECT resource, changed_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - ?6, ",
        open!(),
        " <> '[]' FROM marks AS m
          WHERE namespace = ?1 AND resource >= max(?2, coalesce(?3, ?2))
          AND (?3 IS NULL OR resource > ?3) AND resource < coalesce(?4, x'')
          ORDER BY resource LIMIT ?5"
    ))
    .bind(namespace)
    .bind(span.from)
    .bind(span.after)
    .bind(span.until)
    .bind(i64::try_from(PIECE).unwrap_or(i64::MAX))
    .bind(rows::millis(step.unchanged))
    .fetch_all(&mut *connection)
    .await?;
    let last = piece.last().map(|(resource, ..)| resource.clone());
    let next = last.filter(|_| piece.len() == PIECE);
    let old = piece.into_iter().filter(|(_, old, _)| *old);
    let (open, old): (Vec<_>, Vec<_>) = old.partition(|(.., open)| *open);
    let old: Vec<String> = old.into_iter().map(|(resource, ..)| resource).collect();
    let mut done = Pruned {
        deleted: old.len() as u64,
        open: open.len() as u64,
        next,
        era: None,
    };
    if step.dry_run || old.is_empty() {
        return Ok(done);
    }
    done.era = Some(next_era(&mut *connection, namespace).await?);
    sqlx::query(
        "DELETE FROM marks WHERE namespace = ?1 AND resource IN (SELECT value FROM json_each(?2))",
    )
    .bind(namespace)
    .bind(json(&old))
    .execute(&mut *connection)
    .await?;
    sqlx::query(AUDIT)
        .bind(namespace)
        .bind(step.audited_as())
        .bind("prune")
        .bind(None::<i64>)
        .bind(None::<i64>)
        .bind(step.audited_reason(done.deleted))
        .bind(&step.actor)
        .execute(connection)
        .await?;
    Ok(done)
}
