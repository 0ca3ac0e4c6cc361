//! Prunes marks: see [`Administration::prune`](crate::store::Administration::prune).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use sqlx::SqliteConnection;

use super::administration::{AUDIT, next_era};
use super::{SqliteStore, batch};
use crate::store::rows::{self, Failure};
use crate::store::{Administration, Era, InstanceId, PruneStep, Pruned, StoreError};

/// How many marks one transaction looks at. Requests wait for it.
const PIECE: usize = 1000;

impl SqliteStore {
    /// No other instance can have the file.
    pub(super) async fn announce_prune_of(
        &self,
        _: &InstanceId,
    ) -> Result<(Era, Duration), StoreError> {
        let era = self
            .write(|connection, namespace| Box::pin(next_era(connection, namespace)))
            .await?;
        Ok((era, Duration::ZERO))
    }

    pub(super) async fn prune_step(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        let (step, known) = (step.clone(), Arc::clone(&self.known));
        let done = self
            .write(move |connection, namespace| {
                Box::pin(async move {
                    let done = prune(connection, namespace, &step).await?;
                    if done.era.is_some() {
                        known.miscounted.store(true, Ordering::Release);
                    }
                    Ok(done)
                })
            })
            .await?;
        if done.era.is_some() {
            // A failure leaves the count to the next one.
            let _ = self.count_marks().await;
        }
        Ok(done)
    }
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
    let piece: Vec<(String, bool)> = sqlx::query_as(
        "SELECT resource, changed_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - ?6 FROM marks \
         WHERE namespace = ?1 AND resource >= max(?2, coalesce(?3, ?2)) \
         AND (?3 IS NULL OR resource > ?3) AND resource < coalesce(?4, x'') \
         ORDER BY resource LIMIT ?5",
    )
    .bind(namespace)
    .bind(span.from)
    .bind(span.after)
    .bind(span.until)
    .bind(i64::try_from(PIECE).unwrap_or(i64::MAX))
    .bind(rows::millis(step.unchanged))
    .fetch_all(&mut *connection)
    .await?;
    let last = piece.last().map(|(resource, _)| resource.clone());
    let next = last.filter(|_| piece.len() == PIECE);
    let old = piece.into_iter().filter(|(_, old)| *old);
    let mut old: Vec<String> = old.map(|(resource, _)| resource).collect();
    let open = batch::epochs(&mut *connection, namespace, &json!(old).to_string()).await?;
    let open: BTreeSet<&str> = open.iter().map(|row| row.resource.as_str()).collect();
    old.retain(|resource| !open.contains(resource.as_str()));
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
    .bind(json!(old).to_string())
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
