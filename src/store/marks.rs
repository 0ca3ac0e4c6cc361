//! [`Marks`]: the calls that requests make to the store.

use async_trait::async_trait;

use super::records::{
    Ask, Batch, Batched, Cursor, EpochRow, Era, Found, Heard, InstanceId, MarkRow, Notification,
    Opening, OwnRow, StoreError,
};
use crate::routing::{ResourceKey, Token};

/// Marks and epochs. The writer alone makes the calls up to [`Self::announce`], over a dedicated
/// connection. An instance's own rows are read over another one, since their number must hold up no
/// request.
#[async_trait]
pub trait Marks: Send + Sync + 'static {
    /// [`Self::advance`], the deletion of drained epochs in the same transaction, and, after its
    /// commit and in another snapshot, the second read. One round trip where the engine can.
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError>;

    /// Locks every mark row named, in key order, and raises those that are lower. Opens epochs and
    /// spends tokens as asked, for rows whose era is not above `era`. Returns, in the order asked,
    /// the state found under the lock. Writes even for equal tokens, so that the commit waits for
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
            hasty: false,
        };
        Ok(self.batch(batch).await?.found)
    }

    /// Those of these resources whose mark row another session has locked. Waits for no row. None
    /// where rows have no locks.
    async fn locked(&self, _resources: &[ResourceKey]) -> Result<Vec<ResourceKey>, StoreError> {
        Ok(Vec::new())
    }

    /// Every epoch row of these resources, of all instances. A separate statement, and so another
    /// snapshot: called after [`Self::advance`] has committed.
    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError>;

    /// Deletes these epoch rows, by resource, instance and epoch id.
    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError>;

    /// Closes rows that others wait for, and announces it; one transaction where the engine can.
    async fn close_wanted(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.close(epochs).await?;
        let mut keys: Vec<ResourceKey> = epochs.iter().map(|row| row.resource.clone()).collect();
        keys.sort();
        keys.dedup();
        let closed = keys
            .into_iter()
            .map(|resource| Notification::Closed { resource });
        // A lost one costs a poll interval.
        let _ = self.announce(&closed.collect::<Vec<_>>()).await;
        Ok(())
    }

    /// Deletes those of these rows whose mark is above their token, and announces it as
    /// [`Self::close_wanted`] does. Their epochs give no permit meanwhile. Returns the marks that
    /// decided it. Fails if it is not known which rows are gone.
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

    /// Records epochs again that a failover has lost, with their instance and epoch id, and without
    /// reading marks. A row that exists stays as it is, but is written, so that the commit waits
    /// for standbys: the wait of an earlier try may have been cancelled.
    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError>;

    /// Gives spent tokens back, each only if it is still spent under that name.
    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError>;

    /// Notifies the other instances. Best effort; does nothing where the store is not shared.
    async fn announce(&self, notifications: &[Notification]) -> Result<(), StoreError>;

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

    /// At the end of a run: goes through this instance's own epoch rows behind `after`, `limit` at
    /// most, and deletes those whose epoch id is not among `kept`. Returns where the next call
    /// begins; `None`: there are no more.
    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError>;

    /// The marks of those of these resources that have one, in no order.
    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError>;

    /// Starts to listen to notifications of other instances, in a background task that ends when
    /// the receiver is dropped. `None` where the store is not shared.
    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>>;
}
