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
                    self.fencing.metrics.store_failed(&error);
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

    /// Counts the marks in pieces: counting millions at once would slow down every user of the
    /// database, or requests where it is a file. The gauge has the last count that came to the end.
    pub(super) async fn counting(&self) {
        let (mut marks, mut after, mut pause) = (0, None, COUNT_FIRST);
        loop {
            match self.fencing.store.count_marks(after.as_deref()).await {
                Ok((counted, last)) => {
                    marks += counted;
                    after = last;
                    if after.is_none() {
                        let whole = std::mem::take(&mut marks);
                        self.fencing.metrics.series.marks.set(whole);
                        pause = COUNT_AGAIN;
                    }
                }
                Err(error) => tracing::debug!(%error, "the marks could not be counted"),
            }
            tokio::time::sleep(pause).await;
        }
    }
}
