//! Places for connections: how many there may be in all, and of one address.
//!
//! A [`Slot`] lives in the socket's wrapper, so that a tunnel that has left HTTP keeps its place until its
//! descriptor is closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{LimitSettings, PeerShare};
use crate::metrics::{Limit, Metrics};
use crate::proxy::Network;

/// All places of the data port.
pub(super) struct Slots {
    all: Arc<Semaphore>,
    /// `None`: no limit.
    per_peer: Option<(PeerShare, Arc<Peers>)>,
    metrics: Arc<Metrics>,
}

/// A place among all connections, before it is known whose.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct Place(OwnedSemaphorePermit);

/// An open connection's place.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct Slot {
    _place: OwnedSemaphorePermit,
    peer: Option<PeerPlace>,
    gauge: IntGauge,
}

impl Slots {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let per_peer = limits.connections_per_peer;
        Self {
            all: Arc::new(Semaphore::new(limits.connections)),
            per_peer: per_peer.map(|share| (share, Arc::default())),
            metrics,
        }
    }

    /// A place, if one is free; if not, that is counted.
    pub(super) fn free(&self) -> Option<Place> {
        let place = Arc::clone(&self.all).try_acquire_owned().ok();
        if place.is_none() {
            self.metrics.limit(Limit::Connections);
        }
        place.map(Place)
    }

    /// A place, once there is one.
    pub(super) async fn freed(&self) -> Place {
        let place = Arc::clone(&self.all).acquire_owned().await;
        Place(place.unwrap_or_else(|_| unreachable!("nobody closes the semaphore")))
    }

    /// Whose connections have to make room for one more from `ip`, where none is free: its own
    /// address's, if that has its share.
    pub(super) fn over_share(&self, ip: Option<IpAddr>) -> Option<Network> {
        let (share, peers) = self.per_peer.as_ref()?;
        let ip = ip.filter(|ip| share.counts(*ip))?;
        let network = Network::of(ip);
        let held = peers.open().get(&network).copied().unwrap_or(0);
        (!share.gives(held, 1)).then_some(network)
    }

    /// One more was closed at once, since its address has its share.
    pub(super) fn refused(&self) {
        self.metrics.limit(Limit::ConnectionsPerPeer);
    }

    /// The place of a connection from `ip`. If that has all the connections it may have, `make_room` is
    /// asked for one of them; `None`: it has none to spare.
    pub(super) fn of(
        &self,
        place: Place,
        ip: Option<IpAddr>,
        make_room: impl FnOnce(Network) -> bool,
    ) -> Option<Slot> {
        let peer = match (&self.per_peer, ip) {
            (Some((share, peers)), Some(ip)) if share.counts(ip) => {
                let network = Network::of(ip);
                let take = || {
                    // With the one that is taken already.
                    let free = self.all.available_permits() + 1;
                    PeerPlace::take(peers, network, |held| share.gives(held, free))
                };
                let taken = take().or_else(|| {
                    self.metrics.limit(Limit::ConnectionsPerPeer);
                    make_room(network).then(take)?
                });
                Some(taken?)
            }
            _ => None,
        };
        let gauge = self.metrics.connections();
        gauge.inc();
        Some(Slot {
            _place: place.0,
            peer,
            gauge,
        })
    }
}

impl Slot {
    /// Its place among those of its address.
    pub(super) fn peer(&self) -> Option<PeerPlace> {
        self.peer.clone()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// Open connections by peer; no entry without one. Held for a look and a count, never across an await.
#[derive(Default)]
struct Peers(Mutex<HashMap<Network, usize>>);

impl Peers {
    fn open(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection of a peer, as long as one of its clones is there.
#[derive(Clone)]
pub(super) struct PeerPlace(Arc<OfPeer>);

struct OfPeer {
    peers: Arc<Peers>,
    network: Network,
    /// It counts. A connection that makes room counts no more before it is closed.
    counts: AtomicBool,
}

impl PeerPlace {
    fn take(
        peers: &Arc<Peers>,
        network: Network,
        gives: impl FnOnce(usize) -> bool,
    ) -> Option<Self> {
        let mut open = peers.open();
        let count = open.get(&network).copied().unwrap_or(0);
        if !gives(count) {
            return None;
        }
        open.insert(network, count + 1);
        drop(open);
        Some(Self(Arc::new(OfPeer {
            peers: Arc::clone(peers),
            network,
            counts: AtomicBool::new(true),
        })))
    }

    pub(super) fn is_of(&self, network: Network) -> bool {
        self.0.network == network
    }

    /// The connection makes room for another one of its peer.
    pub(super) fn give_back(&self) {
        self.0.count(false);
    }

    /// It stays, though its peer may have one too many by that.
    pub(super) fn take_again(&self) {
        self.0.count(true);
    }
}

impl OfPeer {
    fn count(&self, counts: bool) {
        let mut open = self.peers.open();
        if self.counts.swap(counts, Ordering::Relaxed) == counts {
            return;
        }
        let count = open.entry(self.network).or_insert(0);
        *count = if counts { *count + 1 } else { *count - 1 };
        if *count == 0 {
            open.remove(&self.network);
        }
    }
}

impl Drop for OfPeer {
    fn drop(&mut self) {
        self.count(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(ip: &str) -> Network {
        Network::of(ip.parse().expect("an address"))
    }

    #[test]
    fn a_peers_place_comes_back_and_leaves_no_entry() {
        let peers: Arc<Peers> = Arc::default();
        let peer = network("192.0.2.7");
        let take = |network| PeerPlace::take(&peers, network, |held| held < 2);
        let (first, second) = (take(peer), take(peer));
        assert!(first.is_some() && second.is_some());
        assert!(take(peer).is_none());
        assert!(take(network("192.0.2.8")).is_some());
        drop(first);
        let third = take(peer);
        assert!(third.is_some());
        // One that makes room counts no more, and counts again if it stays.
        let third = third.expect("a place");
        third.give_back();
        let fourth = take(peer);
        assert!(fourth.is_some());
        third.take_again();
        assert_eq!(peers.open().get(&peer), Some(&3));
        assert!(take(peer).is_none());
        third.give_back();
        drop((second, third, fourth));
        assert!(peers.open().is_empty());
    }
}
