//! The shares of the [in-flight limit](super::in_flight) that one connection and one address have.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The unit that counts as one client: an IPv4 address, or the /64 that one IPv6 site has at the
/// least (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Network {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The number of requests that one connection has in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionInFlight(Arc<AtomicUsize>);

impl ConnectionInFlight {
    pub(crate) fn take(&self, most: usize) -> Option<ConnectionRequestPermit> {
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < most).then_some(count + 1)
            });
        taken
            .ok()
            .map(|_| ConnectionRequestPermit(Arc::clone(&self.0)))
    }
}

/// One request of a connection in flight.
#[must_use = "the permit is given back when this is dropped"]
pub(crate) struct ConnectionRequestPermit(Arc<AtomicUsize>);

impl Drop for ConnectionRequestPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
}
