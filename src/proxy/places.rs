//! Places for requests in flight: `limits.in_flight` of them, over all routes and modes, and the
//! shares that one connection and one client address may have of them.
//!
//! Every request that may go upstream has one, judged or not, from before its body is read until
//! the upstream is done with it and its client has its answer. That bounds what requests hold in
//! memory.
//! A share counts for as long as the place. So a client that resets its streams, or closes its
//! connection, gets no other places while the upstream still works on its requests.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::peer::Peer;
use super::refusal::Refusal;
use super::shares::{ConnectionPlace, Network};
use super::slow::SlowClients;
use crate::config::{LimitSettings, PeerShare};
use crate::counts::{CountGuard, Counts};
use crate::metrics::{Limit, Metrics};

const FULL: &str = "Nothing was forwarded. See limits.in_flight.";
const CONNECTION_FULL: &str = "The requests of this connection have as many places as one may \
    have. Nothing was forwarded. See limits.in_flight_per_connection.";
const PEER_FULL: &str = "The requests of this address have as many places as one may have. \
    Nothing was forwarded. See limits.in_flight_per_client.";

const TUNNELS_FULL: &str = "Three quarters of all places are taken by tunnels, which last as long \
    as their clients like. Nothing was forwarded. See limits.in_flight.";

/// All places.
pub(super) struct Places {
    free: Arc<Semaphore>,
    tunnels: Arc<Semaphore>,
    per_connection: usize,
    /// `None`: no limit.
    per_client: Option<(PeerShare, Arc<Counts<Network>>)>,
    /// Where fewer are free, requests that wait for their clients make room.
    low: usize,
    slow: Arc<SlowClients>,
    metrics: Arc<Metrics>,
}

/// One place; shared by all tasks of its request.
pub(super) type InFlightPlace = Arc<TakenPlaces>;

/// What a request has taken.
#[must_use = "the place is given back when this is dropped"]
pub(super) struct TakenPlaces {
    _permit: OwnedSemaphorePermit,
    gauge: IntGauge,
    _connection: ConnectionPlace,
    _peer: Option<CountGuard<Network>>,
}

impl Drop for TakenPlaces {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl Places {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let per_client = limits.in_flight_per_client;
        Self {
            free: Arc::new(Semaphore::new(limits.in_flight)),
            tunnels: Arc::new(Semaphore::new(limits.tunnels())),
            per_connection: limits.in_flight_per_connection,
            per_client: per_client.map(|share| (share, Arc::default())),
            low: (limits.in_flight / 8).max(1),
            slow: Arc::default(),
            metrics,
        }
    }

    /// The requests that make room where places become few.
    pub(super) fn slow(&self) -> Arc<SlowClients> {
        Arc::clone(&self.slow)
    }

    /// Takes the place of a tunnel, beside the one of the request that opens it.
    pub(super) fn take_tunnel(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let place = Arc::clone(&self.tunnels).try_acquire_owned();
        place.map_err(|_| {
            self.metrics.limit(Limit::Tunnels);
            Refusal::Overloaded(TUNNELS_FULL)
        })
    }

    /// Takes a place at once, or refuses: a request that waited for one would need one.
    pub(super) fn take(&self, peer: &Peer) -> Result<InFlightPlace, Refusal> {
        let refused = |limit, why| {
            self.metrics.limit(limit);
            Refusal::Overloaded(why)
        };
        let connection = peer
            .places
            .take(self.per_connection)
            .ok_or_else(|| refused(Limit::InFlightPerConnection, CONNECTION_FULL))?;
        let of_peer = match (&self.per_client, peer.ip) {
            (Some((share, counts)), Some(ip)) if share.counts(ip) => {
                // Where none is free, the refusal says that.
                let free = self.free.available_permits().max(1);
                let network = Network::of(ip);
                let taken = counts.take(network, |held| share.gives(held, free));
                Some(taken.ok_or_else(|| {
                    // The address may be a load balancer's, with slow clients behind it.
                    let now = Instant::now();
                    self.slow.make_room_of(network, self.low, now);
                    refused(Limit::InFlightPerClient, PEER_FULL)
                })?)
            }
            _ => None,
        };
        let permit = Arc::clone(&self.free).try_acquire_owned();
        let missing = self.low.saturating_sub(self.free.available_permits());
        if missing > 0 {
            self.slow.make_room(missing, Instant::now());
        }
        let permit = permit.map_err(|_| refused(Limit::InFlight, FULL))?;
        let gauge = self.metrics.places();
        gauge.inc();
        Ok(Arc::new(TakenPlaces {
            _permit: permit,
            gauge,
            _connection: connection,
            _peer: of_peer,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::config::{Overrides, parse};
    use crate::proxy::ConnectionPlaces;

    fn places(limits: &str) -> Places {
        let mut overrides = Overrides::default();
        overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
        let parsed = parse(&format!("limits: {{ {limits} }}\n"), &overrides);
        let (settings, _) = parsed.unwrap_or_else(|problems| panic!("{problems}"));
        Places::new(&settings.limits, Arc::new(Metrics::new(&[])))
    }

    /// A new connection of an address; `None`: of a Unix socket.
    fn connection(ip: Option<&str>) -> Peer {
        let ip: Option<IpAddr> = ip.map(|ip| ip.parse().expect("an address"));
        Peer {
            ip,
            forwarded: None,
            text: "test".into(),
            tls: None,
            mutual: false,
            identity: None,
            until: None,
            places: ConnectionPlaces::default(),
        }
    }

    /// How many places the connections get in all, each as many as it can.
    fn taken(places: &Places, connections: &[Peer]) -> Vec<InFlightPlace> {
        let all = connections.iter().flat_map(|one| {
            std::iter::repeat_with(move || places.take(one).ok()).map_while(|place| place)
        });
        all.collect()
    }

    fn of(count: usize, ip: Option<&str>) -> Vec<Peer> {
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
        for (in_flight, of_peer) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4)] {
            let places = places(&format!("in_flight: {in_flight}"));
            assert_eq!(taken(&places, &of(1, Some("192.0.2.7"))).len(), 1);
            assert_eq!(taken(&places, &of(9, Some("192.0.2.7"))).len(), of_peer);
        }
    }
}
