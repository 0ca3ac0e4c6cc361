//! [`Administration`]: the calls of the start and of operators.

use std::time::Duration;

use async_trait::async_trait;

use super::records::{
    AuditRow, Count, Epoch, Era, InstanceId, InstanceRow, MarkRow, Override, PruneStep, Pruned,
    StoreError,
};
use crate::routing::{ResourceKey, Token};

/// Any caller may use these. They share no connection with requests and heartbeats.
#[async_trait]
pub trait Administration: Send + Sync + 'static {
    /// Once, before all other calls: brings the schema up to date, or checks that it is, and checks
    /// the store. May be called again after a failure.
    async fn prepare(&self) -> Result<(), StoreError>;

    /// Reaches the store and checks that it is fit (schema, durability settings, writable).
    async fn check(&self) -> Result<(), StoreError>;

    /// Marks whose key starts with `prefix` and sorts (bytewise) after `after`, in key order.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError>;

    /// Counts the marks of the namespace: as many as one call may, and the rest with the next
    /// calls.
    async fn count_marks(&self) -> Result<Count, StoreError>;

    /// The marks of the namespace as of the last complete count; `None` before the first.
    fn counted(&self) -> Option<u64>;

    /// A mark, and the epochs of its resource that are not over. To be shown: nothing may be
    /// decided by it.
    async fn view(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<Epoch>)>, StoreError>;

    /// Sets a mark, in one transaction: refused while any epoch of the resource is open; clears
    /// `spent`; adds one to the namespace's era and stamps it on the row; writes the audit row.
    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError>;

    /// Adds one to the namespace's era, so that every instance forgets the marks that it knows.
    /// Returns the era, and the longest lease of the other instances that are not dead: once it has
    /// passed, each of them has forgotten, or may not forward.
    async fn announce_prune(&self, me: InstanceId) -> Result<(Era, Duration), StoreError>;

    /// Deletes marks, as many as one transaction may: those that have not changed for long, and
    /// whose resource has no epoch open. Adds one to the namespace's era and writes an audit row in
    /// the same transaction. Rows that are locked are left out.
    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError>;

    /// Writes an audit row for an operator's other actions. The row's `at_ms` is ignored: the
    /// store's clock decides.
    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError>;

    /// The audit rows of a resource, the latest first.
    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError>;

    /// The route table on record, as `config::RouteTable` writes it; `None` until an instance joins.
    async fn routes(&self) -> Result<Option<String>, StoreError>;

    /// Records a route table if `known` is still the one on record; says whether.
    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError>;

    /// Records a route table if no instance of the namespace may have anything in flight, in one
    /// transaction that no instance can join during. Otherwise returns the instances: those on
    /// record that have not settled, or else the ids that only epochs know, for which it reads all
    /// marks.
    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError>;
}
