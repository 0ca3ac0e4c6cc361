//! Places for connections: how many there may be in all, and of one address.
//!
//! A [`Slot`] lives in the socket's wrapper, so that a tunnel that has left HTTP keeps its place until its
//! descriptor is closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};

/// All places of the data port.
pub(super) struct Slots {
    all: Arc<Semaphore>,
    /// `None`: no limit.
    per_peer: Option<(usize, Arc<Peers>)>,
    metrics: Arc<Metrics>,
}

/// A place among all connections, before it is known whose.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct Place(OwnedSemaphorePermit);

/// An open connection's place.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct Slot {
    _place: OwnedSemaphorePermit,
    _of_peer: Option<OfPeer>,
    gauge: IntGauge,
}

impl Slots {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let per_peer = limits.connections_per_peer;
        Self {
            all: Arc::new(Semaphore::new(limits.connections)),
            per_peer: per_peer.map(|most| (most, Arc::default())),
            metrics,
        }
    }

    /// A place, once there is one. Counted once for each time that all were taken.
    pub(super) async fn free(&self) -> Place {
        let all = Arc::clone(&self.all);
        let place = match Arc::clone(&all).try_acquire_owned() {
            Ok(place) => Ok(place),
            Err(TryAcquireError::NoPermits) => {
                self.metrics.limit(Limit::Connections);
                all.acquire_owned().await
            }
            Err(TryAcquireError::Closed) => all.acquire_owned().await,
        };
        Place(place.unwrap_or_else(|_| unreachable!("nobody closes the semaphore")))
    }

    /// The place of a connection from `ip`; `None` if that has all the connections it may have.
    pub(super) fn of(&self, place: Place, ip: Option<IpAddr>) -> Option<Slot> {
        let of_peer = match (&self.per_peer, ip) {
            (Some((most, peers)), Some(ip)) => {
                let taken = OfPeer::take(peers, Network::of(ip), *most);
                if taken.is_none() {
                    self.metrics.limit(Limit::ConnectionsPerPeer);
                    return None;
                }
                taken
            }
            _ => None,
        };
        let gauge = self.metrics.connections();
        gauge.inc();
        Some(Slot {
            _place: place.0,
            _of_peer: of_peer,
            gauge,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// What counts as one peer: an IPv4 address, or the /64 that one IPv6 site has at the least (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Network {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Network {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// Open connections by peer; no entry without one. Held for a look and a count, never across an await.
#[derive(Default)]
struct Peers(Mutex<HashMap<Network, usize>>);

/// One connection of a peer.
struct OfPeer {
    peers: Arc<Peers>,
    network: Network,
}

impl OfPeer {
    fn take(peers: &Arc<Peers>, network: Network, most: usize) -> Option<Self> {
        let mut open = peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(network).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(open);
        Some(Self {
            peers: Arc::clone(peers),
            network,
        })
    }
}

impl Drop for OfPeer {
    fn drop(&mut self) {
        let mut open = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(ip: &str) -> Network {
        Network::of(ip.parse().expect("an address"))
    }

    #[test]
    fn an_ipv6_site_is_one_peer_and_a_mapped_address_is_its_ipv4() {
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.7"), network("192.0.2.7"));
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
    }

    #[test]
    fn a_peers_place_comes_back_and_leaves_no_entry() {
        let peers: Arc<Peers> = Arc::default();
        let peer = network("192.0.2.7");
        let (first, second) = (OfPeer::take(&peers, peer, 2), OfPeer::take(&peers, peer, 2));
        assert!(first.is_some() && second.is_some());
        assert!(OfPeer::take(&peers, peer, 2).is_none());
        assert!(OfPeer::take(&peers, network("192.0.2.8"), 2).is_some());
        drop(first);
        let third = OfPeer::take(&peers, peer, 2);
        assert!(third.is_some());
        drop((second, third));
        assert!(peers.0.lock().expect("no panic").is_empty());
    }
}
