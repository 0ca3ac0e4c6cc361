//! [`Instances`]: which instances are alive, and which of their epochs are over.

use async_trait::async_trait;

use super::engine::Value::{Number, Numbers, Text};
use super::engine::{Engine, Turn};
use super::records::{
    Era, InstanceId, InstanceRow, Opening, Publication, Renewal, StoreError, Terms,
};
use super::rows;

/// Writes the namespace's row as it is: proves that rows may be written, and locks it. Returns its
/// era.
pub(super) const TOUCH: &str = "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 0) \
     ON CONFLICT (namespace) DO UPDATE SET era = n.era RETURNING era";

/// The instances that may have something in flight. `$2` is this process's place.
pub(super) const NOT_SETTLED: &str = "SELECT id, renewals, lease_ms, settle_ms, undelivered_ms, \
     routes, state > 0, place <> '' AND place = $2 FROM instances \
     WHERE namespace = $1 AND state < 2";

/// The instances of a namespace: mostly for the membership task. With Postgres the renewals, and the
/// reads that watch the others, have a connection of their own.
///
/// A row stays for ever: the primary key decides between an instance whose row a failover has lost,
/// and that records itself again, and a watcher that has waited it out.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Runs the statements of these calls, and of those of the other parts.
    fn engine(&self) -> &dyn Engine;

    /// True if other instances can share the marks. `false` (`SQLite`): every other instance found
    /// in the store is dead, none declares this one dead, and none listens to notifications.
    fn shared(&self) -> bool {
        self.engine().shared()
    }

    /// Records a new instance, and returns the namespace's era. Fails if the id is on record.
    ///
    /// In one transaction, behind the lock of the namespace's row. A transaction that takes the lock
    /// later sees the instance, and the join waits for one that holds it now. A join that fails leaves
    /// no row.
    async fn join(&self, instance: InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let born = vec![
            Number(instance.get()),
            Number(terms.renewals),
            Number(rows::millis(terms.lease)),
            Number(rows::millis(terms.settle)),
            Number(rows::millis(terms.undelivered)),
            Text(terms.routes.clone()),
            Numbers(vec![]),
            Text(self.engine().place().await?),
        ];
        self.engine()
            .run(Turn::Join, move |mut session| {
                Box::pin(async move {
                    let (era,) = session.one(TOUCH, vec![]).await?;
                    let sql = "INSERT INTO instances (namespace, id, state, renewals, lease_ms, \
                         settle_ms, undelivered_ms, routes, closed_below, left_open, place) \
                     VALUES ($1, $2, 0, $3, $4, $5, $6, $7, 0, $8, $9)";
                    session.execute(sql, born).await?;
                    Ok(era)
                })
            })
            .await
    }

    /// Raises the instance's counter to [`Terms::renewals`], records the digest of its routes, and
    /// publishes which of its epochs are over; unless it is dead or unknown. Says which. Each
    /// number is sent once. A statement that commits late, after one with a higher number, does not
    /// lower the counter.
    async fn renew(
        &self,
        instance: InstanceId,
        terms: &Terms,
        publication: &Publication,
    ) -> Result<Renewal, StoreError> {
        let renewal = vec![
            Number(instance.get()),
            Number(terms.renewals),
            Text(terms.routes.clone()),
            Number(publication.below),
            Numbers(publication.left.clone()),
        ];
        self.engine().run(Turn::Renew, move |mut session| {
            Box::pin(async move {
                let sql = "UPDATE instances SET routes = $4, closed_below = $5, left_open = $6, \
                         renewals = CASE WHEN renewals > $3 THEN renewals ELSE $3 END \
                     WHERE namespace = $1 AND id = $2 AND state = 0 RETURNING COALESCE(( \
                         SELECT n.era FROM namespaces AS n WHERE n.namespace = $1), 0)";
                if let Some((era,)) = session.rows(sql, renewal).await?.pop() {
                    return Ok(Renewal::Alive(era));
                }
                // An own join that has come late leaves it alive: the update did not see that.
                let sql = "SELECT id FROM instances WHERE namespace = $1 AND id = $2 AND state > 0";
                let id = vec![Number(instance.get())];
                let dead: Vec<(i64,)> = session.rows(sql, id).await?;
                Ok(dead.first().map_or(Renewal::Unknown, |_| Renewal::Dead))
            })
        })
        .await
    }

    /// Raises the namespace's era to `era` if it is lower. A failover may have lost an override
    /// whose era instances know, and the next override must not use its number again.
    ///
    /// Inserts too: an old backup may lack the row.
    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        let sql = "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, $2) \
             ON CONFLICT (namespace) DO UPDATE SET era = EXCLUDED.era WHERE n.era < EXCLUDED.era";
        let raised = self.engine().change(Turn::Write, sql, vec![Number(era)]);
        raised.await.map(drop)
    }

    /// Every instance on record that has not settled.
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let place = vec![Text(self.engine().known_place())];
        self.engine()
            .fetch(Turn::Watch, NOT_SETTLED, place, |row| {
                Ok(rows::instance(row))
            })
            .await
    }

    /// Declares an instance dead if its counter is still at `renewals`; says whether it is dead
    /// now. Fails if the instances were read, but over another connection than this one (see
    /// [`instances_over`]): the counter may stand still because this server is behind.
    ///
    /// [`instances_over`]: super::MarkStore::instances_over
    ///
    /// An update that waited for a renewal reads the counter again when it has the row.
    async fn declare_dead(&self, instance: InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let counter = vec![Number(instance.get()), Number(renewals)];
        let sql = "UPDATE instances \
             SET state = CASE WHEN state = 0 AND renewals = $3 THEN 1 ELSE state END \
             WHERE namespace = $1 AND id = $2 RETURNING state > 0";
        let dead = |(dead,): (bool,)| Ok(dead);
        let dead = self.engine().fetch(Turn::Declare, sql, counter, dead);
        Ok(dead.await?.pop().unwrap_or(true))
    }

    /// Records that a dead instance has settled: all its epochs are over. An id that is not on
    /// record is recorded so. `false`: it lives. Not over the connection of the renewals.
    ///
    /// All openings are below the one that is recorded.
    async fn settle(&self, instance: InstanceId) -> Result<bool, StoreError> {
        let settled = vec![
            Number(instance.get()),
            Number(Opening::MAX),
            Numbers(vec![]),
        ];
        let sql = "INSERT INTO instances AS i (namespace, id, state, renewals, lease_ms, settle_ms, \
                 undelivered_ms, routes, closed_below, left_open, place) \
             VALUES ($1, $2, 2, 0, 0, 0, 0, '', $3, $4, '') \
             ON CONFLICT (namespace, id) DO UPDATE SET state = EXCLUDED.state, \
                 closed_below = EXCLUDED.closed_below, left_open = EXCLUDED.left_open \
             WHERE i.state > 0 RETURNING 1";
        Ok(self.engine().change(Turn::Write, sql, settled).await? == 1)
    }

    /// At the end of a run: publishes that all epochs are over but those that are `left`. With
    /// none left the instance has settled, else it is dead, and its settling starts now. Called
    /// after every exchange has ended.
    async fn leave(
        &self,
        instance: InstanceId,
        publication: &Publication,
    ) -> Result<(), StoreError> {
        let (state, below) = match publication.left[..] {
            [] => (2, Opening::MAX),
            _ => (1, publication.below),
        };
        let last = vec![
            Number(instance.get()),
            Number(state),
            Number(below),
            Numbers(publication.left.clone()),
        ];
        let sql = "UPDATE instances SET state = $3, closed_below = $4, left_open = $5 \
             WHERE namespace = $1 AND id = $2 AND state = 0";
        self.engine().change(Turn::Renew, sql, last).await.map(drop)
    }
}

impl<E: Engine> Instances for E {
    fn engine(&self) -> &dyn Engine {
        self
    }
}
