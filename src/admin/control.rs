//! [`Control`]: what the admin API asks of the core. A trait, so that `admin` names nothing of the
//! request path, and its tests need none.

use std::time::Duration;

use async_trait::async_trait;

use crate::routing::{Decision, ResourceKey, Token};
use crate::store::{AuditRow, EpochRow, MarkRow, Override, StoreError};

/// A mark and what goes on around it: the mark and the epochs as the store has them, the rest as
/// this instance sees it.
#[derive(Clone, Debug)]
pub struct MarkView {
    pub row: MarkRow,
    /// Permits that are out here.
    pub in_flight: usize,
    /// Requests that wait here for older ones.
    pub waiting: usize,
    pub unknown: Vec<UnknownView>,
    /// Open epochs, of all instances.
    pub epochs: Vec<EpochRow>,
}

/// A request that was sent and got no whole answer.
#[derive(Clone, Debug)]
pub struct UnknownView {
    /// What `resolve` names it by.
    pub id: String,
    pub token: Token,
    /// How long it still counts as in flight; `None`: it belongs to another instance that lives.
    pub settles_in: Option<Duration>,
    /// The instance that sent it.
    pub instance: String,
    /// Taken over from a run that is dead.
    pub inherited: bool,
}

/// Why an operator's act did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The store failed; the act may still take effect.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The core will not; says why and what to do.
    #[error("{0}")]
    Refused(String),
}

/// The core, as operators see it. Every call is bounded in time by its implementor. Writes run to
/// their end even if the asker leaves.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Marks whose key starts with `prefix` and sorts (bytewise) after `after`, in key order.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError>;

    /// One mark; `None`: the resource has none.
    async fn view(&self, resource: &ResourceKey) -> Result<Option<MarkView>, StoreError>;

    /// Raises a mark, as a newer holder's request would, and audits it. `reason` may be empty.
    async fn advance(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Decision, ControlError>;

    /// Sets a mark lower. The admin API counts it in the metrics.
    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, ControlError>;

    /// Ends an unknown outcome that is known now, and audits it; `false`: there is none of this id.
    async fn resolve(
        &self,
        resource: &ResourceKey,
        unknown_id: &str,
        reason: &str,
        actor: &str,
    ) -> Result<bool, ControlError>;

    /// What operators did to a resource, the latest first.
    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError>;

    /// Sets those gauges that are only true at the moment of asking (what is left of the lease, say);
    /// called before each scrape, must not block.
    fn refresh(&self) {}
}
