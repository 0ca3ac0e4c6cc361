//! The instances of a Postgres: [`Instances`] for [`PostgresStore`].

use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::{PostgresStore, life};
use crate::routing::ResourceKey;
use crate::store::{
    Burial, Cursor, Era, InstanceId, InstanceRow, Instances, Renewal, StoreError, Terms,
};

#[async_trait]
impl Instances for PostgresStore {
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::join(c, &self.namespace, instance, terms).await
        })
        .await
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::set_routes(c, &self.namespace, instance, digest).await
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::renew(c, &self.namespace, instance, renewals).await
        })
        .await
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.on(&self.people, async |c| {
            life::raise_era(c, &self.namespace, era).await
        })
        .await
    }

    fn connections(&self) -> u64 {
        self.connector.made()
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read_instances(life::Orphans::Found).await
    }

    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read_instances(life::Orphans::LeftOut).await
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        self.bounded(async {
            let mut turn = self.heartbeat.turn().await?;
            let over = self.instances_over();
            if over != 0 && over != turn.number() {
                // A fresh connection, and in good health: the next read is over this one.
                turn.done();
                let why = "this is another connection than the one that the counter was read over";
                return Err(StoreError::Connection(why.to_owned()));
            }
            let declare = turn
                .run(async |c| life::declare_dead(c, &self.namespace, instance, renewals).await);
            let dead = declare.await?;
            turn.done();
            Ok(dead)
        })
        .await
    }

    /// Beside the renewals, on the people's connection: neither is often used, and should both be at
    /// once, one of them makes a connection more.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        self.on(&self.people, async |c| {
            life::bury(c, &self.namespace, instance, first, after).await
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::leave(c, &self.namespace, instance).await
        })
        .await
    }
}
