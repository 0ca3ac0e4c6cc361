//! The limits on open connections: in all, and of one client address.
//!
//! The socket's wrapper holds the [`ConnectionPermit`]. So a tunnel, which has left HTTP, keeps its
//! permit until its descriptor is closed.

use std::net::IpAddr;
use std::sync::Arc;

use crate::config::{ClientShare, LimitSettings};
use crate::counts::{CountGuard, Counts};
use crate::metrics::{Limit, Metrics};
use crate::proxy::Network;
use prometheus::IntGauge;
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

/// One of `limits.connections_per_client`, until the last clone is dropped. A connection that makes
/// room stops counting before it is closed.
pub(super) type ClientPermit = Arc<CountGuard<Network>>;

/// A permit of a client, if its network has not had its share.
pub(super) type TakenShare = Option<CountGuard<Network>>;

/// A client's network has its share of the connections.
#[derive(Debug)]
pub(super) struct ShareTaken;

/// The permit of an open connection.
#[must_use = "dropping it frees the permit"]
pub(super) struct ConnectionPermit {
    _of_all: OwnedSemaphorePermit,
    of_client: Option<ClientPermit>,
    gauge: IntGauge,
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

    /// Makes the permit of a connection that counts for `ip`; see [`Self::share`].
    pub(super) fn assign(
        &self,
        permit: FreePermit,
        ip: Option<IpAddr>,
        make_room: impl FnOnce(Network, &dyn Fn() -> TakenShare) -> TakenShare,
    ) -> Result<ConnectionPermit, ShareTaken> {
        let of_client = self.share(ip, make_room)?;
        let gauge = self.metrics.connections();
        gauge.inc();
        Ok(ConnectionPermit {
            _of_all: permit.0,
            of_client,
            gauge,
        })
    }

    /// Takes a permit of a client. If its network has its share, `make_room` has one of its
    /// connections closed, and takes its place.
    fn share(
        &self,
        ip: Option<IpAddr>,
        make_room: impl FnOnce(Network, &dyn Fn() -> TakenShare) -> TakenShare,
    ) -> Result<Option<ClientPermit>, ShareTaken> {
        let (Some((share, peers)), Some(ip)) = (&self.per_client, ip) else {
            return Ok(None);
        };
        if !share.counts(ip) {
            return Ok(None);
        }
        let network = Network::of(ip);
        let take = || {
            // With the permit that is taken already.
            let free = self.all.available_permits() + 1;
            peers.take(network, |held| share.gives(held, free))
        };
        let taken = take().or_else(|| {
            self.metrics.limit(Limit::ConnectionsPerClient);
            make_room(network, &take)
        });
        taken.map(Arc::new).map(Some).ok_or(ShareTaken)
    }
}

impl ConnectionPermit {
    /// The permit of its client.
    pub(super) fn of_client(&self) -> Option<ClientPermit> {
        self.of_client.clone()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
