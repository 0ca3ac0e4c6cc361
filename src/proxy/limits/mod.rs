//! The shares that one client address may have of a limit: of connections, and of requests in
//! flight.

pub(crate) mod in_flight;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::config::ClientShare;
use crate::locked::locked;

/// The unit that counts as one client: an IPv4 address, or the /64 that one IPv6 site has at the
/// least (RFC 6177).
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

/// The number that each client network has of a limit.
pub(crate) struct ClientShares {
    /// `None`: addresses have no share.
    share: Option<ClientShare>,
    /// A network without any has no entry. Locked to count, never across an await.
    held: Mutex<HashMap<Network, usize>>,
}

/// One of what a client network has.
#[must_use = "it counts until this is dropped"]
pub(crate) struct ClientPermit {
    shares: Arc<ClientShares>,
    network: Network,
    /// It is more than the network's share.
    pub is_over: bool,
}

impl ClientShares {
    pub(crate) fn new(share: Option<ClientShare>) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self { share, held })
    }

    /// Counts one more for an address while `free` of the limit are left, even beyond its share.
    /// `None`: the address does not count.
    pub(crate) fn take(self: &Arc<Self>, ip: Option<IpAddr>, free: usize) -> Option<ClientPermit> {
        let share = self.share?;
        let network = Network::of(ip.filter(|ip| share.counts(*ip))?);
        let mut held = locked(&self.held);
        let own = held.entry(network).or_default();
        *own += 1;
        Some(ClientPermit {
            shares: Arc::clone(self),
            network,
            is_over: !share.gives(*own - 1, free),
        })
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut held = locked(&self.shares.held);
        if let Some(own) = held.get_mut(&self.network) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.network);
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
    fn an_ipv6_site_is_one_client_and_a_mapped_address_is_its_ipv4() {
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.7"), network("192.0.2.7"));
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
    }

    #[test]
    fn a_returned_permit_counts_no_more_and_leaves_no_entry() {
        let share = ClientShare {
            of: 4,
            most: 2,
            loopback: false,
        };
        let shares = ClientShares::new(Some(share));
        let take = |ip: &str| shares.take(Some(ip.parse().expect("an address")), 4);
        let is_over = |one: Option<&ClientPermit>| one.map(|one| one.is_over);
        let (first, second) = (take("192.0.2.7"), take("192.0.2.7"));
        assert_eq!(is_over(second.as_ref()), Some(false));
        let third = take("192.0.2.7");
        assert_eq!(is_over(third.as_ref()), Some(true));
        drop((first, second));
        assert_eq!(is_over(take("192.0.2.7").as_ref()), Some(false));
        assert_eq!(locked(&shares.held).len(), 1);
        drop(third);
        assert!(locked(&shares.held).is_empty());
        assert_eq!(is_over(take("127.0.0.1").as_ref()), None);
    }
}
