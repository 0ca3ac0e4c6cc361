//! [`Marks`] for [`SqliteStore`]: the statements of requests.

use async_trait::async_trait;

use super::SqliteStore;
use super::batch::BatchJson;
use crate::routing::ResourceKey;
use crate::store::engine::Value::Text;
use crate::store::engine::{OverEngine as _, Turn, json};
use crate::store::rows;
use crate::store::{Batch, Epoch, Found, Lane, Marks, Repair, StoreError};

#[async_trait]
impl Marks for SqliteStore {
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
        let key = |(resource,): (String,)| rows::key(&resource);
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
