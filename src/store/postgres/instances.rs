//! [`Instances`] for [`PostgresStore`]: instances join, renew, leave, are declared dead and reaped.
//!
//! Parts of one statement share one snapshot. So "dead, or not recorded" and the deletion that
//! rests on it cannot contradict each other.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::marks::texts;
use super::{PostgresStore, only};
use crate::routing::ResourceKey;
use crate::store::rows::{self, InstanceColumns, start};
use crate::store::{
    Burial, Cursor, Era, InstanceId, InstanceRow, Instances, Renewal, StoreError, Terms,
};

/// How many epochs one step of a reaping deletes.
const MAX_REAPED: i64 = 4096;

const RECORDED: &str = "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead, false \
     FROM instances WHERE namespace = $1";

/// The ids in the epoch rows are read by leaping from one to the next in the index. So this costs
/// as much as there are instances, not epochs. But a leap passes every entry of a row that was
/// deleted since the last vacuum.
pub(super) const WITH_ORPHANS: &str = "WITH RECURSIVE owners(id) AS ( \
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

#[async_trait]
impl Instances for PostgresStore {
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let statement = self
            .query_as(
                "WITH born AS ( \
                     INSERT INTO instances \
                         (namespace, id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, false)) \
                 INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 0) \
                 ON CONFLICT (namespace) DO UPDATE SET era = n.era RETURNING n.era",
            )
            .bind(instance.as_str())
            .bind(terms.renewals)
            .bind(rows::millis(terms.lease))
            .bind(rows::millis(terms.settle))
            .bind(rows::millis(terms.undelivered))
            .bind(&terms.routes);
        self.one(&self.heartbeat, statement).await
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        let statement = self
            .query("UPDATE instances SET routes = $3 WHERE namespace = $1 AND id = $2")
            .bind(instance.as_str())
            .bind(digest);
        self.execute(&self.heartbeat, statement).await.map(drop)
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        let renewal = self
            .query_as(
                "UPDATE instances SET renewals = GREATEST(renewals, $3) \
                 WHERE namespace = $1 AND id = $2 AND NOT dead \
                 RETURNING COALESCE((SELECT n.era FROM namespaces AS n WHERE n.namespace = $1), 0)",
            )
            .bind(instance.as_str())
            .bind(renewals);
        let known = self
            .query("SELECT dead FROM instances WHERE namespace = $1 AND id = $2")
            .bind(instance.as_str());
        self.on(&self.heartbeat, async |c| {
            let eras: Vec<(Era,)> = renewal.fetch_all(&mut *c).await?;
            if let Some((era,)) = eras.first() {
                return Ok(Renewal::Alive(*era));
            }
            // A reaping in between turns "dead" into "unknown". The caller knows by its clock
            // whether that is possible.
            let known = known.fetch_all(c).await?;
            Ok(if known.is_empty() {
                Renewal::Unknown
            } else {
                Renewal::Dead
            })
        })
        .await
    }

    /// Inserts too: an old backup may lack the row.
    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        let statement = self
            .query(
                "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, $2) \
                 ON CONFLICT (namespace) DO UPDATE SET era = GREATEST(n.era, EXCLUDED.era)",
            )
            .bind(era);
        self.execute(&self.operators, statement).await.map(drop)
    }

    fn connections(&self) -> u64 {
        self.connector.made()
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read_instances(WITH_ORPHANS).await
    }

    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read_instances(RECORDED).await
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }

    /// An UPDATE that waited for a renewal reads the counter again when it has the row.
    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let declaration = self
            .query_as(
                "WITH declared AS ( \
                     UPDATE instances SET dead = true \
                     WHERE namespace = $1 AND id = $2 AND (renewals = $3 OR dead) RETURNING 1) \
                 SELECT EXISTS (SELECT 1 FROM declared) OR NOT EXISTS ( \
                     SELECT 1 FROM instances WHERE namespace = $1 AND id = $2)",
            )
            .bind(instance.as_str())
            .bind(renewals);
        self.bounded(async {
            let mut turn = self.heartbeat.turn().await?;
            let over = self.instances_over();
            if over != 0 && over != turn.number() {
                // The connection is fresh and healthy: the next read goes over it.
                turn.done();
                let why = "this is another connection than the one that the counter was read over";
                return Err(StoreError::Connection(why.to_owned()));
            }
            let declared = turn.run(async |c| Ok(declaration.fetch_all(c).await?));
            let (dead,) = only(declared.await?)?;
            turn.done();
            Ok(dead)
        })
        .await
    }

    /// Not over the heartbeat's connection, which nothing may hold up: over the operators'. Both
    /// uses are rare, and if they coincide, one of them makes another connection.
    ///
    /// The rows are read first, and deleted by key, in key order: see [`super::marks`] for how the
    /// planner is kept on the indexes. The deleting statement itself checks that the instance is
    /// not alive.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        let (resource, opening) = start(after);
        let page = self
            .query_as(
                "SELECT resource, opening FROM epochs WHERE namespace = $1 AND instance <= $2 \
                 AND (instance, resource, opening) > ($2, $3, $4) \
                 ORDER BY instance, resource, opening LIMIT $5",
            )
            .bind(instance.as_str())
            .bind(resource)
            .bind(opening)
            .bind(MAX_REAPED);
        let waited_for = self
            .query_as(
                "SELECT e.resource, e.opening FROM epochs AS e JOIN ( \
                     SELECT DISTINCT $1::text AS namespace, $2::text AS instance, k.resource \
                     FROM unnest($3::text[]) AS k(resource) \
                 ) AS k ON e.namespace = k.namespace AND e.instance = k.instance \
                     AND e.resource = k.resource",
            )
            .bind(instance.as_str())
            .bind(texts(first));
        let deletion = self
            .query_as(
                "WITH gone AS ( \
                     DELETE FROM instances WHERE namespace = $1 AND id = $2 AND dead AND $5) \
                 DELETE FROM epochs AS e \
                 USING (SELECT $1::text AS namespace, $2::text AS instance, k.* \
                     FROM unnest($3::text[], $4::bigint[]) AS k(resource, opening) OFFSET 0) AS d \
                 WHERE e.namespace = d.namespace AND e.instance = d.instance \
                 AND e.resource = d.resource AND e.opening = d.opening AND NOT EXISTS ( \
                     SELECT 1 FROM instances AS i \
                     WHERE i.namespace = $1 AND i.id = $2 AND NOT i.dead) \
                 RETURNING e.resource",
            )
            .bind(instance.as_str());
        self.on(&self.operators, async |c| {
            let page: Vec<(String, i64)> = page.fetch_all(&mut *c).await?;
            let full = i64::try_from(page.len()) == Ok(MAX_REAPED);
            let next = page.last().filter(|_| full).cloned();
            let waited_for = waited_for.fetch_all(&mut *c).await?;
            let doomed: BTreeSet<(String, i64)> = page.into_iter().chain(waited_for).collect();
            let (resources, openings): (Vec<String>, Vec<i64>) = doomed.into_iter().unzip();
            let deletion = deletion.bind(resources).bind(openings).bind(!full);
            let freed: Vec<(String,)> = deletion.fetch_all(c).await?;
            let freed = freed.into_iter().map(|(resource,)| resource);
            Ok(rows::burial(freed.collect(), next)?)
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let statement = self
            .query(
                "WITH gone AS ( \
                     DELETE FROM instances WHERE namespace = $1 AND id = $2 AND NOT EXISTS ( \
                         SELECT 1 FROM epochs AS e WHERE e.namespace = $1 AND e.instance = $2)) \
                 UPDATE instances SET dead = true WHERE namespace = $1 AND id = $2 AND EXISTS ( \
                     SELECT 1 FROM epochs AS e WHERE e.namespace = $1 AND e.instance = $2)",
            )
            .bind(instance.as_str());
        self.execute(&self.heartbeat, statement).await.map(drop)
    }
}

impl PostgresStore {
    /// Remembers the connection that answered: see [`Instances::instances_over`].
    async fn read_instances(&self, sql: &'static str) -> Result<Vec<InstanceRow>, StoreError> {
        let statement = self.query_as(sql);
        self.bounded(async {
            let mut turn = self.heartbeat.turn().await?;
            let read: Vec<InstanceColumns> = turn
                .run(async |c| Ok(statement.fetch_all(c).await?))
                .await?;
            let rows = rows::all(read, rows::instance)?;
            self.instances_over.store(turn.number(), Ordering::Relaxed);
            turn.done();
            Ok(rows)
        })
        .await
    }
}
