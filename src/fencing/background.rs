//! The tasks behind [`Fencing`]: the group-commit writer, and the membership task of the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Fencing;
use crate::config::{Finding, Settings};
use crate::fencing::membership::{Membership, MembershipTerms};
use crate::store::StoreError;
use crate::store::routes::RouteRecord;
use crate::throttle::Outage;

/// The tasks behind [`Fencing`] before the store has been reached.
#[must_use = "nothing fenced is forwarded before it has joined"]
pub struct Background {
    fencing: Arc<Fencing>,
    writer: JoinHandle<()>,
    membership: Membership,
    /// The attempts that did not reach the store.
    unreached: Outage,
}

impl Background {
    pub(super) fn new(
        fencing: &Arc<Fencing>,
        writer: JoinHandle<()>,
        settings: &Settings,
        routes: Arc<RouteRecord>,
        random: fn() -> u128,
    ) -> Self {
        let terms = MembershipTerms {
            term: settings.store.lease,
            settle: settings.barrier.settle,
            undelivered: settings.upstream.undelivered,
            routes,
            random,
        };
        let membership = Membership::new(fencing, terms);
        Self {
            fencing: Arc::clone(fencing),
            writer,
            membership,
            unreached: Outage::default(),
        }
    }

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
                self.fencing.metrics.store().unreached(&error);
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
            writer,
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
            writer,
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
    writer: JoinHandle<()>,
    membership: JoinHandle<()>,
    stop: CancellationToken,
    joined: bool,
}

impl Running {
    /// Resolves when a task has ended that must not end. Every fenced request would be refused from
    /// then on.
    pub async fn failed(&mut self) -> String {
        tokio::select! {
            ended = &mut self.writer => format!("the task that writes to the store has ended: {ended:?}"),
            ended = &mut self.membership => format!("the task that renews the lease has ended: {ended:?}"),
        }
    }

    /// Leaves the store: closes the epochs that have ended, and tells the other instances. Unknown
    /// and inherited outcomes stay recorded. Nothing is written upstream any more.
    pub async fn leave(mut self, within: Duration) {
        // From `leave` on, unknown outcomes settle for the other instances.
        self.fencing.lease.end();
        let fencing = &self.fencing;
        let close = async {
            fencing.writer.stop().await;
            let _ = (&mut self.writer).await;
            self.stop.cancel();
            let _ = (&mut self.membership).await;
            if !self.joined {
                return;
            }
            if let Err(error) = fencing.store.leave(&fencing.instance()).await {
                tracing::warn!(%error, "the store could not be told that this instance has ended; the other replicas will find out");
            }
        };
        // A million rows take a while. A store that does not answer fails the first of the calls,
        // and ends this.
        if tokio::time::timeout(within, close).await.is_err() {
            tracing::warn!("the store did not take all in time at the stop; epochs stay recorded");
            // The lease of a run that is over must not be renewed: other instances would wait for
            // its epochs as long as this process stays.
            self.membership.abort();
            self.writer.abort();
        }
    }
}
