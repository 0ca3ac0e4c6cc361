//! The tasks behind [`Fencing`]: the group-commit writer, and the membership task of the lease.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Gauge;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Fencing;
use crate::config::{Finding, Settings};
use crate::fencing::membership::{Burials, Membership};
use crate::store::StoreError;
use crate::store::routes::RouteRecord;
use crate::throttle::Throttle;

/// The tasks behind [`Fencing`] before the store has been reached.
#[must_use = "nothing fenced is forwarded before it has joined"]
pub struct Background {
    fencing: Arc<Fencing>,
    writer: JoinHandle<()>,
    membership: Membership,
    /// That the store cannot be reached is not said for each try.
    said: Throttle,
}

impl Background {
    pub(super) fn new(
        fencing: &Arc<Fencing>,
        writer: JoinHandle<()>,
        settings: &Settings,
        remaining: Gauge,
        (routes, bits): (Arc<RouteRecord>, fn() -> u128),
    ) -> Self {
        let membership = Membership {
            store: Arc::clone(&fencing.store),
            epoch_table: Arc::clone(&fencing.epoch_table),
            lease: Arc::clone(&fencing.lease),
            detector: Arc::clone(&fencing.detector),
            writer: fencing.writer.clone(),
            meters: fencing.meters.clone(),
            remaining,
            term: settings.store.lease,
            settle: settings.barrier.settle,
            undelivered: settings.upstream.undelivered,
            routes,
            burials: Burials::default(),
            bits,
        };
        Self {
            fencing: Arc::clone(fencing),
            writer,
            membership,
            said: Throttle::of_repeats(),
        }
    }

    /// Checks the store, compares the route tables, and joins. `None`: the store cannot be reached, and
    /// trying again may help.
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
                let meters = &self.fencing.meters;
                meters.errors.with_label_values(&[error.kind()]).inc();
                meters.up.set(0);
                if let Some(left_out) = self.said.say_of(error.kind(), Instant::now()) {
                    tracing::warn!(%error, left_out,
                        "the store cannot be reached yet; nothing fenced is forwarded until it is");
                }
                Ok(None)
            }
        }
    }

    /// Keeps the lease from now on, if the store was joined.
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
    /// Resolves when a task has ended that should not: everything fenced would be refused from then on.
    pub async fn failed(&mut self) -> String {
        tokio::select! {
            ended = &mut self.writer => format!("the task that writes to the store has ended: {ended:?}"),
            ended = &mut self.membership => format!("the task that renews the lease has ended: {ended:?}"),
        }
    }

    /// Leaves the store: closes what has ended, and tells the other instances. What is unknown or
    /// inherited stays on record. Nothing is written upstream any more.
    pub async fn leave(mut self, within: Duration) {
        // From `leave` on, the other instances count what is unknown as settling.
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
        // A million rows take a while. A store that does not answer fails the first of the calls, and ends this.
        if tokio::time::timeout(within, close).await.is_err() {
            tracing::warn!("the store did not take all in time at the stop; epochs stay recorded");
            // Nobody may renew the lease of a run that is over: the others would wait for its epochs as long as this
            // process stays.
            self.membership.abort();
            self.writer.abort();
        }
    }
}
