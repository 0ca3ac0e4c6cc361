//! Places for connections: how many there may be in all, and of one address.
//!
//! A [`ConnectionSlot`] lives in the socket's wrapper, so that a tunnel that has left HTTP keeps its place until its
//! descriptor is closed.

use std::net::IpAddr;
use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{LimitSettings, PeerShare};
use crate::counts::{CountGuard, Counts};
use crate::metrics::{Limit, Metrics};
use crate::proxy::Network;

/// All places of the data port.
pub(super) struct Slots {
    all: Arc<Semaphore>,
    /// `None`: no limit.
    per_client: Option<(PeerShare, Arc<Counts<Network>>)>,
    metrics: Arc<Metrics>,
}

/// A place among all connections, before it is known whose.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct SlotPlace(OwnedSemaphorePermit);

/// A place among those of the connection's address, as long as one clone is there. A connection that
/// makes room counts no more before it is closed.
pub(super) type PeerPlace = Arc<CountGuard<Network>>;

/// An open connection's place.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct ConnectionSlot {
    _place: OwnedSemaphorePermit,
    peer: Option<PeerPlace>,
    gauge: IntGauge,
}

impl Slots {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let per_client = limits.connections_per_client;
        Self {
            all: Arc::new(Semaphore::new(limits.connections)),
            per_client: per_client.map(|share| (share, Arc::default())),
            metrics,
        }
    }

    /// A place, if one is free; if not, that is counted.
    pub(super) fn free(&self) -> Option<SlotPlace> {
        let place = Arc::clone(&self.all).try_acquire_owned().ok();
        if place.is_none() {
            self.metrics.limit(Limit::Connections);
        }
        place.map(SlotPlace)
    }

    /// A place, once there is one.
    pub(super) async fn freed(&self) -> SlotPlace {
        let place = Arc::clone(&self.all).acquire_owned().await;
        SlotPlace(place.unwrap_or_else(|_| unreachable!("nobody closes the semaphore")))
    }

    /// Whose connections have to make room for one more from `ip`, where none is free: its own
    /// address's, if that has its share.
    pub(super) fn over_share(&self, ip: Option<IpAddr>) -> Option<Network> {
        let (share, peers) = self.per_client.as_ref()?;
        let ip = ip.filter(|ip| share.counts(*ip))?;
        let network = Network::of(ip);
        (!share.gives(peers.of(network), 1)).then_some(network)
    }

    /// One more was closed at once, since its address has its share.
    pub(super) fn refused(&self) {
        self.metrics.limit(Limit::ConnectionsPerClient);
    }

    /// The place of a connection from `ip`. If that has all the connections it may have, `make_room` is
    /// asked for one of them; `None`: it has none to spare.
    pub(super) fn of(
        &self,
        place: SlotPlace,
        ip: Option<IpAddr>,
        make_room: impl FnOnce(Network) -> bool,
    ) -> Option<ConnectionSlot> {
        let peer = match (&self.per_client, ip) {
            (Some((share, peers)), Some(ip)) if share.counts(ip) => {
                let network = Network::of(ip);
                let take = || {
                    // With the one that is taken already.
                    let free = self.all.available_permits() + 1;
                    peers.take(network, |held| share.gives(held, free))
                };
                let taken = take().or_else(|| {
                    self.metrics.limit(Limit::ConnectionsPerClient);
                    make_room(network).then(take)?
                });
                Some(Arc::new(taken?))
            }
            _ => None,
        };
        let gauge = self.metrics.connections();
        gauge.inc();
        Some(ConnectionSlot {
            _place: place.0,
            peer,
            gauge,
        })
    }
}

impl ConnectionSlot {
    /// Its place among those of its address.
    pub(super) fn peer(&self) -> Option<PeerPlace> {
        self.peer.clone()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
