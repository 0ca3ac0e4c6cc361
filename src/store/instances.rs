//! [`Instances`]: which instances live, and what becomes of those that are dead.

use std::time::Duration;

use async_trait::async_trait;

use super::records::{Burial, Cursor, Era, InstanceId, InstanceRow, Renewal, StoreError, Terms};
use crate::routing::ResourceKey;

/// The instances of a namespace. The membership task of the lease is the one caller, over a
/// connection of its own.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Records a new instance, and returns the namespace's era.
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError>;

    /// Puts another digest of the route table into the instance's row, if there is one.
    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError>;

    /// Raises the instance's counter to `renewals`, unless it is dead or unknown; says which. Each number is
    /// sent once. A statement that commits late, after one with a higher number, changes nothing.
    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError>;

    /// When the latest heartbeat began that is known to be durable, on `CLOCK_BOOTTIME`. A batch of requests may
    /// carry one, where it takes so long that the next renewal would come late. `None`: only renewals tell.
    fn proven(&self) -> Option<Duration> {
        None
    }

    /// Whether the store is still where others look for it. [`StoreError::Unfit`]: it is not, and this run must not
    /// trust it again; every other call says the same from then on.
    async fn in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Ends the use of the store at the end of a run. `SQLite`: the file has everything then, and no log; it
    /// stays locked until the process ends.
    async fn disconnect(&self) {}

    /// Raises the namespace's era to `era` if it is lower: a failover may have lost an override whose era instances
    /// know, and the next override must not use its number again.
    async fn raise_era(&self, era: Era) -> Result<(), StoreError>;

    /// Counts the connections made so far. After a new one it may be another server that answers, and one that has
    /// lost what the last one had. 0 for good where there is but one file.
    fn connections(&self) -> u64;

    /// Every instance recorded, and every id that only an epoch row knows (as `dead`, with
    /// every other column 0 or empty).
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError>;

    /// [`Self::instances`] without the ids that only epoch rows know, at least where finding those costs more with
    /// more epochs.
    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.instances().await
    }

    /// Names the connection that answered [`Self::instances`] or [`Self::recorded`] last; 0 before. Another one may
    /// be to another server, whose counters are behind.
    fn instances_over(&self) -> u64;

    /// Declares an instance dead if its counter still stands at `renewals`; says whether it is dead now. Fails if it
    /// would be over another connection than [`Self::instances_over`], where the instances were read at all: there
    /// the counter may stand still because the server is behind.
    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError>;

    /// Deletes epochs of a dead instance, as many as can be in one go: those of the resources named
    /// `first`, then those behind `after`, in order. The instance's own row goes with the last of
    /// them. Epochs that are left after that make their id one that only they know: it is dead, and
    /// buried again. Refuses (changes nothing, frees nothing) for an id that is recorded and not
    /// dead. Not on the connection of the renewals, which nothing may hold up.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError>;

    /// The end of a run: the instance's row goes if no epoch of it is left, else it is marked dead, so
    /// that the settling starts now. Called after every exchange has ended.
    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError>;
}
