//! The statements about instances: who lives, who is dead, whose epochs may go.
//!
//! Parts of one statement share one snapshot, so "dead, or not recorded" and the deletion that
//! rests on it cannot fall apart.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::fetch::{all, only};
use super::statements::texts;
use crate::routing::ResourceKey;
use crate::store::rows::{self, Failure, InstanceColumns, start};
use crate::store::{Burial, Cursor, Era, InstanceId, InstanceRow, Renewal, StoreError, Terms};

/// How many epochs one step of a burial deletes.
const MOST_PER_BURIAL: i64 = 4096;

pub(super) async fn join(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    terms: &Terms,
) -> Result<Era, Failure> {
    let eras: Vec<Era> = sqlx::query_scalar(
        "WITH born AS ( \
             INSERT INTO instances \
                 (namespace, id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, false)) \
         INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 0) \
         ON CONFLICT (namespace) DO UPDATE SET era = n.era RETURNING n.era",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(terms.renewals)
    .bind(rows::millis(terms.lease))
    .bind(rows::millis(terms.settle))
    .bind(rows::millis(terms.undelivered))
    .bind(&terms.routes)
    .fetch_all(connection)
    .await?;
    only(eras)
}

pub(super) async fn set_routes(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    digest: &str,
) -> Result<(), Failure> {
    sqlx::query("UPDATE instances SET routes = $3 WHERE namespace = $1 AND id = $2")
        .bind(namespace)
        .bind(instance.as_str())
        .bind(digest)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn renew(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    renewals: i64,
) -> Result<Renewal, Failure> {
    let eras: Vec<Era> = sqlx::query_scalar(
        "UPDATE instances SET renewals = GREATEST(renewals, $3) \
         WHERE namespace = $1 AND id = $2 AND NOT dead \
         RETURNING COALESCE((SELECT n.era FROM namespaces AS n WHERE n.namespace = $1), 0)",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(renewals)
    .fetch_all(&mut *connection)
    .await?;
    if let Some(era) = eras.first() {
        return Ok(Renewal::Alive(*era));
    }
    // A burial in between makes "unknown" of what was dead; whoever asks knows by its clock whether that can be.
    let rows: Vec<bool> =
        sqlx::query_scalar("SELECT dead FROM instances WHERE namespace = $1 AND id = $2")
            .bind(namespace)
            .bind(instance.as_str())
            .fetch_all(connection)
            .await?;
    Ok(if rows.is_empty() {
        Renewal::Unknown
    } else {
        Renewal::Dead
    })
}

/// Inserts too: an old backup may not have the row.
pub(super) async fn raise_era(
    connection: &mut PgConnection,
    namespace: &str,
    era: Era,
) -> Result<(), Failure> {
    sqlx::query(
        "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, $2) \
         ON CONFLICT (namespace) DO UPDATE SET era = GREATEST(n.era, EXCLUDED.era)",
    )
    .bind(namespace)
    .bind(era)
    .execute(connection)
    .await?;
    Ok(())
}

/// The ids that only epoch rows know.
#[derive(Clone, Copy, Debug)]
pub(super) enum Orphans {
    Found,
    LeftOut,
}

/// The ids in the epoch rows are read by leaping from one to the next in the index, so that this costs
/// what there are instances, not what there are epochs. But a leap passes every entry of a row that was
/// deleted since the last vacuum.
pub(super) async fn instances(
    connection: &mut PgConnection,
    namespace: &str,
    orphans: Orphans,
) -> Result<Vec<InstanceRow>, Failure> {
    let sql = match orphans {
        Orphans::Found => WITH_ORPHANS,
        Orphans::LeftOut => {
            "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead, false \
             FROM instances WHERE namespace = $1"
        }
    };
    let rows: Vec<InstanceColumns> = sqlx::query_as(sql)
        .bind(namespace)
        .fetch_all(connection)
        .await?;
    all(rows, rows::instance)
}

const WITH_ORPHANS: &str = "WITH RECURSIVE owners(id) AS ( \
             (SELECT e.instance FROM epochs AS e WHERE e.namespace = $1 \
              ORDER BY e.instance LIMIT 1) \
             UNION ALL \
             SELECT (SELECT e.instance FROM epochs AS e \
                     WHERE e.namespace = $1 AND e.instance > o.id ORDER BY e.instance LIMIT 1) \
             FROM owners AS o WHERE o.id IS NOT NULL) \
         SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead, false FROM instances \
         WHERE namespace = $1 \
         UNION ALL \
         SELECT o.id, 0::bigint, 0::bigint, 0::bigint, 0::bigint, '', true, false FROM owners AS o \
         WHERE o.id IS NOT NULL AND NOT EXISTS ( \
             SELECT 1 FROM instances AS i WHERE i.namespace = $1 AND i.id = o.id)";

/// An UPDATE that had to wait for a renewal looks at the counter again when it has the row.
pub(super) async fn declare_dead(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    renewals: i64,
) -> Result<bool, Failure> {
    let dead: Vec<bool> = sqlx::query_scalar(
        "WITH declared AS ( \
             UPDATE instances SET dead = true \
             WHERE namespace = $1 AND id = $2 AND (renewals = $3 OR dead) RETURNING 1) \
         SELECT EXISTS (SELECT 1 FROM declared) OR NOT EXISTS ( \
             SELECT 1 FROM instances WHERE namespace = $1 AND id = $2)",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(renewals)
    .fetch_all(connection)
    .await?;
    only(dead)
}

/// What is to go is read first, and deleted by its key, in key order: see [`super::statements`] and
/// [`super::own`] for how the planner is kept on the indexes. That the instance is not alive is looked
/// at by the statement that deletes.
pub(super) async fn bury(
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
    first: &[ResourceKey],
    after: Option<&Cursor>,
) -> Result<Burial, Failure> {
    let (resource, opening) = start(after);
    let page: Vec<(String, i64)> = sqlx::query_as(
        "SELECT resource, opening FROM epochs WHERE namespace = $1 AND instance <= $2 \
         AND (instance, resource, opening) > ($2, $3, $4) \
         ORDER BY instance, resource, opening LIMIT $5",
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
    let waited: Vec<(String, i64)> = sqlx::query_as(
        "SELECT e.resource, e.opening FROM epochs AS e JOIN ( \
             SELECT DISTINCT $1::text AS namespace, $2::text AS instance, k.resource \
             FROM unnest($3::text[]) AS k(resource) \
         ) AS k ON e.namespace = k.namespace AND e.instance = k.instance \
             AND e.resource = k.resource",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(texts(first.iter().map(ResourceKey::as_str)))
    .fetch_all(&mut *connection)
    .await?;
    let doomed: BTreeSet<(String, i64)> = page.into_iter().chain(waited).collect();
    let (resources, openings): (Vec<String>, Vec<i64>) = doomed.into_iter().unzip();
    let mut freed: Vec<String> = sqlx::query_scalar(
        "WITH gone AS ( \
             DELETE FROM instances WHERE namespace = $1 AND id = $2 AND dead AND $5) \
         DELETE FROM epochs AS e \
         USING (SELECT $1::text AS namespace, $2::text AS instance, k.* \
             FROM unnest($3::text[], $4::bigint[]) AS k(resource, opening) OFFSET 0) AS d \
         WHERE e.namespace = d.namespace AND e.instance = d.instance AND e.resource = d.resource \
         AND e.opening = d.opening AND NOT EXISTS ( \
             SELECT 1 FROM instances AS i \
             WHERE i.namespace = $1 AND i.id = $2 AND NOT i.dead) \
         RETURNING e.resource",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(resources)
    .bind(openings)
    .bind(!full)
    .fetch_all(connection)
    .await?;
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
    connection: &mut PgConnection,
    namespace: &str,
    instance: &InstanceId,
) -> Result<(), Failure> {
    sqlx::query(
        "WITH gone AS ( \
             DELETE FROM instances WHERE namespace = $1 AND id = $2 AND NOT EXISTS ( \
                 SELECT 1 FROM epochs AS e WHERE e.namespace = $1 AND e.instance = $2)) \
         UPDATE instances SET dead = true WHERE namespace = $1 AND id = $2 AND EXISTS ( \
             SELECT 1 FROM epochs AS e WHERE e.namespace = $1 AND e.instance = $2)",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .execute(connection)
    .await?;
    Ok(())
}
