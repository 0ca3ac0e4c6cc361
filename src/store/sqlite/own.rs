//! Reads and deletes an instance's own epoch rows, in pages, so that requests do not wait long for
//! the one connection.

use serde_json::Value;
use sqlx::SqliteConnection;

use super::fetch::all;
use crate::store::rows::{self, Failure, OwnColumns, start};
use crate::store::{Cursor, InstanceId, OwnRow};

pub(super) async fn page(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Vec<OwnRow>, Failure> {
    let (resource, opening) = start(after.as_ref());
    let rows: Vec<OwnColumns> = sqlx::query_as(
        "SELECT e.resource, e.instance, e.opening, e.token, ( \
             SELECT m.token FROM marks AS m \
             WHERE m.namespace = ?1 AND m.resource = e.resource) \
         FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2 \
         AND (e.resource, e.opening) > (?3, ?4) \
         ORDER BY e.resource, e.opening LIMIT ?5",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(resource)
    .bind(opening)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    all(rows, rows::own)
}

pub(super) async fn of(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    resources: Value,
) -> Result<Vec<OwnRow>, Failure> {
    let rows: Vec<OwnColumns> = sqlx::query_as(
        "SELECT e.resource, e.instance, e.opening, e.token, ( \
             SELECT m.token FROM marks AS m \
             WHERE m.namespace = ?1 AND m.resource = e.resource) \
         FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2 \
         AND e.resource IN (SELECT value FROM json_each(?3))",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(resources.to_string())
    .fetch_all(connection)
    .await?;
    all(rows, rows::own)
}

/// A range at a time: to name a million rows one by one takes longer than to delete them.
pub(super) async fn close(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    after: Option<Cursor>,
    limit: u32,
    kept: Value,
) -> Result<Option<Cursor>, Failure> {
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
    // Two texts: a bound that may be absent is none that the index is searched by.
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
        .bind(kept.to_string());
    if let Some((resource, opening)) = &last {
        deletion = deletion.bind(resource).bind(opening);
    }
    deletion.execute(connection).await?;
    last.map(|(resource, opening)| Ok((rows::key(&resource)?, opening)))
        .transpose()
}
