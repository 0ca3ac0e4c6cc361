//! The limits on open connections: in all, and of one client address.
//!
//! The socket's wrapper holds the [`ConnectionPermit`]. So a tunnel, which has left HTTP, keeps its
//! permit until its descriptor is closed.

use std::net::IpAddr;
use std::sync::Arc;

use crate::config::{ClientShare, LimitSettings};
use crate::counts::{CountGuard, Counts};
use crate::metrics::{InFlightGuard, Limit, Metrics};
use crate::proxy::Network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limits of the data port.
pub(super) struct ConnectionLimit {
    all: Arc<Semaphore>,
    /// `None`: no limit.
    per_client: Option<(ClientShare, Arc<Counts<Network>>)>,
    metrics: Arc<Metrics>,
}

/// One of `limits.connections`, before the client is known.
#[must_use = "dropping it frees the permit"]
pub(super) struct FreePermit(OwnedSemaphorePermit);

/// A client's network has its share of the connections.
#[derive(Debug)]
pub(super) struct ShareTaken;

/// The permit of an open connection.
#[must_use = "dropping it frees the permit"]
pub(super) struct ConnectionPermit {
    of_client: Option<CountGuard<Network>>,
    _counted: InFlightGuard,
    /// Freed last: the next connection must not find this one in its client's share.
    _of_all: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let per_client = limits.connections_per_client;
        Self {
            all: Arc::new(Semaphore::new(limits.connections)),
            per_client: per_client.map(|share| (share, Arc::default())),
            metrics,
        }
    }

    /// Takes a permit if one is free. If not, counts that the limit was reached.
    pub(super) fn try_acquire(&self) -> Option<FreePermit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok();
        if permit.is_none() {
            self.metrics.limit(Limit::Connections);
        }
        permit.map(FreePermit)
    }

    /// Waits for a free permit.
    pub(super) async fn acquire(&self) -> FreePermit {
        let permit = Arc::clone(&self.all).acquire_owned().await;
        FreePermit(permit.unwrap_or_else(|_| unreachable!("the semaphore is never closed")))
    }

    /// The network whose connections must make room for one more from `ip` when no permit is free:
    /// its own network, if that has its share. `None`: any.
    pub(super) fn over_share(&self, ip: Option<IpAddr>) -> Option<Network> {
        let (share, peers) = self.per_client.as_ref()?;
        let ip = ip.filter(|ip| share.counts(*ip))?;
        let network = Network::of(ip);
        (!share.gives(peers.of(network), 1)).then_some(network)
    }

    /// Counts a connection that was closed at once, since its network has its share.
    pub(super) fn refused(&self) {
        self.metrics.limit(Limit::ConnectionsPerClient);
    }

    /// Makes the permit of a connection that counts for `ip`. If its network has its share, `closes`
    /// has one of its connections closed, whose place this one takes.
    pub(super) fn assign(
        &self,
        permit: FreePermit,
        ip: Option<IpAddr>,
        closes: impl FnOnce(Network) -> bool,
    ) -> Result<ConnectionPermit, ShareTaken> {
        let of_client = match (&self.per_client, ip) {
            (Some((share, peers)), Some(ip)) if share.counts(ip) => {
                let network = Network::of(ip);
                // With the permit that is taken already.
                let free = self.all.available_permits() + 1;
                let taken = peers.take(network, |held| share.gives(held, free));
                let taken = taken.or_else(|| {
                    self.metrics.limit(Limit::ConnectionsPerClient);
                    // Until that has gone, both count.
                    closes(network).then(|| peers.take(network, |_| true))?
                });
                Some(taken.ok_or(ShareTaken)?)
            }
            _ => None,
        };
        let counted = InFlightGuard::over(&self.metrics.series.connections);
        Ok(ConnectionPermit {
            of_client,
            _counted: counted,
            _of_all: permit.0,
        })
    }
}

impl ConnectionPermit {
    /// The client network that it counts for.
    pub(super) fn network(&self) -> Option<Network> {
        self.of_client.as_ref().map(CountGuard::holder)
    }
}
