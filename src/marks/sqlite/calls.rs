//! The statements behind each call of [`SqliteStore`]. Batches travel as one JSON array each, so
//! that a batch is a few statements and not a few per row.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use sqlx::SqliteConnection;

use super::{SqliteStore, schema};
use crate::fence::{ResourceKey, Token};
use crate::marks::rows::{
    self, AuditColumns, EpochColumns, Failure, InstanceColumns, MarkColumns, Schema,
};
use crate::marks::store::{
    Ask, AuditRow, EpochRow, Era, Found, Heard, InstanceId, InstanceRow, MarkRow, MarkStore, News,
    Override, Renewal, StoreError,
};

/// Locks are the whole file's here; what counts is that `previous` is the mark before this
/// statement, and that a row of a later era keeps everything. In an UPDATE's SET, columns on the
/// right have their old values.
const ADVANCE: &str = "
    INSERT INTO marks AS m (namespace, resource, token, previous, spent_by, era, changed_at)
    SELECT ?1, ask.value ->> 0, ask.value ->> 1, NULL, ask.value ->> 2, ?2,
           CAST(unixepoch('subsec') * 1000 AS INTEGER)
    FROM json_each(?3) AS ask
    WHERE true
    ON CONFLICT (namespace, resource) DO UPDATE SET
        previous = m.token,
        token = CASE WHEN m.era > ?2 THEN m.token ELSE max(m.token, excluded.token) END,
        spent_by = CASE
            WHEN m.era > ?2 OR excluded.token < m.token THEN m.spent_by
            WHEN excluded.token > m.token THEN excluded.spent_by
            ELSE coalesce(m.spent_by, excluded.spent_by) END,
        changed_at = CASE
            WHEN m.era <= ?2 AND excluded.token > m.token THEN excluded.changed_at
            ELSE m.changed_at END
    RETURNING resource, token, previous, era, spent_by";

const OPEN_EPOCHS: &str = "
    INSERT INTO epochs (namespace, resource, instance, opening, token)
    SELECT ?1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3
    FROM json_each(?2) AS e";

const REOPEN_EPOCHS: &str = "
    INSERT INTO epochs (namespace, resource, instance, opening, token)
    SELECT ?1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3
    FROM json_each(?2) AS e
    WHERE true
    ON CONFLICT DO NOTHING";

const AUDIT: &str = "
    INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, CAST(unixepoch('subsec') * 1000 AS INTEGER))";

/// `(resource, token, previous, era, spent_by)`.
type Advanced = (String, i64, Option<i64>, i64, Option<String>);

