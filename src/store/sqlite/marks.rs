//! The marks of an embedded database: [`Marks`] for [`SqliteStore`]. Each call
//! hands owned arguments to the task that does its work.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::fetch::keys_json;
use super::statements::{BatchJson, epochs_json};
use super::unbroken::Unbroken;
use super::{SqliteStore, connection, operators, own, statements};
use crate::routing::{ResourceKey, Token};
use crate::store::{
    Batch, Batched, Cursor, EpochRow, Heard, InstanceId, MarkRow, Marks, Notification, Opening,
    OwnRow, StoreError,
};

#[async_trait]
impl Marks for SqliteStore {
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let load = BatchJson::new(batch);
        let (session, known) = (Arc::clone(&self.session), Arc::clone(&self.known));
        // As every other call, but in the task of its caller.
        let work = Unbroken::new(|begun| async move {
            let mut session = session.lock_owned().await;
            begun.set();
            let (done, log) = session.batch(&known, load).await?;
            if log.is_some_and(connection::is_long) {
                // Nobody waits for this.
                tokio::spawn(async move { session.tidy_if(log).await });
            } else {
                session.tidy_if(log).await;
            }
            Ok(done)
        });
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(StoreError::Timeout(self.timeout)),
        }
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        let resources = keys_json(resources);
        self.read(move |connection, namespace| {
            Box::pin(statements::epochs(connection, namespace, resources))
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = epochs_json(epochs);
        self.write(move |connection, namespace| {
            Box::pin(statements::close(connection, namespace, epochs))
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = epochs_json(epochs);
        self.write(move |connection, namespace| {
            Box::pin(statements::reopen(connection, namespace, epochs))
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let spends = json!(
            spends
                .iter()
                .map(|(resource, token, name)| json!([resource.as_str(), token.get(), name]))
                .collect::<Vec<_>>()
        );
        self.write(move |connection, namespace| {
            Box::pin(statements::give_back(connection, namespace, spends))
        })
        .await
    }

    async fn announce(&self, _news: &[Notification]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        let (instance, after) = (instance.clone(), after.cloned());
        self.read(move |connection, namespace| {
            Box::pin(own::page(connection, namespace, instance, after, limit))
        })
        .await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        let (instance, resources) = (instance.clone(), keys_json(resources));
        self.read(move |connection, namespace| {
            Box::pin(own::of(connection, namespace, instance, resources))
        })
        .await
    }

    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError> {
        let (instance, after, kept) = (instance.clone(), after.cloned(), json!(kept));
        self.write(move |connection, namespace| {
            Box::pin(own::close(
                connection, namespace, instance, after, limit, kept,
            ))
        })
        .await
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        let resources = json!(
            resources
                .iter()
                .map(ResourceKey::as_str)
                .collect::<Vec<_>>()
        );
        self.read(move |connection, namespace| {
            Box::pin(operators::marks(connection, namespace, resources))
        })
        .await
    }

    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>> {
        None
    }
}
