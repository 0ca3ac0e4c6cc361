//! [`MarkStore`]: the one trait that both stores implement. Three parts of it are the same for
//! both: [`Instances`], [`Administration`] and [`Operations`].
//!
//! Rules that every store keeps, whatever its engine:
//!
//! - *Check-and-advance is one call*, [`MarkStore::advance`], and one atomic statement. It returns
//!   only after the change is as durable as the engine can make it.
//! - All that is known of a resource stands in its row, its open epochs too. An epoch is *over* once
//!   its instance has published that ([`Publication`]), or has settled. A statement
//!   ignores an epoch that is over, and drops it when it writes the row.
//! - An epoch is named by its instance and its epoch id (`opening`), which is never used twice. So a
//!   statement that commits late (its answer lost, its connection long dropped) can only raise a
//!   mark, drop what was out of use when it was sent, and open an epoch under which no permit was
//!   ever given, which the next publication covers.
//! - Any error means *doubt*: the statement may still commit. Nothing is concluded from the error,
//!   and its connection is closed, never reused.
//! - Rows are locked in the byte order of their keys, so that two batches cannot deadlock.
//!
//! [`Publication`]: super::Publication

use async_trait::async_trait;

use super::administration::Administration;
use super::instances::Instances;
use super::operations::Operations;
use super::records::{Batch, Epoch, Found, Heard, Lane, Notification, Repair, StoreError};
use crate::routing::ResourceKey;

/// The store of the marks. All calls are for one namespace, fixed when the store is opened.
///
/// A caller may drop any of these futures at any time. The store must then close the connection, or
/// let the work end in its own task. It never reuses a connection in an unknown state.
#[async_trait]
pub trait MarkStore: Instances + Administration + Operations {
    /// The number of batches that it takes at a time. If more than one, each lane has a connection
    /// of its own, which is opened where the first call over it runs.
    fn lanes(&self) -> usize {
        1
    }

    /// One statement: locks every row named, in key order; raises the marks that are lower; spends
    /// tokens as asked; drops epochs that are over or no longer used (see [`Batch::next`]); opens
    /// one where the mark under that lock is not above the token. A row whose era is above
    /// [`Batch::era`], or whose mark is below the one that its ask needs, keeps its mark. Returns
    /// the state found under the lock, one for each ask, in the order asked. Writes even for equal
    /// tokens, so that the commit waits for standbys.
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

    /// Once, before all other calls: brings the schema up to date, or checks that it is, and checks
    /// that the store is fit (durability settings, writable). May be called again.
    async fn prepare(&self) -> Result<(), StoreError>;

    /// Fails with [`StoreError::Unfit`] if the store is not where other processes look for it any
    /// more. This run must not trust it again; every other call fails the same way from then on.
    async fn in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Ends the use of the store at the end of a run. `SQLite`: the file then holds everything and
    /// has no log; it stays locked until the process ends.
    async fn disconnect(&self) {}

    /// Counts how often a new connection has led to another server than the last one (or to one that
    /// was restarted), which may lack data. Always 0 for a file.
    fn servers(&self) -> u64 {
        0
    }

    /// Identifies the connection that answered the last [`Instances::instances`]; 0 before the first.
    /// Another connection may lead to another server, whose counters are behind. Always 0 for a file.
    fn instances_over(&self) -> u64 {
        0
    }
}
