//! The tasks behind [`Fencing`]: the lanes, and the membership task of the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Fencing, FencingSetup};
use crate::boot_clock::BootClock;
use crate::config::Finding;
use crate::fencing::membership::Membership;
use crate::store::StoreError;
use crate::throttle::Outage;

/// The tasks behind [`Fencing`] before the store has been reached.
#[must_use = "nothing fenced is forwarded before it has joined"]
pub struct Background {
    fencing: Arc<Fencing>,
    lanes: JoinSet<()>,
    membership: Membership,
    /// The attempts that did not reach the store.
    unreached: Outage,
}

impl Fencing {
    /// Assembles the parts, and starts the lanes. The store is not reached yet: see
    /// [`Background::join`].
    pub fn start(setup: FencingSetup<'_>) -> (Arc<Self>, Background) {
        let fencing = Self::assemble(&setup, BootClock::boottime());
        let background = Background {
            fencing: Arc::clone(&fencing),
            lanes: fencing.start_lanes(setup.workers),
            membership: Membership::new(Arc::clone(&fencing), setup.settings, setup.routes),
            unreached: Outage::default(),
        };
        (fencing, background)
    }
}

impl Background {
    /// Checks the store, compares the route tables, and joins. `None`: the store cannot be reached,
    /// and trying again may help.
    ///
    /// # Errors
    ///
    /// The store is not fit.
    pub async fn join(&self) -> Result<Option<Vec<Finding>>, StoreError> {
        let tried = async {
            self.fencing.store.prepare().await?;
            self.membership.join().await
        };
        match tried.await {
            Ok(findings) => Ok(Some(findings)),
            Err(error @ StoreError::Unfit(_)) => Err(error),
            Err(error) => {
                self.fencing.metrics.store_failed(&error);
                if let Some(down) = self.unreached.failed(error.kind(), Instant::now()) {
                    tracing::warn!(%error, down_for = down.lasted(), tries = down.tries,
                        "the store cannot be reached yet; nothing fenced is forwarded until it is");
                }
                Ok(None)
            }
        }
    }

    /// Begins to renew the lease, if the store was joined.
    pub fn run(self, joined: bool) -> Running {
        let Self {
            fencing,
            lanes,
            membership,
            ..
        } = self;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let membership = tokio::spawn(async move {
            if joined {
                membership.run(stopped).await;
            }
        });
        Running {
            fencing,
            lanes,
            membership,
            stop,
            joined,
        }
    }
}

/// The tasks behind [`Fencing`] until the process stops.
#[must_use = "what is open in the store stays there until it has left"]
pub struct Running {
    fencing: Arc<Fencing>,
    lanes: JoinSet<()>,
    membership: JoinHandle<()>,
    stop: CancellationToken,
    joined: bool,
}

impl Running {
    /// Resolves when a task has ended that must not end. Every fenced request would be refused from
    /// then on.
    pub async fn failed(&mut self) -> String {
        tokio::select! {
            Some(ended) = self.lanes.join_next() => format!("a task that writes to the store has ended: {ended:?}"),
            ended = &mut self.membership => format!("the task that renews the lease has ended: {ended:?}"),
        }
    }

    /// Leaves the store: publishes that all epochs are over but those with an outcome that is still
    /// unknown. Nothing is written upstream any more.
    pub async fn leave(mut self, within: Duration) {
        // From `leave` on, unknown outcomes settle for the other instances.
        let fencing = &self.fencing;
        fencing.lease.end();
        self.stop.cancel();
        let leave = async {
            self.lanes.shutdown().await;
            let _ = (&mut self.membership).await;
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
            // The lease of a run that is over must not be renewed: other instances would wait for
            // its epochs as long as this process stays.
            self.membership.abort();
        }
    }
}
