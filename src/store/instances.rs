//! [`Instances`]: which instances are alive, and which of their epochs are over.

use async_trait::async_trait;

use super::records::{Era, InstanceId, InstanceRow, Publication, Renewal, StoreError, Terms};

/// The instances of a namespace. The membership task alone calls these, over a dedicated
/// connection.
///
/// A row stays for ever: the primary key decides between an instance whose row a failover has lost,
/// and that records itself again, and a watcher that has waited it out.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Records a new instance, and returns the namespace's era. Fails if the id is on record.
    async fn join(&self, instance: InstanceId, terms: &Terms) -> Result<Era, StoreError>;

    /// Raises the instance's counter to [`Terms::renewals`], records the digest of its routes, and
    /// publishes which of its epochs are over; unless it is dead or unknown. Says which. Each
    /// number is sent once. A statement that commits late, after one with a higher number, does not
    /// lower the counter.
    async fn renew(
        &self,
        instance: InstanceId,
        terms: &Terms,
        publication: &Publication,
    ) -> Result<Renewal, StoreError>;

    /// Fails with [`StoreError::Unfit`] if the store is not where other processes look for it any
    /// more. This run must not trust it again; every other call fails the same way from then on.
    async fn in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Ends the use of the store at the end of a run. `SQLite`: the file then holds everything and
    /// has no log; it stays locked until the process ends.
    async fn disconnect(&self) {}

    /// Raises the namespace's era to `era` if it is lower. A failover may have lost an override
    /// whose era instances know, and the next override must not use its number again.
    async fn raise_era(&self, era: Era) -> Result<(), StoreError>;

    /// Counts the connections made so far. Over a new connection another server may answer, which
    /// may have lost data of the last one. Always 0 for a file.
    fn connections(&self) -> u64;

    /// Every instance on record that has not settled.
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError>;

    /// Identifies the connection that answered the last [`Self::instances`]; 0 before the first.
    /// Another connection may lead to another server, whose counters are behind.
    fn instances_over(&self) -> u64;

    /// Declares an instance dead if its counter is still at `renewals`; says whether it is dead
    /// now. Fails if the instances were read, but over another connection than this one (see
    /// [`Self::instances_over`]): the counter may stand still because this server is behind.
    async fn declare_dead(&self, instance: InstanceId, renewals: i64) -> Result<bool, StoreError>;

    /// Records that a dead instance has settled: all its epochs are over. An id that is not on
    /// record is recorded so. `false`: it lives. Not over the connection of the renewals.
    async fn settle(&self, instance: InstanceId) -> Result<bool, StoreError>;

    /// At the end of a run: publishes that all epochs are over but those that are `left`. With
    /// none left the instance has settled, else it is dead, and its settling starts now. Called
    /// after every exchange has ended.
    async fn leave(
        &self,
        instance: InstanceId,
        publication: &Publication,
    ) -> Result<(), StoreError>;
}
