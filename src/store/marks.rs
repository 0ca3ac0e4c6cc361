//! [`Marks`]: what requests ask of the store.

use async_trait::async_trait;

use super::records::{
    Ask, Batch, Batched, Cursor, EpochRow, Era, Found, Heard, InstanceId, MarkRow, Notification,
    Opening, OwnRow, StoreError,
};
use crate::routing::{ResourceKey, Token};

/// Marks and epochs. The writer is the one caller of the calls up to [`Self::announce`], over a
/// connection of its own. An instance's own rows are read over another one, since their number
/// must hold up no request.
#[async_trait]
pub trait Marks: Send + Sync + 'static {
    /// [`Self::advance`], the deletion of drained epochs in the same transaction, and after its commit, in a
    /// snapshot of its own, the second read. All in one round trip where the engine can.
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError>;

    /// Locks every mark row named, in key order; raises those that are lower; opens epochs and
    /// spends tokens as asked, for rows whose era is not above `era`; returns, in the order asked,
    /// what was found under the lock. A write even for equal tokens, so that its commit waits for
    /// standbys. `asks` names each resource at most once, and is not empty.
    async fn advance(
        &self,
        instance: &InstanceId,
        era: Era,
        asks: &[Ask],
    ) -> Result<Vec<Found>, StoreError> {
        let batch = Batch {
            instance,
            era,
            asks,
            closes: &[],
            looks: &[],
        };
        Ok(self.batch(batch).await?.found)
    }

    /// Every epoch row of these resources, of all instances, in a statement (and snapshot) of its
    /// own: called after [`Self::advance`] has committed.
    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError>;

    /// Deletes these epoch rows, by resource, instance and opening.
    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError>;

    /// [`Self::close`] of rows that others wait for, and the announcement of it, in one transaction where the
    /// engine can.
    async fn close_wanted(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.close(epochs).await?;
        let mut keys: Vec<ResourceKey> = epochs.iter().map(|row| row.resource.clone()).collect();
        keys.sort();
        keys.dedup();
        let news = keys
            .into_iter()
            .map(|resource| Notification::Closed { resource });
        // One that is lost costs a poll interval.
        let _ = self.announce(&news.collect::<Vec<_>>()).await;
        Ok(())
    }

    /// Deletes those of these rows, of epochs that give no permit meanwhile, whose mark is above their token, and
    /// announces it as [`Self::close_wanted`] does. Returns the marks that this was judged by. Fails if it is not
    /// known which rows are gone.
    async fn cede(&self, epochs: &[EpochRow]) -> Result<Vec<MarkRow>, StoreError> {
        let mut keys: Vec<ResourceKey> = epochs.iter().map(|row| row.resource.clone()).collect();
        keys.sort();
        keys.dedup();
        let marks = self.marks(&keys).await?;
        let below = |row: &&EpochRow| {
            let above = |mark: &MarkRow| mark.resource == row.resource && mark.token > row.token;
            marks.iter().any(above)
        };
        let gone: Vec<EpochRow> = epochs.iter().filter(below).cloned().collect();
        if !gone.is_empty() {
            self.close_wanted(&gone).await?;
        }
        Ok(marks)
    }

    /// Records epochs again that a failover has lost (their instance and opening are kept), without
    /// looking at marks. What is there already stays as it is, and is written all the same, so that the commit waits
    /// for standbys: the try before may have been the one whose wait was cancelled.
    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError>;

    /// Gives spent tokens back, each only if it is still spent under that name.
    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError>;

    /// Tells the other instances. Best effort; does nothing where the store is not shared.
    async fn announce(&self, news: &[Notification]) -> Result<(), StoreError>;

    /// A page of this instance's own epoch rows: those behind `after`, in order, `limit` at most. A
    /// page with fewer rows is the last one.
    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError>;

    /// This instance's own epoch rows of these resources.
    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError>;

    /// The end of a run: goes through this instance's own epoch rows behind `after`, `limit` at most,
    /// and deletes those whose opening is not among `kept`. Returns where the next call begins;
    /// `None`: that was all.
    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError>;

    /// The marks of these resources, as far as there are any, in no order.
    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError>;

    /// Starts to listen for news of other instances in a background task that ends when the
    /// receiver is dropped. `None` where the store is not shared.
    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>>;
}
