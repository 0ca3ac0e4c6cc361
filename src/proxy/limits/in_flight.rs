//! The limit on requests in flight: `limits.in_flight` of them, over all routes and modes, and the
//! shares that one connection and one client address may have of them.
//!
//! Every request that may go upstream has a permit, fenced or not. It has the permit from before
//! its body is read until the upstream has finished and the client has its answer. That bounds the
//! memory of requests. A share counts for as long as the permit. So a client that resets its
//! streams, or closes its connection, gets no further permits while the upstream still works on its
//! requests.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::network::{ConnectionRequestPermit, Network};
use crate::config::{ClientShare, LimitSettings};
use crate::counts::{CountGuard, Counts};
use crate::metrics::{InFlightGuard, Limit, Metrics};
use crate::proxy::client::Client;
use crate::proxy::refusal::Refusal;

const FULL: &str = "Nothing was forwarded. See limits.in_flight.";
const CONNECTION_FULL: &str = "This connection has as many requests in flight as one may have. \
    Nothing was forwarded. See limits.in_flight_per_connection.";
const CLIENT_FULL: &str = "This address has as many requests in flight as one may have. Nothing \
    was forwarded. See limits.in_flight_per_client.";

const TUNNELS_FULL: &str = "Tunnels hold three quarters of all in-flight permits, for as long as \
    their clients like. Nothing was forwarded. See limits.in_flight.";

/// The limit over all requests.
pub(crate) struct InFlightLimit {
    free: Arc<Semaphore>,
    tunnels: Arc<Semaphore>,
    per_connection: usize,
    /// `None`: no limit.
    per_client: Option<(ClientShare, Arc<Counts<Network>>)>,
    metrics: Arc<Metrics>,
}

/// One request's permit, shared by all its tasks.
pub(crate) type InFlightPermit = Arc<HeldPermits>;

/// Everything that a request has taken from the limits.
#[must_use = "the permits are given back when this is dropped"]
pub(crate) struct HeldPermits {
    _counted: InFlightGuard,
    _permit: OwnedSemaphorePermit,
    _connection: ConnectionRequestPermit,
    _client: Option<CountGuard<Network>>,
}

impl InFlightLimit {
    pub(crate) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let per_client = limits.in_flight_per_client;
        Self {
            free: Arc::new(Semaphore::new(limits.in_flight)),
            tunnels: Arc::new(Semaphore::new(limits.tunnels())),
            per_connection: limits.in_flight_per_connection,
            per_client: per_client.map(|share| (share, Arc::default())),
            metrics,
        }
    }

    /// Takes a tunnel's permit, beside the one of the request that opens it.
    pub(crate) fn take_tunnel(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let permit = Arc::clone(&self.tunnels).try_acquire_owned();
        permit.map_err(|_| {
            self.metrics.limit(Limit::Tunnels);
            Refusal::Overloaded(TUNNELS_FULL)
        })
    }

    /// Takes a permit at once, or refuses: a waiting request would hold memory without a permit.
    pub(crate) fn take(&self, client: &Client) -> Result<InFlightPermit, Refusal> {
        let refused = |limit, why| {
            self.metrics.limit(limit);
            Refusal::Overloaded(why)
        };
        let connection = client
            .in_flight
            .take(self.per_connection)
            .ok_or_else(|| refused(Limit::InFlightPerConnection, CONNECTION_FULL))?;
        let of_client = match (&self.per_client, client.ip) {
            (Some((share, counts)), Some(ip)) if share.counts(ip) => {
                // If none is free, the refusal says so.
                let free = self.free.available_permits().max(1);
                let network = Network::of(ip);
                let taken = counts.take(network, |held| share.gives(held, free));
                Some(taken.ok_or_else(|| refused(Limit::InFlightPerClient, CLIENT_FULL))?)
            }
            _ => None,
        };
        let permit = Arc::clone(&self.free).try_acquire_owned();
        let permit = permit.map_err(|_| refused(Limit::InFlight, FULL))?;
        let counted = InFlightGuard::over(&self.metrics.series.requests_in_flight);
        Ok(Arc::new(HeldPermits {
            _counted: counted,
            _permit: permit,
            _connection: connection,
            _client: of_client,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::config::{Overrides, parse};
    use crate::proxy::ConnectionInFlight;

    fn places(limits: &str) -> InFlightLimit {
        let mut overrides = Overrides::default();
        overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
        let parsed = parse(&format!("limits: {{ {limits} }}\n"), &overrides);
        let (settings, _) = parsed.unwrap_or_else(|problems| panic!("{problems}"));
        InFlightLimit::new(&settings.limits, Arc::new(Metrics::new(&[])))
    }

    /// A new connection of an address; `None`: of a Unix socket.
    fn connection(ip: Option<&str>) -> Client {
        let ip: Option<IpAddr> = ip.map(|ip| ip.parse().expect("an address"));
        Client {
            ip,
            forwarded: None,
            text: "test".into(),
            tls: None,
            mutual: false,
            identity: None,
            until: None,
            in_flight: ConnectionInFlight::default(),
        }
    }

    /// How many permits the connections get in all, each as many as it can.
    fn taken(places: &InFlightLimit, connections: &[Client]) -> Vec<InFlightPermit> {
        let all = connections.iter().flat_map(|one| {
            std::iter::repeat_with(move || places.take(one).ok()).map_while(|place| place)
        });
        all.collect()
    }

    fn of(count: usize, ip: Option<&str>) -> Vec<Client> {
        (0..count).map(|_| connection(ip)).collect()
    }

    #[test]
    fn one_connection_gets_a_quarter_and_one_address_leaves_a_quarter() {
        let places = places("in_flight: 16");
        let address = Some("192.0.2.7");
        assert_eq!(taken(&places, &of(1, address)).len(), 4);
        let held = taken(&places, &of(9, address));
        assert_eq!(held.len(), 12);
        assert_eq!(taken(&places, &of(9, Some("::ffff:192.0.2.7"))).len(), 0);
        assert_eq!(taken(&places, &of(9, Some("192.0.2.8"))).len(), 3);
        drop(held);
        assert_eq!(taken(&places, &of(9, address)).len(), 12);
        let (_, counts) = places.per_client.expect("a share");
        assert!(counts.is_empty(), "no entry without a place");
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
                    let one = connection(Some(&format!("192.0.2.{number}")));
                    held.extend(places.take(&one));
                }
                if held.len() == before {
                    break;
                }
            }
            let left = places.free.available_permits();
            let share = 128 / (1 + 3 * addresses);
            assert!(
                (share..=share + 2).contains(&left),
                "{addresses} leave {left}"
            );
            assert!(places.take(&connection(Some("198.51.100.1"))).is_ok());
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
            assert_eq!(taken(&some, &of(9, ip)).len(), 16, "{ip:?}");
        }
        let some = places("in_flight: 16, in_flight_per_client: 5");
        let held = taken(&some, &of(9, Some("127.0.0.1")));
        assert_eq!(held.len(), 5);
        assert_eq!(taken(&some, &of(9, None)).len(), 11);
        let some = places("in_flight: 16, in_flight_per_client: none");
        assert_eq!(taken(&some, &of(9, Some("192.0.2.7"))).len(), 16);
    }

    #[test]
    fn the_smallest_numbers_of_places_have_shares_too() {
        for (in_flight, of_client) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4)] {
            let places = places(&format!("in_flight: {in_flight}"));
            assert_eq!(taken(&places, &of(1, Some("192.0.2.7"))).len(), 1);
            assert_eq!(taken(&places, &of(9, Some("192.0.2.7"))).len(), of_client);
        }
    }
}
