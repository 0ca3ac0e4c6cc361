//! [`MarkStore`] for [`SqliteStore`]: the statements of requests, the start and the end.

use async_trait::async_trait;

use super::batch::BatchJson;
use super::{SqliteStore, count};
use crate::routing::ResourceKey;
use crate::store::engine::Value::Text;
use crate::store::engine::{Engine as _, Turn, Work, json};
use crate::store::instances::TOUCH;
use crate::store::rows;
use crate::store::{Batch, Epoch, Era, Found, Instances as _, Lane, MarkStore, Repair, StoreError};

#[async_trait]
impl MarkStore for SqliteStore {
    /// An empty transaction would not notice a file that has become read-only.
    async fn prepare(&self) -> Result<(), StoreError> {
        let touched = self
            .engine()
            .fetch(Turn::Write, TOUCH, vec![], |(era,): (Era,)| Ok(era));
        touched.await.map(drop)
    }

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = count::in_place(&lock).await;
        if lock.lost().is_some() {
            // The next turn saves what only the log has: the sooner, the better.
            let nothing: Work = Box::new(|_| Box::pin(async { Ok(()) }));
            let _ = self.work(Turn::Read, nothing).await;
        }
        checked
    }

    async fn disconnect(&self) {
        // The next holder of the lock takes this process for ended, so the process keeps the lock.
        std::mem::forget(self.lock.upgrade());
        SqliteStore::close(self).await;
    }

    async fn advance(&self, _: Lane, batch: Batch<'_>) -> Result<Vec<Found>, StoreError> {
        self.batch(BatchJson::new(batch)).await
    }

    async fn cede(&self, ceded: &[(ResourceKey, Epoch)]) -> Result<Vec<ResourceKey>, StoreError> {
        const CEDE: &str = concat!(
            "UPDATE marks AS m SET open = (SELECT ",
            array!(),
            " FROM ",
            triples!("m.open"),
            " WHERE (m.resource, instance, opening) NOT IN (
                  SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?2)))
              WHERE namespace = ?1 AND resource IN (SELECT value ->> 0 FROM json_each(?2))
              RETURNING resource"
        );
        let ceded = ceded
            .iter()
            .map(|(resource, epoch)| (resource, epoch.instance.get(), epoch.opening));
        let ceded = json(&ceded.collect::<Vec<_>>());
        let key = |(resource,)| rows::key(resource);
        self.engine()
            .fetch(Turn::Write, CEDE, vec![Text(ceded)], key)
            .await
    }

    async fn repair(&self, repairs: &[Repair]) -> Result<Vec<Found>, StoreError> {
        let mut done = Vec::with_capacity(repairs.len());
        for repair in repairs {
            done.extend(self.batch(BatchJson::of_repair(repair)).await?);
        }
        Ok(done)
    }
}

impl SqliteStore {
    async fn batch(&self, load: BatchJson) -> Result<Vec<Found>, StoreError> {
        self.in_turn(move |session| Box::pin(async move { session.batch(&load).await }))
            .await
    }
}
