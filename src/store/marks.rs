//! [`Marks`]: the calls that requests lead to.

use async_trait::async_trait;

use super::records::{Batch, Epoch, Found, Heard, Lane, Notification, Repair, StoreError};
use crate::routing::ResourceKey;

/// Marks, and the epochs in their rows.
#[async_trait]
pub trait Marks: Send + Sync + 'static {
    /// How many batches it takes at a time. If more than one, each lane has a connection of its own,
    /// which is opened where the first call over it runs.
    fn lanes(&self) -> usize {
        1
    }

    /// One statement: locks every row named, in key order; raises the marks that are lower; spends
    /// tokens as asked; drops epochs that are over or no longer used (see [`Batch::next`]); opens
    /// one where the mark under that lock is not above the token. A row whose era is above
    /// [`Batch::era`], or whose mark is below the one that its ask needs, keeps its mark. Returns,
    /// in the order asked, the state found under the lock. Writes even for equal tokens, so that
    /// the commit waits for standbys.
    async fn advance(&self, lane: Lane, batch: Batch<'_>) -> Result<Vec<Found>, StoreError>;

    /// Removes these epochs from their rows, and notifies all that one was closed. They give no
    /// permit any more. Leaves out rows that another session has locked, and returns the others.
    /// The commit need not be durable: a removal that is lost brings back an epoch that is over
    /// with its instance's next publication.
    async fn cede(&self, epochs: &[(ResourceKey, Epoch)]) -> Result<Vec<ResourceKey>, StoreError>;

    /// Writes back what was lost, in key order, and makes rows that are missing. Returns what it
    /// found, in the order asked.
    async fn repair(&self, repairs: &[Repair]) -> Result<Vec<Found>, StoreError>;

    /// Notifies other instances. Best effort; does nothing where the store is not shared.
    async fn notify(&self, _notifications: &[Notification]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Starts to listen to notifications of other instances, in a background task that ends when
    /// the receiver is dropped. `None` where the store is not shared.
    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>> {
        None
    }
}
