//! The limit on requests in flight: `limits.in_flight` of them, over all routes and modes, and the
//! shares that one connection and one client address may have of them, and of connections.
//!
//! Every request that may go upstream has a permit, fenced or not. It has the permit from before
//! its body is read until the upstream has finished and the client has its answer. That bounds the
//! memory of requests. A share counts for as long as the permit. So a client that resets its
//! streams, or closes its connection, gets no further permits while the upstream still works on its
//! requests.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::Client;
use super::refusal::Refusal;
use crate::config::{ClientShare, LimitSettings};
use crate::fencing::Refused;
use crate::locked::locked;
use crate::metrics::{InFlightGuard, Limit, Metrics};

/// The limit over all requests.
pub(crate) struct InFlightLimit {
    free: Arc<Semaphore>,
    clients: Arc<ClientShares>,
    metrics: Arc<Metrics>,
}

/// One request's permit, shared by all its tasks.
pub(crate) type InFlightPermit = Arc<HeldPermits>;

/// Everything that a request has taken from the limits.
#[must_use = "the permits are given back when this is dropped"]
pub(crate) struct HeldPermits {
    _counted: InFlightGuard,
    _permit: OwnedSemaphorePermit,
    _connection: OwnedSemaphorePermit,
    _client: Option<ClientPermit>,
}

impl InFlightLimit {
    pub(crate) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let share = ClientShare::of(limits.in_flight, limits.in_flight_per_client);
        Self {
            free: Arc::new(Semaphore::new(limits.in_flight.get())),
            clients: ClientShares::new(share),
            metrics,
        }
    }

    /// Takes a permit at once, or refuses: a waiting request would hold memory without a permit.
    pub(crate) fn take(&self, client: &Client) -> Result<InFlightPermit, Refusal> {
        let own = Arc::clone(&client.in_flight).try_acquire_owned();
        let own = own.map_err(|_| self.full(Limit::InFlightPerConnection))?;
        // If none is free, the refusal says so.
        let free = self.free.available_permits().max(1);
        let of_client = self.clients.take(client.ip, free);
        let of_client = of_client.map_err(|()| self.full(Limit::InFlightPerClient))?;
        let permit = Arc::clone(&self.free).try_acquire_owned();
        let permit = permit.map_err(|_| self.full(Limit::InFlight))?;
        Ok(Arc::new(HeldPermits {
            _counted: InFlightGuard::over(&self.metrics.series.requests_in_flight),
            _permit: permit,
            _connection: own,
            _client: of_client,
        }))
    }

    fn full(&self, limit: Limit) -> Refusal {
        self.metrics.limit(limit);
        Refused::Limited(limit).into()
    }
}

