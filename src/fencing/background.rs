//! The tasks behind [`Fencing`]: the lanes, and the membership task of the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Fencing, FencingSetup};
use crate::boot_clock::BootClock;
use crate::config::Finding;
use crate::fencing::membership::Membership;
use crate::store::StoreError;
use crate::throttle::Throttle;

/// The tasks behind [`Fencing`]. Dropped, they end.
#[must_use = "what is open in the store stays there until it has left"]
pub struct Background {
    fencing: Arc<Fencing>,
    /// The lanes, and the membership task once the store was joined.
    tasks: JoinSet<()>,
    membership: Arc<Membership>,
    joined: bool,
    /// The attempts that did not reach the store.
    unreached: Throttle,
}

impl Fencing {
    /// Assembles the parts, and starts the lanes. The store is not reached yet: see
    /// [`Background::join`].
    pub fn start(setup: FencingSetup<'_>) -> (Arc<Self>, Background) {
        let fencing = Self::assemble(&setup, BootClock::boottime());
        let membership = Membership::new(Arc::clone(&fencing), setup.settings, setup.routes);
        let background = Background {
            fencing: Arc::clone(&fencing),
            tasks: fencing.start_lanes(setup.workers),
            membership: Arc::new(membership),
            joined: false,
            unreached: Throttle::of_repeats(),
        };
        (fencing, background)
    }
}

impl Background {
    /// Checks the store, compares the route tables, joins, and from then on renews the lease.
    /// `None`: the store cannot be reached, and trying again may help.
    ///
    /// # Errors
    ///
    /// The store is not fit.
    pub async fn join(&mut self) -> Result<Option<Vec<Finding>>, StoreError> {
        let tried = async {
            self.fencing.store.prepare().await?;
            self.membership.join().await
        };
        match tried.await {
            Ok(findings) => {
                self.joined = true;
                self.tasks.spawn(Arc::clone(&self.membership).run());
                Ok(Some(findings))
            }
            Err(error @ StoreError::Unfit(_)) => Err(error),
            Err(error) => {
                self.fencing.metrics.store_failed(&error);
                if let Some(left_out) = self.unreached.say_of(error.kind(), Instant::now()) {
                    tracing::warn!(%error, left_out,
                        "the store cannot be reached yet; nothing fenced is forwarded until it is");
                }
                Ok(None)
            }
        }
    }

    /// Resolves when a task has ended that must not end. Every fenced request would be refused from
    /// then on.
    pub async fn failed(&mut self) -> String {
        let ended = self.tasks.join_next().await;
        format!("a task that writes to the store, or renews the lease, has ended: {ended:?}")
    }

    /// Leaves the store: publishes that all epochs are over but those with an outcome that is still
    /// unknown. Nothing is written upstream any more, and the lease is not renewed.
    pub async fn leave(mut self, within: Duration) {
        // From `leave` on, unknown outcomes settle for the other instances.
        let fencing = &self.fencing;
        fencing.lease.end();
        let leave = async {
            self.tasks.shutdown().await;
            if !self.joined {
                return;
            }
            let me = fencing.instance();
            let publication = fencing.epoch_table.finish(me);
            // Twice: only the first use of a connection shows that it has broken.
            for _ in 0..2 {
                match fencing.store.leave(me, &publication).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(%error, "could not record in the store that this instance has stopped; the other instances will detect it");
                    }
                }
            }
        };
        if tokio::time::timeout(within, leave).await.is_err() {
            tracing::warn!("the store did not answer at the stop; what is open stays on record");
        }
    }
}
