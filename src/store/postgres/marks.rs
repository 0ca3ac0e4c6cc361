//! [`Marks`] for [`PostgresStore`]: the statements of requests, and of an instance's own rows.
//!
//! The writer's connection carries what requests wait for. The reader's carries an instance's own
//! rows, whose number must hold up no request.
//!
//! A statement that names many rows joins them to the keys that it brings along. The namespace
//! comes with the keys, from a subquery that the planner cannot take apart (DISTINCT, `OFFSET 0`).
//! If it stood beside the table, the planner would estimate, without statistics, that a namespace
//! has only a few rows, and read them all.
//!
//! The own rows are read and deleted in pages. Each page is found in the index over (namespace,
//! instance, resource, opening), so it costs as much as it holds, however many rows there are. No
//! other index has that order, since the instance is part of the bounds and not compared for
//! equality. A subquery reads the mark: a join may be planned, without statistics, as a search of
//! all marks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::slot::DedicatedConnection;
use super::{PostgresStore, UNREAD_NOTIFICATIONS, batch, notifications};
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, start};
use crate::store::{
    Batch, Batched, Cursor, EpochRow, Heard, InstanceId, MarkRow, Marks, Notification, Opening,
    OwnRow, StoreError,
};

#[async_trait]
impl Marks for PostgresStore {
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        self.on(&self.writer, async |c| {
            batch::run(c, (&self.namespace, &self.channel), batch, number).await
        })
        .await
    }

    /// The lock is the one that an advance takes.
    async fn locked(&self, resources: &[ResourceKey]) -> Result<Vec<ResourceKey>, StoreError> {
        let statement = self
            .query_as(
                "WITH k AS MATERIALIZED ( \
                     SELECT $1::text AS namespace, r.resource \
                     FROM unnest($2::text[]) AS r(resource) OFFSET 0 \
                 ), free AS MATERIALIZED ( \
                     SELECT m.resource FROM k JOIN marks AS m \
                         ON m.namespace = k.namespace AND m.resource = k.resource \
                     FOR NO KEY UPDATE OF m SKIP LOCKED) \
                 SELECT m.resource FROM k JOIN marks AS m \
                     ON m.namespace = k.namespace AND m.resource = k.resource \
                 WHERE NOT EXISTS (SELECT 1 FROM free AS f WHERE f.resource = m.resource)",
            )
            .bind(texts(resources));
        let key = |(resource,): (String,)| rows::key(&resource);
        self.rows(&self.writer, statement, key).await
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        self.epochs_over(&self.writer, resources).await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = sorted(epochs);
        let statement = self
            .query(
                "DELETE FROM epochs AS e \
                 USING (SELECT $1::text AS namespace, k.* \
                     FROM unnest($2::text[], $3::text[], $4::bigint[]) \
                         AS k(resource, instance, opening) OFFSET 0) AS d \
                 WHERE e.namespace = d.namespace AND e.resource = d.resource \
                 AND e.instance = d.instance AND e.opening = d.opening",
            )
            .bind(resources(&epochs))
            .bind(instances(&epochs))
            .bind(openings(&epochs));
        self.execute(&self.writer, statement).await.map(drop)
    }

    /// This commit does not wait for a flush, nor for a standby. A crash can only bring such a row
    /// back: the log has one order, so everything that was committed after the deletion is lost
    /// too, or the row stays deleted. No request uses a row that came back, and its owner finds
    /// it when it connects again.
    async fn close_wanted(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = sorted(epochs);
        let mut payloads = closed(&epochs);
        payloads.dedup();
        let statement = self
            .query(
                "WITH gone AS ( \
                     DELETE FROM epochs AS e \
                     USING (SELECT $1::text AS namespace, k.* \
                         FROM unnest($2::text[], $3::text[], $4::bigint[]) \
                             AS k(resource, instance, opening) OFFSET 0) AS d \
                     WHERE e.namespace = d.namespace AND e.resource = d.resource \
                     AND e.instance = d.instance AND e.opening = d.opening) \
                 SELECT pg_notify($5, payload), set_config('synchronous_commit', 'off', true) \
                 FROM unnest($6::text[]) AS payload",
            )
            .bind(resources(&epochs))
            .bind(instances(&epochs))
            .bind(openings(&epochs))
            .bind(&self.channel)
            .bind(payloads);
        self.execute(&self.writer, statement).await.map(drop)
    }

    /// Commits like [`Self::close_wanted`]. A mark may rise meanwhile; the one that is returned
    /// counts.
    async fn cede(&self, epochs: &[EpochRow]) -> Result<Vec<MarkRow>, StoreError> {
        let epochs = sorted(epochs);
        let statement = self
            .query_as(
                "WITH d AS ( \
                     SELECT k.*, m.token AS mark, m.spent_by IS NOT NULL AS spent, m.era, m.changed_at \
                     FROM (SELECT $1::text AS namespace, k.* \
                         FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[]) \
                             AS k(resource, instance, opening, token, payload) OFFSET 0) AS k \
                     JOIN marks AS m ON m.namespace = k.namespace AND m.resource = k.resource \
                 ), gone AS ( \
                     DELETE FROM epochs AS e USING d \
                     WHERE e.namespace = d.namespace AND e.resource = d.resource \
                     AND e.instance = d.instance AND e.opening = d.opening AND d.mark > d.token \
                 ), told AS ( \
                     SELECT pg_notify($7, d.payload), set_config('synchronous_commit', 'off', true) \
                     FROM d WHERE d.mark > d.token) \
                 SELECT d.resource, d.mark, d.spent, d.era, \
                     floor(extract(epoch FROM d.changed_at) * 1000)::bigint \
                 FROM d WHERE (SELECT count(*) FROM told) >= 0",
            )
            .bind(resources(&epochs))
            .bind(instances(&epochs))
            .bind(openings(&epochs))
            .bind(tokens(&epochs))
            .bind(closed(&epochs))
            .bind(&self.channel);
        self.rows(&self.operators, statement, rows::mark).await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = sorted(epochs);
        let statement = self
            .query(
                "INSERT INTO epochs (namespace, resource, instance, opening, token) \
                 SELECT $1, e.resource, e.instance, e.opening, e.token \
                 FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) \
                     AS e(resource, instance, opening, token) \
                 ORDER BY e.resource COLLATE \"C\", e.instance COLLATE \"C\", e.opening \
                 ON CONFLICT (namespace, resource, instance, opening) \
                 DO UPDATE SET token = epochs.token",
            )
            .bind(resources(&epochs))
            .bind(instances(&epochs))
            .bind(openings(&epochs))
            .bind(tokens(&epochs));
        self.execute(&self.writer, statement).await.map(drop)
    }

    /// Locks in key order first: these are the rows that advances lock. Both halves compare the
    /// name, since each sees the row as it is when it has the lock.
    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let resources: Vec<&str> = spends.iter().map(|(key, ..)| key.as_str()).collect();
        let tokens: Vec<i64> = spends.iter().map(|(_, token, _)| token.get()).collect();
        let names: Vec<&str> = spends.iter().map(|(.., name)| name.as_str()).collect();
        let statement = self
            .query(
                "WITH mine AS ( \
                     SELECT m.resource, s.token, s.name FROM marks AS m \
                     JOIN (SELECT $1::text AS namespace, k.* \
                         FROM unnest($2::text[], $3::bigint[], $4::text[]) \
                             AS k(resource, token, name) OFFSET 0) AS s \
                         ON m.namespace = s.namespace AND m.resource = s.resource \
                         AND m.token = s.token AND m.spent_by = s.name \
                     ORDER BY m.resource FOR UPDATE OF m) \
                 UPDATE marks AS m SET given_back = m.given_back + 1, spent_by = NULL FROM mine \
                 WHERE m.namespace = $1 AND m.resource = mine.resource \
                 AND m.token = mine.token AND m.spent_by = mine.name",
            )
            .bind(resources)
            .bind(tokens)
            .bind(names);
        self.execute(&self.writer, statement).await.map(drop)
    }

    async fn announce(&self, notifications: &[Notification]) -> Result<(), StoreError> {
        let payloads = notifications.iter().filter_map(notifications::encode);
        let statement =
            sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload")
                .bind(&self.channel)
                .bind(payloads.collect::<Vec<_>>());
        self.execute(&self.writer, statement).await.map(drop)
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        let (resource, opening) = start(after);
        let statement = self
            .query_as(
                "SELECT e.resource, e.instance, e.opening, e.token, ( \
                     SELECT m.token FROM marks AS m \
                     WHERE m.namespace = $1 AND m.resource = e.resource) \
                 FROM epochs AS e WHERE e.namespace = $1 AND e.instance <= $2 \
                 AND (e.instance, e.resource, e.opening) > ($2, $3, $4) \
                 ORDER BY e.instance, e.resource, e.opening LIMIT $5",
            )
            .bind(instance.as_str())
            .bind(resource)
            .bind(opening)
            .bind(i64::from(limit));
        self.rows(&self.reader, statement, rows::own).await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        let statement = self
            .query_as(
                "SELECT e.resource, e.instance, e.opening, e.token, ( \
                     SELECT m.token FROM marks AS m \
                     WHERE m.namespace = $1 AND m.resource = e.resource) \
                 FROM epochs AS e JOIN ( \
                     SELECT DISTINCT $1::text AS namespace, $2::text AS instance, k.resource \
                     FROM unnest($3::text[]) AS k(resource) \
                 ) AS k ON e.namespace = k.namespace AND e.instance = k.instance \
                     AND e.resource = k.resource",
            )
            .bind(instance.as_str())
            .bind(texts(resources));
        self.rows(&self.reader, statement, rows::own).await
    }

    /// A range at a time: naming a million rows one by one takes longer than deleting them.
    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError> {
        let (resource, opening) = start(after);
        let last = self
            .query_as(
                "SELECT e.resource, e.opening FROM epochs AS e \
                 WHERE e.namespace = $1 AND e.instance <= $2 \
                 AND (e.instance, e.resource, e.opening) > ($2, $3, $4) \
                 ORDER BY e.instance, e.resource, e.opening OFFSET $5 LIMIT 1",
            )
            .bind(instance.as_str())
            .bind(resource)
            .bind(opening)
            .bind(i64::from(limit.max(1)) - 1);
        // Two texts: the index is not searched by a bound that may be absent.
        let up_to_last = "DELETE FROM epochs AS e WHERE e.namespace = $1 AND e.instance <= $2 \
             AND (e.instance, e.resource, e.opening) > ($2, $3, $4) AND NOT EXISTS ( \
                 SELECT 1 FROM unnest($5::bigint[]) AS k(kept) WHERE k.kept = e.opening) \
             AND (e.instance, e.resource, e.opening) <= ($2, $6, $7)";
        let all = "DELETE FROM epochs AS e WHERE e.namespace = $1 AND e.instance <= $2 \
             AND (e.instance, e.resource, e.opening) > ($2, $3, $4) AND NOT EXISTS ( \
                 SELECT 1 FROM unnest($5::bigint[]) AS k(kept) WHERE k.kept = e.opening)";
        self.on(&self.reader, async |c| {
            let last: Vec<(String, i64)> = last.fetch_all(&mut *c).await?;
            let last = last.into_iter().next();
            let mut deletion = self
                .query(if last.is_some() { up_to_last } else { all })
                .bind(instance.as_str())
                .bind(resource)
                .bind(opening)
                .bind(kept);
            if let Some((resource, opening)) = &last {
                deletion = deletion.bind(resource).bind(opening);
            }
            deletion.execute(c).await?;
            Ok(last.map(rows::cursor).transpose()?)
        })
        .await
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        let statement = self
            .query_as(
                "SELECT m.resource, m.token, m.spent_by IS NOT NULL, m.era, \
                 floor(extract(epoch FROM m.changed_at) * 1000)::bigint FROM marks AS m JOIN ( \
                     SELECT DISTINCT $1::text AS namespace, k.resource \
                     FROM unnest($2::text[]) AS k(resource) \
                 ) AS k ON m.namespace = k.namespace AND m.resource = k.resource",
            )
            .bind(texts(resources));
        self.rows(&self.operators, statement, rows::mark).await
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (heard, receiver) = mpsc::channel(UNREAD_NOTIFICATIONS);
        let listening =
            notifications::listen(Arc::clone(&self.connector), self.channel.clone(), heard);
        tokio::spawn(listening);
        Some(receiver)
    }
}