/// The unit that counts as one client: an IPv4 address, or the /64 that one IPv6 site has at the
/// least (RFC 6177).
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// The number that each client network has of a limit.
pub(crate) struct ClientShares {
    /// `None`: addresses have no share.
    share: Option<ClientShare>,
    /// By network; one without any has no entry. Locked to count, never across an await.
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// One of what a client network has.
#[must_use = "it counts until this is dropped"]
pub(crate) struct ClientPermit {
    shares: Arc<ClientShares>,
    network: IpAddr,
}

impl ClientShares {
    pub(crate) fn new(share: Option<ClientShare>) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self { share, held })
    }

    /// Counts one more for an address while `free` of the limit are left, at least 1. `None`: the
    /// address does not count. An error: its network has its share.
    pub(crate) fn take(
        self: &Arc<Self>,
        ip: Option<IpAddr>,
        free: usize,
    ) -> Result<Option<ClientPermit>, ()> {
        let counted = self.share.zip(ip).filter(|(share, ip)| share.counts(*ip));
        let Some((share, ip)) = counted else {
            return Ok(None);
        };
        let (network, shares) = (network(ip), Arc::clone(self));
        let mut held = locked(&self.held);
        let own = held.entry(network).or_default();
        // A network that has none gets one.
        if !share.gives(*own, free) {
            return Err(());
        }
        *own += 1;
        Ok(Some(ClientPermit { shares, network }))
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
    use crate::config::{Overrides, parse};

    /// A limit, and the share of each connection.
    struct Places {
        limit: InFlightLimit,
        of_connection: usize,
    }

    fn places(limits: &str) -> Places {
        let mut overrides = Overrides::default();
        overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
        let parsed = parse(&format!("limits: {{ {limits} }}\n"), &overrides);
        let (settings, _) = parsed.unwrap_or_else(|problems| panic!("{problems}"));
        Places {
            limit: InFlightLimit::new(&settings.limits, Arc::new(Metrics::new(&[]))),
            of_connection: settings.limits.in_flight_per_connection(),
        }
    }

    impl Places {
        /// A new connection of an address; `None`: of a Unix socket.
        fn connection(&self, ip: Option<&str>) -> Client {
            let ip: Option<IpAddr> = ip.map(|ip| ip.parse().expect("an address"));
            Client::at(ip, self.of_connection)
        }

        /// The permits that this many new connections of an address get, each as many as it can.
        fn taken(&self, connections: usize, ip: Option<&str>) -> Vec<InFlightPermit> {
            let mut taken = Vec::new();
            for _ in 0..connections {
                let one = self.connection(ip);
                taken.extend(std::iter::from_fn(|| self.limit.take(&one).ok()));
            }
            taken
        }
    }

    #[test]
    fn one_connection_gets_a_quarter_and_one_address_leaves_a_quarter() {
        let places = places("in_flight: 16");
        let address = Some("192.0.2.7");
        assert_eq!(places.taken(1, address).len(), 4);
        let held = places.taken(9, address);
        assert_eq!(held.len(), 12);
        assert_eq!(places.taken(9, Some("::ffff:192.0.2.7")).len(), 0);
        assert_eq!(places.taken(9, Some("192.0.2.8")).len(), 3);
        drop(held);
        assert_eq!(places.taken(9, address).len(), 12);
    }

    #[test]
    fn addresses_together_leave_places_to_one_more() {
        let places = places("in_flight: 128");
        for addresses in [1, 2, 5, 20] {
            let mut held = Vec::new();
            // In turns, as they would come.
            loop {
                let before = held.len();
                for number in 0..addresses {
                    let one = places.connection(Some(&format!("192.0.2.{number}")));
                    held.extend(places.limit.take(&one));
                }
                if held.len() == before {
                    break;
                }
            }
            let left = places.limit.free.available_permits();
            let share = 128 / (1 + 3 * addresses);
            assert!(
                (share..=share + 2).contains(&left),
                "{addresses} leave {left}"
            );
            let another = places.connection(Some("198.51.100.1"));
            assert!(places.limit.take(&another).is_ok());
        }
    }

    /// Where all clients come by one address, a share of that address would be one of all of them.
    #[test]
    fn addresses_that_mean_nothing_have_no_share_of_their_own() {
        for ip in [
            None,
            Some("127.0.0.6"),
            Some("::1"),
            Some("::ffff:127.0.0.1"),
        ] {
            let some = places("in_flight: 16");
            assert_eq!(some.taken(9, ip).len(), 16, "{ip:?}");
        }
        let some = places("in_flight: 16, in_flight_per_client: 5");
        let held = some.taken(9, Some("127.0.0.1"));
        assert_eq!(held.len(), 5);
        assert_eq!(some.taken(9, None).len(), 11);
        let some = places("in_flight: 16, in_flight_per_client: none");
        assert_eq!(some.taken(9, Some("192.0.2.7")).len(), 16);
    }

    #[test]
    fn the_smallest_numbers_of_places_have_shares_too() {
        for (in_flight, of_client) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4)] {
            let places = places(&format!("in_flight: {in_flight}"));
            assert_eq!(places.taken(1, Some("192.0.2.7")).len(), 1);
            assert_eq!(places.taken(9, Some("192.0.2.7")).len(), of_client);
        }
    }

    fn network(ip: &str) -> IpAddr {
        super::network(ip.parse().expect("an address"))
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
        let (first, second) = (take("192.0.2.7"), take("192.0.2.7"));
        assert!(matches!((&first, &second), (Ok(Some(_)), Ok(Some(_)))));
        assert!(take("192.0.2.7").is_err());
        drop(first);
        assert!(matches!(take("192.0.2.7"), Ok(Some(_))));
        assert_eq!(locked(&shares.held).len(), 1);
        drop(second);
        assert!(locked(&shares.held).is_empty());
        assert!(matches!(take("127.0.0.1"), Ok(None)));
    }
}
