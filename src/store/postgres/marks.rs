//! The marks of a Postgres: [`Marks`] for [`PostgresStore`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{NEWS, PostgresStore, batch, notifications, operators, own, statements};
use crate::routing::{ResourceKey, Token};
use crate::store::{
    Batch, Batched, Cursor, EpochRow, Heard, InstanceId, MarkRow, Marks, Notification, Opening,
    OwnRow, StoreError,
};

#[async_trait]
impl Marks for PostgresStore {
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        self.on(&self.writer, async |c| {
            batch::run(c, (&self.namespace, &self.channel), batch, number).await
        })
        .await
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        self.on(&self.writer, async |c| {
            statements::epochs(c, &self.namespace, resources).await
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.on(&self.writer, async |c| {
            statements::close(c, &self.namespace, epochs).await
        })
        .await
    }

    async fn close_wanted(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let news = epochs.iter().map(|row| Notification::Closed {
            resource: row.resource.clone(),
        });
        let mut payloads: Vec<String> = news
            .filter_map(|news| notifications::encode(&news))
            .collect();
        payloads.sort();
        payloads.dedup();
        self.on(&self.writer, async |c| {
            statements::close_wanted(c, &self.namespace, epochs, &self.channel, &payloads).await
        })
        .await
    }

    async fn cede(&self, epochs: &[EpochRow]) -> Result<Vec<MarkRow>, StoreError> {
        self.on(&self.people, async |c| {
            statements::cede(c, &self.namespace, epochs, &self.channel).await
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.on(&self.writer, async |c| {
            statements::reopen(c, &self.namespace, epochs).await
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        self.on(&self.writer, async |c| {
            statements::give_back(c, &self.namespace, spends).await
        })
        .await
    }

    async fn announce(&self, news: &[Notification]) -> Result<(), StoreError> {
        let payloads: Vec<String> = news.iter().filter_map(notifications::encode).collect();
        self.on(&self.writer, async |c| {
            statements::notify(c, &self.channel, &payloads).await
        })
        .await
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        self.on(&self.reader, async |c| {
            own::page(c, &self.namespace, instance, after, limit).await
        })
        .await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        self.on(&self.reader, async |c| {
            own::of(c, &self.namespace, instance, resources).await
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
        self.on(&self.reader, async |c| {
            own::close(c, &self.namespace, instance, after, limit, kept).await
        })
        .await
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::marks(c, &self.namespace, resources).await
        })
        .await
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (heard, receiver) = mpsc::channel(NEWS);
        let listening =
            notifications::listen(Arc::clone(&self.connector), self.channel.clone(), heard);
        tokio::spawn(listening);
        Some(receiver)
    }
}