impl PostgresStore {
    /// Every epoch row of these resources, over the writer's or the operators' connection.
    pub(super) async fn epochs_over(
        &self,
        slot: &DedicatedConnection,
        resources: &[ResourceKey],
    ) -> Result<Vec<EpochRow>, StoreError> {
        let statement = self
            .query_as(
                "SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e JOIN ( \
                     SELECT DISTINCT $1::text AS namespace, k.resource \
                     FROM unnest($2::text[]) AS k(resource) \
                 ) AS k ON e.namespace = k.namespace AND e.resource = k.resource",
            )
            .bind(texts(resources));
        self.rows(slot, statement, rows::epoch).await
    }
}

pub(super) fn texts(resources: &[ResourceKey]) -> Vec<&str> {
    resources.iter().map(ResourceKey::as_str).collect()
}

/// In key order: a reaping of this instance locks the rows in the same order.
fn sorted(epochs: &[EpochRow]) -> Vec<&EpochRow> {
    let mut epochs: Vec<&EpochRow> = epochs.iter().collect();
    epochs.sort();
    epochs
}

fn resources<'a>(epochs: &[&'a EpochRow]) -> Vec<&'a str> {
    epochs.iter().map(|epoch| epoch.resource.as_str()).collect()
}

fn instances<'a>(epochs: &[&'a EpochRow]) -> Vec<&'a str> {
    epochs.iter().map(|epoch| epoch.instance.as_str()).collect()
}

fn openings(epochs: &[&EpochRow]) -> Vec<Opening> {
    epochs.iter().map(|epoch| epoch.opening).collect()
}

fn tokens(epochs: &[&EpochRow]) -> Vec<i64> {
    epochs.iter().map(|epoch| epoch.token.get()).collect()
}

/// A notification for each of these, that it was closed.
fn closed(epochs: &[&EpochRow]) -> Vec<String> {
    let notification = |epoch: &&EpochRow| Notification::Closed {
        resource: epoch.resource.clone(),
    };
    let payloads = epochs.iter().map(notification);
    let payloads = payloads.map(|closed| notifications::encode(&closed).unwrap_or_default());
    payloads.collect()
}
