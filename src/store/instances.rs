//! [`Instances`]: which instances are alive, and how dead ones are reaped.

use std::time::Duration;

use async_trait::async_trait;

use super::records::{Burial, Cursor, Era, InstanceId, InstanceRow, Renewal, StoreError, Terms};
use crate::routing::ResourceKey;

/// The instances of a namespace. The membership task alone calls these, over a dedicated
/// connection.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Records a new instance, and returns the namespace's era.
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError>;

    /// Changes the route table's digest in the instance's row, if there is one.
    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError>;

    /// Raises the instance's counter to `renewals`, unless it is dead or unknown; says which. Each
    /// number is sent once. A statement that commits late, after one with a higher number, changes
    /// nothing.
    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError>;

    /// When the latest heartbeat that is known to be durable began, on `CLOCK_BOOTTIME`. A batch of
    /// requests may carry one, if it takes so long that the next renewal would come late. `None`:
    /// only renewals count.
    fn proven(&self) -> Option<Duration> {
        None
    }

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

    /// Every instance recorded, and every id that only an epoch row knows (as `dead`, with
    /// every other column 0 or empty).
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError>;

    /// [`Self::instances`], but may leave out the ids that only epoch rows know, where more epochs
    /// make it costly to find them.
    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.instances().await
    }

    /// Identifies the connection that answered the last [`Self::instances`] or [`Self::recorded`];
    /// 0 before the first. Another connection may lead to another server, whose counters are
    /// behind.
    fn instances_over(&self) -> u64;

    /// Declares an instance dead if its counter is still at `renewals`; says whether it is dead
    /// now. Fails if the instances were read, but over another connection than this one (see
    /// [`Self::instances_over`]): the counter may stand still because this server is behind.
    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError>;

    /// Deletes epochs of a dead instance, as many as one call may: those of the resources named
    /// `first`, then those behind `after`, in order. The instance's own row is deleted with the
    /// last of them. If epochs are left after that, only they know the id: it counts as dead, and
    /// is reaped again. Changes nothing and frees nothing for an id that is recorded and not dead.
    /// Not over the connection of the renewals, which nothing may hold up.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError>;

    /// At the end of a run: deletes the instance's row if it has no epoch left, else marks it dead,
    /// so that settling starts now. Called after every exchange has ended.
    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError>;
}