#[async_trait]
impl MarkStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn shared(&self) -> bool {
        false
    }

    async fn advance(
        &self,
        instance: &InstanceId,
        era: Era,
        asks: &[Ask],
    ) -> Result<Vec<Found>, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        let asks = asks.to_vec();
        self.write(move |connection| {
            Box::pin(async move {
                let batch = json!(
                    asks.iter()
                        .map(|ask| json!([ask.resource.as_str(), ask.token.get(), ask.spend]))
                        .collect::<Vec<_>>()
                );
                let rows: Vec<Advanced> = sqlx::query_as(ADVANCE)
                    .bind(&*namespace)
                    .bind(era)
                    .bind(batch.to_string())
                    .fetch_all(&mut *connection)
                    .await?;
                let rows: HashMap<&str, &Advanced> =
                    rows.iter().map(|row| (row.0.as_str(), row)).collect();
                let mut opened = Vec::new();
                let mut found = Vec::with_capacity(asks.len());
                for ask in asks {
                    let (_, mark, previous, row_era, spent_by) =
                        rows.get(ask.resource.as_str()).ok_or_else(|| {
                            StoreError::Statement(format!("no answer for {}", ask.resource))
                        })?;
                    let is_mark = *mark == ask.token.get();
                    if let Some(opening) = ask.opening
                        && is_mark
                        && *row_era <= era
                    {
                        opened.push(EpochRow {
                            resource: ask.resource,
                            instance: instance.clone(),
                            opening,
                            token: ask.token,
                        });
                    }
                    found.push(Found {
                        before: previous.map(rows::number).transpose()?,
                        era: *row_era,
                        spent_by: spent_by.clone().filter(|_| is_mark),
                    });
                }
                if !opened.is_empty() {
                    sqlx::query(OPEN_EPOCHS)
                        .bind(&*namespace)
                        .bind(epochs_json(&opened))
                        .execute(&mut *connection)
                        .await?;
                }
                Ok(found)
            })
        })
        .await
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        let namespace = self.namespace.clone();
        let resources = json!(
            resources
                .iter()
                .map(ResourceKey::as_str)
                .collect::<Vec<_>>()
        );
        self.read(move |connection| {
            Box::pin(async move {
                let rows: Vec<EpochColumns> = sqlx::query_as(
                    "SELECT resource, instance, opening, token FROM epochs WHERE namespace = ?1 \
                     AND resource IN (SELECT value FROM json_each(?2))",
                )
                .bind(&*namespace)
                .bind(resources.to_string())
                .fetch_all(connection)
                .await?;
                all(rows, rows::epoch)
            })
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let namespace = self.namespace.clone();
        let epochs = epochs_json(epochs);
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "DELETE FROM epochs WHERE namespace = ?1 AND (resource, instance, opening) IN \
                     (SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2 FROM json_each(?2) AS e)",
                )
                .bind(&*namespace)
                .bind(epochs)
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    async fn superseded(
        &self,
        instance: &InstanceId,
    ) -> Result<Vec<(EpochRow, Token)>, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.read(move |connection| {
            Box::pin(async move {
                let rows: Vec<(String, String, i64, i64, i64)> = sqlx::query_as(
                    "SELECT e.resource, e.instance, e.opening, e.token, m.token FROM epochs AS e \
                     JOIN marks AS m ON m.namespace = e.namespace AND m.resource = e.resource \
                     WHERE e.namespace = ?1 AND e.instance = ?2 AND e.token < m.token",
                )
                .bind(&*namespace)
                .bind(instance.as_str())
                .fetch_all(connection)
                .await?;
                all(rows, |(resource, instance, opening, token, mark)| {
                    Ok((
                        rows::epoch((resource, instance, opening, token))?,
                        rows::number(mark)?,
                    ))
                })
            })
        })
        .await
    }

    async fn own(&self, instance: &InstanceId) -> Result<Vec<EpochRow>, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.read(move |connection| {
            Box::pin(async move {
                let rows: Vec<EpochColumns> = sqlx::query_as(
                    "SELECT resource, instance, opening, token FROM epochs \
                     WHERE namespace = ?1 AND instance = ?2",
                )
                .bind(&*namespace)
                .bind(instance.as_str())
                .fetch_all(connection)
                .await?;
                all(rows, rows::epoch)
            })
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let namespace = self.namespace.clone();
        let epochs = epochs_json(epochs);
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(REOPEN_EPOCHS)
                    .bind(&*namespace)
                    .bind(epochs)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let namespace = self.namespace.clone();
        let spends = json!(
            spends
                .iter()
                .map(|(resource, token, name)| json!([resource.as_str(), token.get(), name]))
                .collect::<Vec<_>>()
        );
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE marks SET spent_by = NULL FROM json_each(?2) AS s \
                     WHERE namespace = ?1 AND resource = s.value ->> 0 AND token = s.value ->> 1 \
                     AND spent_by = s.value ->> 2",
                )
                .bind(&*namespace)
                .bind(spends.to_string())
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    async fn announce(&self, _news: &[News]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn join(
        &self,
        instance: &InstanceId,
        lease: Duration,
        settle: Duration,
    ) -> Result<Era, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO instances (namespace, id, renewals, lease_ms, settle_ms, dead) \
                     VALUES (?1, ?2, 0, ?3, ?4, 0)",
                )
                .bind(&*namespace)
                .bind(instance.as_str())
                .bind(rows::millis(lease))
                .bind(rows::millis(settle))
                .execute(&mut *connection)
                .await?;
                Ok(sqlx::query_scalar(
                    "INSERT INTO namespaces (namespace, era) VALUES (?1, 0) \
                     ON CONFLICT (namespace) DO UPDATE SET era = era RETURNING era",
                )
                .bind(&*namespace)
                .fetch_one(connection)
                .await?)
            })
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId) -> Result<Renewal, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.write(move |connection| {
            Box::pin(async move {
                let era: Option<Era> = sqlx::query_scalar(
                    "UPDATE instances SET renewals = renewals + 1 \
                     WHERE namespace = ?1 AND id = ?2 AND NOT dead RETURNING coalesce( \
                     (SELECT n.era FROM namespaces AS n WHERE n.namespace = ?1), 0)",
                )
                .bind(&*namespace)
                .bind(instance.as_str())
                .fetch_optional(connection)
                .await?;
                Ok(era.map_or(Renewal::Dead, Renewal::Alive))
            })
        })
        .await
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let namespace = self.namespace.clone();
        self.read(move |connection| {
            Box::pin(async move {
                let rows: Vec<InstanceColumns> = sqlx::query_as(
                    "SELECT id, renewals, lease_ms, settle_ms, dead FROM instances \
                     WHERE namespace = ?1 \
                     UNION ALL \
                     SELECT DISTINCT e.instance, 0, 0, 0, 1 FROM epochs AS e \
                     WHERE e.namespace = ?1 AND NOT EXISTS (SELECT 1 FROM instances AS i \
                     WHERE i.namespace = ?1 AND i.id = e.instance)",
                )
                .bind(&*namespace)
                .fetch_all(connection)
                .await?;
                all(rows, rows::instance)
            })
        })
        .await
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE instances SET dead = 1 \
                     WHERE namespace = ?1 AND id = ?2 AND renewals = ?3",
                )
                .bind(&*namespace)
                .bind(instance.as_str())
                .bind(renewals)
                .execute(&mut *connection)
                .await?;
                is_dead(connection, &namespace, &instance).await
            })
        })
        .await
    }

    async fn bury(&self, instance: &InstanceId) -> Result<Vec<ResourceKey>, StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.write(move |connection| {
            Box::pin(async move {
                if !is_dead(&mut *connection, &namespace, &instance).await? {
                    return Ok(Vec::new());
                }
                sqlx::query("DELETE FROM instances WHERE namespace = ?1 AND id = ?2")
                    .bind(&*namespace)
                    .bind(instance.as_str())
                    .execute(&mut *connection)
                    .await?;
                let mut resources: Vec<String> = sqlx::query_scalar(
                    "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 RETURNING resource",
                )
                .bind(&*namespace)
                .bind(instance.as_str())
                .fetch_all(connection)
                .await?;
                resources.sort();
                resources.dedup();
                all(resources, |resource| rows::key(&resource))
            })
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let namespace = self.namespace.clone();
        let instance = instance.clone();
        self.write(move |connection| {
            Box::pin(async move {
                for statement in [
                    "DELETE FROM instances WHERE namespace = ?1 AND id = ?2 AND NOT EXISTS \
                     (SELECT 1 FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2)",
                    "UPDATE instances SET dead = 1 WHERE namespace = ?1 AND id = ?2",
                ] {
                    sqlx::query(statement)
                        .bind(&*namespace)
                        .bind(instance.as_str())
                        .execute(&mut *connection)
                        .await?;
                }
                Ok(())
            })
        })
        .await
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        // The schema was looked at when the file was opened.
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        // An empty transaction would not notice a file that has become read-only.
        let namespace = self.namespace.clone();
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO namespaces (namespace, era) VALUES (?1, 0) \
                     ON CONFLICT (namespace) DO UPDATE SET era = era",
                )
                .bind(&*namespace)
                .execute(&mut *connection)
                .await?;
                match schema(connection).await? {
                    Schema::Current => Ok(()),
                    Schema::Behind => Err(rows::schema_behind().into()),
                }
            })
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let Some(span) = rows::span(prefix, after) else {
            return Ok(Vec::new());
        };
        let namespace = self.namespace.clone();
        self.read(move |connection| {
            Box::pin(async move {
                let rows: Vec<MarkColumns> = sqlx::query_as(
                    "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
                     WHERE namespace = ?1 AND resource >= ?2 \
                     AND (?3 IS NULL OR resource > ?3) AND (?4 IS NULL OR resource < ?4) \
                     ORDER BY resource LIMIT ?5",
                )
                .bind(&*namespace)
                .bind(span.from)
                .bind(span.after)
                .bind(span.until)
                .bind(i64::from(limit))
                .fetch_all(connection)
                .await?;
                all(rows, rows::mark)
            })
        })
        .await
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        let namespace = self.namespace.clone();
        let resource = resource.clone();
        self.read(move |connection| {
            Box::pin(async move {
                let row: Option<MarkColumns> = sqlx::query_as(
                    "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
                     WHERE namespace = ?1 AND resource = ?2",
                )
                .bind(&*namespace)
                .bind(resource.as_str())
                .fetch_optional(connection)
                .await?;
                Ok(row.map(rows::mark).transpose()?)
            })
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
        let namespace = self.namespace.clone();
        let resource = resource.clone();
        let (reason, actor) = (reason.to_owned(), actor.to_owned());
        self.write(move |connection| {
            Box::pin(async move {
                let before: Option<i64> = sqlx::query_scalar(
                    "SELECT token FROM marks WHERE namespace = ?1 AND resource = ?2",
                )
                .bind(&*namespace)
                .bind(resource.as_str())
                .fetch_optional(&mut *connection)
                .await?;
                let Some(before) = before else {
                    return Ok(Override::Absent);
                };
                let open: Vec<EpochColumns> = sqlx::query_as(
                    "SELECT resource, instance, opening, token FROM epochs \
                     WHERE namespace = ?1 AND resource = ?2 ORDER BY instance, opening",
                )
                .bind(&*namespace)
                .bind(resource.as_str())
                .fetch_all(&mut *connection)
                .await?;
                if !open.is_empty() {
                    return Ok(Override::EpochsOpen(all(open, rows::epoch)?));
                }
                let era: Era = sqlx::query_scalar(
                    "INSERT INTO namespaces (namespace, era) VALUES (?1, 1) \
                     ON CONFLICT (namespace) DO UPDATE SET era = era + 1 RETURNING era",
                )
                .bind(&*namespace)
                .fetch_one(&mut *connection)
                .await?;
                sqlx::query(
                    "UPDATE marks SET previous = token, token = ?3, spent_by = NULL, era = ?4, \
                     changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) \
                     WHERE namespace = ?1 AND resource = ?2",
                )
                .bind(&*namespace)
                .bind(resource.as_str())
                .bind(token.get())
                .bind(era)
                .execute(&mut *connection)
                .await?;
                sqlx::query(AUDIT)
                    .bind(&*namespace)
                    .bind(resource.as_str())
                    .bind("override")
                    .bind(before)
                    .bind(token.get())
                    .bind(reason)
                    .bind(actor)
                    .execute(connection)
                    .await?;
                Ok(Override::Done {
                    before: rows::number(before)?,
                    era,
                })
            })
        })
        .await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        let namespace = self.namespace.clone();
        let row = row.clone();
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(AUDIT)
                    .bind(&*namespace)
                    .bind(row.resource.as_str())
                    .bind(row.action)
                    .bind(row.before.map(Token::get))
                    .bind(row.after.map(Token::get))
                    .bind(row.reason)
                    .bind(row.actor)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .await
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let namespace = self.namespace.clone();
        let resource = resource.clone();
        self.read(move |connection| {
            Box::pin(async move {
                let rows: Vec<AuditColumns> = sqlx::query_as(
                    "SELECT resource, action, before, after, reason, actor, at FROM audit \
                     WHERE namespace = ?1 AND resource = ?2 ORDER BY id DESC LIMIT ?3",
                )
                .bind(&*namespace)
                .bind(resource.as_str())
                .bind(i64::from(limit))
                .fetch_all(connection)
                .await?;
                all(rows, rows::audit)
            })
        })
        .await
    }

    async fn templates(&self) -> Result<Vec<(String, String)>, StoreError> {
        let namespace = self.namespace.clone();
        self.read(move |connection| {
            Box::pin(async move {
                Ok(sqlx::query_as(
                    "SELECT path, template FROM templates WHERE namespace = ?1 ORDER BY path",
                )
                .bind(&*namespace)
                .fetch_all(connection)
                .await?)
            })
        })
        .await
    }

    async fn record_templates(&self, templates: &[(String, String)]) -> Result<(), StoreError> {
        let namespace = self.namespace.clone();
        let templates = json!(templates);
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO templates (namespace, path, template) \
                     SELECT ?1, t.value ->> 0, t.value ->> 1 FROM json_each(?2) AS t WHERE true \
                     ON CONFLICT (namespace, path) DO UPDATE SET template = excluded.template",
                )
                .bind(&*namespace)
                .bind(templates.to_string())
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>> {
        None
    }
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

fn epochs_json(epochs: &[EpochRow]) -> String {
    json!(
        epochs
            .iter()
            .map(|epoch| json!([
                epoch.resource.as_str(),
                epoch.instance.as_str(),
                epoch.opening,
                epoch.token.get()
            ]))
            .collect::<Vec<_>>()
    )
    .to_string()
}

fn all<R, T>(rows: Vec<R>, turn: impl Fn(R) -> Result<T, StoreError>) -> Result<Vec<T>, Failure> {
    rows.into_iter()
        .map(turn)
        .collect::<Result<_, _>>()
        .map_err(Failure::from)
}
