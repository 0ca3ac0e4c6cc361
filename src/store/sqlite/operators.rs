//! The statements for people and for the start: lists, overrides, the audit, the route table.

use serde_json::json;
use sqlx::SqliteConnection;

use super::fetch::all;
use super::{life, schema, statements};
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, AuditColumns, Failure, MarkColumns, Schema, Span};
use crate::store::{AuditRow, Era, InstanceRow, MarkRow, Override, RecordedRoutes};

const AUDIT: &str = "
    INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, CAST(unixepoch('subsec') * 1000 AS INTEGER))";

pub(super) async fn check(
    connection: &mut SqliteConnection,
    namespace: &str,
) -> Result<(), Failure> {
    sqlx::query(
        "INSERT INTO namespaces (namespace, era) VALUES (?1, 0) \
         ON CONFLICT (namespace) DO UPDATE SET era = era",
    )
    .bind(namespace)
    .execute(&mut *connection)
    .await?;
    match schema(connection).await? {
        Schema::Current => Ok(()),
        Schema::Behind => Err(rows::schema_behind().into()),
    }
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

/// Both ends are plain comparisons, so that the index gives no more than the page. Every blob sorts after
/// every text.
pub(super) async fn list(
    connection: &mut SqliteConnection,
    namespace: &str,
    span: Span,
    limit: u32,
) -> Result<Vec<MarkRow>, Failure> {
    let rows: Vec<MarkColumns> = sqlx::query_as(
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
    all(rows, rows::mark)
}

pub(super) async fn mark(
    connection: &mut SqliteConnection,
    namespace: &str,
    resource: ResourceKey,
) -> Result<Option<MarkRow>, Failure> {
    let row: Option<MarkColumns> = sqlx::query_as(
        "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
         WHERE namespace = ?1 AND resource = ?2",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(row.map(rows::mark).transpose()?)
}

pub(super) async fn marks(
    connection: &mut SqliteConnection,
    namespace: &str,
    resources: serde_json::Value,
) -> Result<Vec<MarkRow>, Failure> {
    let rows: Vec<MarkColumns> = sqlx::query_as(
        "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
         WHERE namespace = ?1 AND resource IN (SELECT value FROM json_each(?2))",
    )
    .bind(namespace)
    .bind(resources.to_string())
    .fetch_all(connection)
    .await?;
    all(rows, rows::mark)
}

pub(super) async fn override_mark(
    connection: &mut SqliteConnection,
    namespace: &str,
    resource: ResourceKey,
    token: Token,
    reason: String,
    actor: String,
) -> Result<Override, Failure> {
    let before: Option<i64> =
        sqlx::query_scalar("SELECT token FROM marks WHERE namespace = ?1 AND resource = ?2")
            .bind(namespace)
            .bind(resource.as_str())
            .fetch_optional(&mut *connection)
            .await?;
    let Some(before) = before else {
        return Ok(Override::Absent);
    };
    let open = statements::epochs(&mut *connection, namespace, json!([resource.as_str()])).await?;
    if !open.is_empty() {
        return Ok(Override::EpochsOpen(open));
    }
    let era: Era = sqlx::query_scalar(
        "INSERT INTO namespaces (namespace, era) VALUES (?1, 1) \
         ON CONFLICT (namespace) DO UPDATE SET era = era + 1 RETURNING era",
    )
    .bind(namespace)
    .fetch_one(&mut *connection)
    .await?;
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
    Ok(Override::Done {
        before: rows::number(before)?,
        era,
    })
}

pub(super) async fn record_audit(
    connection: &mut SqliteConnection,
    namespace: &str,
    row: AuditRow,
) -> Result<(), Failure> {
    sqlx::query(AUDIT)
        .bind(namespace)
        .bind(row.resource.as_str())
        .bind(row.action)
        .bind(row.before.map(Token::get))
        .bind(row.after.map(Token::get))
        .bind(row.reason)
        .bind(row.actor)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn audit(
    connection: &mut SqliteConnection,
    namespace: &str,
    resource: ResourceKey,
    limit: u32,
) -> Result<Vec<AuditRow>, Failure> {
    let rows: Vec<AuditColumns> = sqlx::query_as(
        "SELECT resource, action, before, after, reason, actor, at FROM audit \
         WHERE namespace = ?1 AND resource = ?2 ORDER BY id DESC LIMIT ?3",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    all(rows, rows::audit)
}

pub(super) async fn routes(
    connection: &mut SqliteConnection,
    namespace: &str,
) -> Result<RecordedRoutes, Failure> {
    let document: Option<Option<String>> =
        sqlx::query_scalar("SELECT routes FROM namespaces WHERE namespace = ?1")
            .bind(namespace)
            .fetch_optional(&mut *connection)
            .await?;
    let templates =
        sqlx::query_as("SELECT path, template FROM templates WHERE namespace = ?1 ORDER BY path")
            .bind(namespace)
            .fetch_all(connection)
            .await?;
    Ok(RecordedRoutes {
        document: document.flatten(),
        templates,
    })
}

pub(super) async fn record_routes(
    connection: &mut SqliteConnection,
    namespace: &str,
    known: Option<String>,
    document: String,
) -> Result<bool, Failure> {
    let done = sqlx::query(
        "INSERT INTO namespaces (namespace, era, routes) \
         SELECT ?1, 0, ?3 WHERE ?2 IS NULL \
             OR EXISTS (SELECT 1 FROM namespaces AS o WHERE o.namespace = ?1) \
         ON CONFLICT (namespace) DO UPDATE SET routes = excluded.routes \
         WHERE namespaces.routes IS ?2",
    )
    .bind(namespace)
    .bind(known)
    .bind(document)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// One transaction of the one process that has the file.
pub(super) async fn replace_routes(
    connection: &mut SqliteConnection,
    namespace: &str,
    document: String,
) -> Result<Vec<InstanceRow>, Failure> {
    // Only whether there are any.
    let present = life::instances(connection, namespace, "").await?;
    if present.is_empty() {
        sqlx::query(
            "INSERT INTO namespaces (namespace, era, routes) VALUES (?1, 0, ?2) \
             ON CONFLICT (namespace) DO UPDATE SET routes = excluded.routes",
        )
        .bind(namespace)
        .bind(document)
        .execute(connection)
        .await?;
    }
    Ok(present)
}
