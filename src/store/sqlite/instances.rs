//! The one instance of an embedded database: [`Instances`] for [`SqliteStore`]. Each call
//! hands owned arguments to the task that does its work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::fetch::keys_json;
use super::{Beat, SqliteStore, life};
use crate::routing::ResourceKey;
use crate::store::{
    Burial, Cursor, Era, InstanceId, InstanceRow, Instances, Renewal, StoreError, Terms,
};

#[async_trait]
impl Instances for SqliteStore {
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let (instance, terms) = (instance.clone(), terms.clone());
        let known = Arc::clone(&self.known);
        self.expect_beats(terms.lease).await;
        // What this instance forwards from now on is missed without the log.
        let beat = Beat::Of(instance.clone(), terms.renewals);
        self.turn(Some(beat), move |connection, namespace| {
            Box::pin(async move {
                life::join(connection, namespace, &known.boot, instance, terms).await
            })
        })
        .await
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        let (instance, digest) = (instance.clone(), digest.to_owned());
        self.write(move |connection, namespace| {
            Box::pin(life::set_routes(connection, namespace, instance, digest))
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        let instance = instance.clone();
        let beat = Beat::Of(instance.clone(), renewals);
        self.turn(Some(beat), move |connection, namespace| {
            Box::pin(life::standing(connection, namespace, instance))
        })
        .await
    }

    fn proven(&self) -> Option<Duration> {
        let began = self.known.proven.load(Ordering::Acquire);
        (began > 0).then(|| Duration::from_nanos(began))
    }

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = lock.check_aside().await;
        if lock.lost().is_some() {
            // The next turn saves what only the log has: the sooner, the better.
            let _ = self.read(|_, _| Box::pin(async { Ok(()) })).await;
        }
        checked
    }

    async fn disconnect(&self) {
        // Whoever has the lock next takes this process for ended: it goes with the process.
        std::mem::forget(self.lock.upgrade());
        SqliteStore::close(self).await;
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.write(move |connection, namespace| {
            Box::pin(life::raise_era(connection, namespace, era))
        })
        .await
    }

    fn connections(&self) -> u64 {
        0
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let known = Arc::clone(&self.known);
        self.read(move |connection, namespace| {
            Box::pin(async move { life::instances(connection, namespace, &known.boot).await })
        })
        .await
    }

    fn instances_over(&self) -> u64 {
        0
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let instance = instance.clone();
        self.write(move |connection, namespace| {
            Box::pin(life::declare_dead(
                connection, namespace, instance, renewals,
            ))
        })
        .await
    }

    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        let (instance, first, after) = (instance.clone(), keys_json(first), after.cloned());
        self.write(move |connection, namespace| {
            Box::pin(life::bury(connection, namespace, instance, first, after))
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let instance = instance.clone();
        self.write(move |connection, namespace| {
            Box::pin(life::leave(connection, namespace, instance))
        })
        .await
    }
}
