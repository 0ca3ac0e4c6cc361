//! [`Instances`] for [`PostgresStore`].

use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::connect::{self, Session};
use super::{PostgresStore, notifications, only};
use crate::store::place;
use crate::store::rows::{self, InstanceColumns};
use crate::store::{
    Era, InstanceId, InstanceRow, Instances, Opening, Publication, Renewal, StoreError, Terms,
};

/// The instances that may have something in flight.
pub(super) const NOT_SETTLED: &str = "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, \
     routes, state > 0, place <> '' AND place = $2 FROM instances \
     WHERE namespace = $1 AND state < 2";

#[async_trait]
impl Instances for PostgresStore {
    async fn join(&self, instance: InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let shared = self.shared_name().await?;
        let statement = self
            .query_as(
                "WITH born AS ( \
                     INSERT INTO instances \
                         (namespace, id, state, renewals, lease_ms, settle_ms, undelivered_ms, \
                         routes, closed_below, left_open, place) \
                     VALUES ($1, $2, 0, $3, $4, $5, $6, $7, 0, '{}', $8)) \
                 INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 0) \
                 ON CONFLICT (namespace) DO UPDATE SET era = n.era RETURNING n.era",
            )
            .bind(instance.get())
            .bind(terms.renewals)
            .bind(rows::millis(terms.lease))
            .bind(rows::millis(terms.settle))
            .bind(rows::millis(terms.undelivered))
            .bind(&terms.routes)
            .bind(self.place.get_or_init(|| place::take(&shared)));
        let (era,) = self.one(&self.heartbeat, statement).await?;
        Ok(era)
    }

    async fn renew(
        &self,
        instance: InstanceId,
        terms: &Terms,
        publication: &Publication,
    ) -> Result<Renewal, StoreError> {
        let statement = self
            .query_as(
                "WITH renewed AS ( \
                     UPDATE instances SET renewals = GREATEST(renewals, $3), routes = $4, \
                         closed_below = $5, left_open = $6 \
                     WHERE namespace = $1 AND id = $2 AND state = 0 RETURNING 1) \
                 SELECT EXISTS (SELECT 1 FROM renewed), COALESCE(( \
                     SELECT n.era FROM namespaces AS n WHERE n.namespace = $1), 0) \
                 FROM instances WHERE namespace = $1 AND id = $2",
            )
            .bind(instance.get())
            .bind(terms.renewals)
            .bind(&terms.routes)
            .bind(publication.below)
            .bind(&publication.left);
        let renewal = |(renewed, era)| {
            Ok(if renewed {
                Renewal::Alive(era)
            } else {
                Renewal::Dead
            })
        };
        let found = self.rows(&self.heartbeat, statement, renewal).await?;
        Ok(found.first().copied().unwrap_or(Renewal::Unknown))
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

    /// Remembers the connection that answered: see [`Instances::instances_over`].
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let statement = self.query_as(NOT_SETTLED).bind(self.place());
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

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }

    /// An UPDATE that waited for a renewal reads the counter again when it has the row.
    async fn declare_dead(&self, instance: InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let declaration = self
            .query_as(
                "WITH declared AS ( \
                     UPDATE instances SET state = GREATEST(state, 1) \
                     WHERE namespace = $1 AND id = $2 AND (renewals = $3 OR state > 0) \
                     RETURNING 1) \
                 SELECT EXISTS (SELECT 1 FROM declared) OR NOT EXISTS ( \
                     SELECT 1 FROM instances WHERE namespace = $1 AND id = $2)",
            )
            .bind(instance.get())
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

    /// All openings are below the one that is recorded.
    async fn settle(&self, instance: InstanceId) -> Result<bool, StoreError> {
        let statement = self
            .query(
                "INSERT INTO instances AS i (namespace, id, state, renewals, lease_ms, settle_ms, \
                     undelivered_ms, routes, closed_below, left_open) \
                 VALUES ($1, $2, 2, 0, 0, 0, 0, '', $3, '{}') \
                 ON CONFLICT (namespace, id) DO UPDATE SET state = EXCLUDED.state, \
                     closed_below = EXCLUDED.closed_below, left_open = EXCLUDED.left_open \
                 WHERE i.state > 0",
            )
            .bind(instance.get())
            .bind(Opening::MAX);
        Ok(self.execute(&self.operators, statement).await? == 1)
    }

    async fn leave(
        &self,
        instance: InstanceId,
        publication: &Publication,
    ) -> Result<(), StoreError> {
        let (state, below) = publication.at_leave();
        let statement = self
            .query(
                "UPDATE instances SET state = $3, closed_below = $4, left_open = $5 \
                 WHERE namespace = $1 AND id = $2 AND state = 0",
            )
            .bind(instance.get())
            .bind(state)
            .bind(below)
            .bind(&publication.left);
        self.execute(&self.heartbeat, statement).await.map(drop)
    }
}

impl PostgresStore {
    /// A name for the marks that proxies on this machine may share.
    async fn shared_name(&self) -> Result<String, StoreError> {
        let mut shared = self.namespace.to_string();
        for host in self.connector.hosts(Session::Other).await? {
            shared.push('\n');
            shared.push_str(&connect::name(&host));
            shared.push('/');
            shared.push_str(host.get_database().unwrap_or_default());
        }
        Ok(notifications::channel(&shared))
    }
}
