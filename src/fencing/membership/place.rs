//! The membership task's checks of the store itself: that it is still in its place, that it takes
//! writes, and how many marks it has.

use std::time::Duration;

use super::{LOOK_AGAIN, Membership};
use crate::store::StoreError;

/// How often some marks are counted, and how often until all of them have been counted once.
const COUNT_AGAIN: Duration = Duration::from_secs(10);
const COUNT_FIRST: Duration = Duration::from_secs(1);

impl Membership {
    /// Ends the lease for good once the store is not in its place any more: another process may
    /// have another store under the same name.
    pub(super) async fn place(&self) {
        loop {
            match self.fencing.store.in_place().await {
                Ok(()) => {}
                Err(error @ StoreError::Unfit(_)) => {
                    self.fencing.lease.revoke();
                    self.fencing.metrics.store().failed(&error);
                    tracing::error!(%error, "the store is unfit for the rest of this run");
                    self.table().ring_all();
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "whether the store is in its place is not known");
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Counts the marks, some at a time.
    pub(super) async fn counting(&self) {
        loop {
            let counted = self.fencing.store.counted().is_some();
            tokio::time::sleep(if counted { COUNT_AGAIN } else { COUNT_FIRST }).await;
            if let Err(error) = self.fencing.store.count_marks().await {
                tracing::debug!(%error, "the marks could not be counted");
            }
        }
    }
}
