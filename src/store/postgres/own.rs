//! Reads and deletes an instance's own epoch rows, in pages.
//!
//! Each statement walks the index over (namespace, instance, resource, opening), so that a page costs
//! what it holds, however many rows there are. No other index has the order that is asked for, since the
//! instance is part of the bounds: it is not compared for equality. The mark is read by a subquery: a join
//! may be planned, without statistics, as a search of all marks.

use sqlx::PgConnection;

use super::fetch::all;
use super::statements::texts;
use crate::routing::ResourceKey;
use crate::store::rows::{self, Failure, OwnColumns, start};
use crate::store::{Cursor, InstanceId, Opening, OwnRow};

pub(super) async fn page(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<OwnRow>, Failure> {
    let (resource, opening) = start(after);
    let rows: Vec<OwnColumns> = sqlx::query_as(
        "SELECT e.resource, e.instance, e.opening, e.token, ( \
             SELECT m.token FROM marks AS m \
             WHERE m.namespace = $1 AND m.resource = e.resource) \
         FROM epochs AS e WHERE e.namespace = $1 AND e.instance <= $2 \
         AND (e.instance, e.resource, e.opening) > ($2, $3, $4) \
         ORDER BY e.instance, e.resource, e.opening LIMIT $5",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(resource)
    .bind(opening)
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    all(rows, rows::own)
}

pub(super) async fn of(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    resources: &[ResourceKey],
) -> Result<Vec<OwnRow>, Failure> {
    let rows: Vec<OwnColumns> = sqlx::query_as(
        "SELECT e.resource, e.instance, e.opening, e.token, ( \
             SELECT m.token FROM marks AS m \
             WHERE m.namespace = $1 AND m.resource = e.resource) \
         FROM epochs AS e JOIN ( \
             SELECT DISTINCT $1::text AS namespace, $2::text AS instance, k.resource \
             FROM unnest($3::text[]) AS k(resource) \
         ) AS k ON e.namespace = k.namespace AND e.instance = k.instance \
             AND e.resource = k.resource",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(texts(resources.iter().map(ResourceKey::as_str)))
    .fetch_all(connection)
    .await?;
    all(rows, rows::own)
}

/// A range at a time: to name a million rows one by one takes longer than to delete them.
pub(super) async fn close(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    after: Option<&Cursor>,
    limit: u32,
    kept: &[Opening],
) -> Result<Option<Cursor>, Failure> {
    let (resource, opening) = start(after);
    let last: Vec<(String, i64)> = sqlx::query_as(
        "SELECT e.resource, e.opening FROM epochs AS e \
         WHERE e.namespace = $1 AND e.instance <= $2 \
         AND (e.instance, e.resource, e.opening) > ($2, $3, $4) \
         ORDER BY e.instance, e.resource, e.opening OFFSET $5 LIMIT 1",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(resource)
    .bind(opening)
    .bind(i64::from(limit.max(1)) - 1)
    .fetch_all(&mut *connection)
    .await?;
    let last = last.into_iter().next();
    // Two texts: a bound that may be absent is none that the index is searched by.
    let sql = if last.is_some() {
        "DELETE FROM epochs AS e WHERE e.namespace = $1 AND e.instance <= $2 \
         AND (e.instance, e.resource, e.opening) > ($2, $3, $4) AND NOT EXISTS ( \
             SELECT 1 FROM unnest($5::bigint[]) AS k(kept) WHERE k.kept = e.opening) \
         AND (e.instance, e.resource, e.opening) <= ($2, $6, $7)"
    } else {
        "DELETE FROM epochs AS e WHERE e.namespace = $1 AND e.instance <= $2 \
         AND (e.instance, e.resource, e.opening) > ($2, $3, $4) AND NOT EXISTS ( \
             SELECT 1 FROM unnest($5::bigint[]) AS k(kept) WHERE k.kept = e.opening)"
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
    last.map(|(resource, opening)| Ok((rows::key(&resource)?, opening)))
        .transpose()
}
