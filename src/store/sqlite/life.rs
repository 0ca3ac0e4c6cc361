//! The statements about instances: who lives, who is dead, whose epochs may go.

use serde_json::Value;
use sqlx::SqliteConnection;

use super::fetch::all;
use super::statements::owners;
use crate::store::rows::{self, Failure, InstanceColumns, start};
use crate::store::{Burial, Cursor, Era, InstanceId, InstanceRow, Renewal, StoreError, Terms};

/// How many epochs one step of a burial deletes, within a few milliseconds. Requests wait for it: there is
/// one connection.
const MOST_PER_BURIAL: i64 = 2048;

pub(super) async fn join(
    connection: &mut SqliteConnection,
    namespace: &str,
    boot: &str,
    instance: InstanceId,
    terms: Terms,
) -> Result<Era, Failure> {
    sqlx::query(
        "INSERT INTO instances \
             (namespace, id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead, boot) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8)",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(terms.renewals)
    .bind(rows::millis(terms.lease))
    .bind(rows::millis(terms.settle))
    .bind(rows::millis(terms.undelivered))
    .bind(terms.routes)
    .bind(boot)
    .execute(&mut *connection)
    .await?;
    Ok(sqlx::query_scalar(
        "INSERT INTO namespaces (namespace, era) VALUES (?1, 0) \
         ON CONFLICT (namespace) DO UPDATE SET era = era RETURNING era",
    )
    .bind(namespace)
    .fetch_one(connection)
    .await?)
}

pub(super) async fn set_routes(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    digest: String,
) -> Result<(), Failure> {
    sqlx::query("UPDATE instances SET routes = ?3 WHERE namespace = ?1 AND id = ?2")
        .bind(namespace)
        .bind(instance.as_str())
        .bind(digest)
        .execute(connection)
        .await?;
    Ok(())
}

/// What a renewal is answered. The counter itself moves by [`beat`], in the same transaction.
pub(super) async fn standing(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
) -> Result<Renewal, Failure> {
    let row: Option<(bool, Era)> = sqlx::query_as(
        "SELECT dead, coalesce((SELECT n.era FROM namespaces AS n WHERE n.namespace = ?1), 0) \
         FROM instances WHERE namespace = ?1 AND id = ?2",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(match row {
        Some((false, era)) => Renewal::Alive(era),
        Some((true, _)) => Renewal::Dead,
        None => Renewal::Unknown,
    })
}

/// Raises the instance's counter to `renewals`, unless it is dead or unknown; says whether it is
/// neither. The row differs each time, whatever the number, so that the commit is written and synced.
pub(super) async fn beat(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: &InstanceId,
    renewals: i64,
) -> Result<bool, Failure> {
    let beaten = sqlx::query(
        "UPDATE instances SET renewals = max(renewals, ?3), beats = beats + 1 \
         WHERE namespace = ?1 AND id = ?2 AND NOT dead",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(renewals)
    .execute(connection)
    .await?;
    Ok(beaten.rows_affected() > 0)
}

pub(super) async fn raise_era(
    connection: &mut SqliteConnection,
    namespace: &str,
    era: Era,
) -> Result<(), Failure> {
    sqlx::query(
        "INSERT INTO namespaces (namespace, era) VALUES (?1, ?2) \
         ON CONFLICT (namespace) DO UPDATE SET era = max(era, excluded.era)",
    )
    .bind(namespace)
    .bind(era)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn instances(
    connection: &mut SqliteConnection,
    namespace: &str,
    boot: &str,
) -> Result<Vec<InstanceRow>, Failure> {
    let rows: Vec<InstanceColumns> = sqlx::query_as(concat!(
        owners!(),
        "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead,
                 boot = '' OR boot <> ?2 FROM instances
             WHERE namespace = ?1
             UNION ALL
             SELECT o.id, 0, 0, 0, 0, '', 1, 0 FROM owners AS o
             WHERE o.id IS NOT NULL AND NOT EXISTS (
                 SELECT 1 FROM instances AS i WHERE i.namespace = ?1 AND i.id = o.id)"
    ))
    .bind(namespace)
    .bind(boot)
    .fetch_all(connection)
    .await?;
    all(rows, rows::instance)
}

pub(super) async fn declare_dead(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    renewals: i64,
) -> Result<bool, Failure> {
    sqlx::query(
        "UPDATE instances SET dead = 1 \
         WHERE namespace = ?1 AND id = ?2 AND renewals = ?3",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(renewals)
    .execute(&mut *connection)
    .await?;
    is_dead(connection, namespace, &instance).await
}

/// What is to go is read first: the index has it in order, next to each other. Then all between the first
/// and the last of it goes. Named one by one, the rows would be looked for among all of the instance's.
pub(super) async fn bury(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    first: Value,
    after: Option<Cursor>,
) -> Result<Burial, Failure> {
    if !is_dead(&mut *connection, namespace, &instance).await? {
        return Ok(Burial::default());
    }
    let (resource, opening) = start(after.as_ref());
    let page: Vec<(String, i64)> = sqlx::query_as(
        "SELECT resource, opening FROM epochs WHERE namespace = ?1 AND instance = ?2 \
         AND (resource, opening) > (?3, ?4) ORDER BY resource, opening LIMIT ?5",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(resource)
    .bind(opening)
    .bind(MOST_PER_BURIAL)
    .fetch_all(&mut *connection)
    .await?;
    let full = i64::try_from(page.len()) == Ok(MOST_PER_BURIAL);
    let next = page.last().filter(|_| full).cloned();
    if let Some((last, last_opening)) = page.last() {
        sqlx::query(
            "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 \
             AND (resource, opening) > (?3, ?4) AND (resource, opening) <= (?5, ?6)",
        )
        .bind(namespace)
        .bind(instance.as_str())
        .bind(resource)
        .bind(opening)
        .bind(last)
        .bind(last_opening)
        .execute(&mut *connection)
        .await?;
    }
    let mut freed: Vec<String> = sqlx::query_scalar(
        "DELETE FROM epochs WHERE namespace = ?1 AND instance = ?2 \
         AND resource IN (SELECT value FROM json_each(?3)) RETURNING resource",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(first.to_string())
    .fetch_all(&mut *connection)
    .await?;
    freed.extend(page.into_iter().map(|(resource, _)| resource));
    if !full {
        sqlx::query("DELETE FROM instances WHERE namespace = ?1 AND id = ?2")
            .bind(namespace)
            .bind(instance.as_str())
            .execute(&mut *connection)
            .await?;
    }
    freed.sort();
    freed.dedup();
    Ok(Burial {
        freed: all(freed, |resource| rows::key(&resource))?,
        next: next
            .map(|(resource, opening)| Ok::<_, StoreError>((rows::key(&resource)?, opening)))
            .transpose()?,
    })
}

pub(super) async fn leave(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
) -> Result<(), Failure> {
    for statement in [
        "DELETE FROM instances WHERE namespace = ?1 AND id = ?2 AND NOT EXISTS \
         (SELECT 1 FROM epochs AS e WHERE e.namespace = ?1 AND e.instance = ?2)",
        "UPDATE instances SET dead = 1 WHERE namespace = ?1 AND id = ?2",
    ] {
        sqlx::query(statement)
            .bind(namespace)
            .bind(instance.as_str())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
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
