//! The open connections of the admin port, by client. A new connection is always accepted: if its
//! client or the port already has the most connections allowed, another one is closed for it. So no
//! client can keep the probes out by opening connections.
//!
//! Connections with a wrong token are closed first. A connection with a request in progress that
//! has a right token is never closed. So a client cannot lock out an operator who has the same
//! address.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{AdminRefusal, Metrics};

/// Connections in all.
pub const CONNECTIONS: usize = 256;
/// Connections of one client.
const PER_CLIENT: usize = 32;

/// The unit that counts as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdminClient {
    /// This machine, or this pod, over any loopback address.
    Loopback,
    /// A user of this machine, over a Unix socket; `None`: the kernel does not say which.
    User(Option<u32>),
    /// An IPv4 address, or the /64 that one IPv6 site has at the least (RFC 6177).
    Site(IpAddr),
}

impl AdminClient {
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) if !ip.is_loopback() => Self::Site(ip.into()),
            IpAddr::V6(ip) if !ip.is_loopback() => {
                Self::Site(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into())
            }
            IpAddr::V4(_) | IpAddr::V6(_) => Self::Loopback,
        }
    }
}

/// All connections that are open.
pub struct AdminConnections {
    /// Held for a look through at most [`CONNECTIONS`] entries, never across an await.
    open: Mutex<OpenAdminConnection>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct OpenAdminConnection {
    /// The number of the next connection.
    next: u64,
    by_number: HashMap<u64, AdminClientEntry>,
}

struct AdminClientEntry {
    client: AdminClient,
    /// A request is being answered.
    at_work: bool,
    /// When `at_work` changed last.
    since: Instant,
    standing: Standing,
    closed: CancellationToken,
}

/// Whether the last token on this connection was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unknown,
    /// The latest token was wrong.
    Wrong,
    /// The token of the request in progress is right.
    Right,
}

impl AdminConnections {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            open: Mutex::default(),
            metrics,
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenAdminConnection> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new connection. Closes another one for it if there are too many.
    pub fn enter(self: &Arc<Self>, client: AdminClient, now: Instant) -> AdminConnectionPlace {
        let mut open = self.open();
        if let Some(number) = open.to_be_closed_for(client) {
            if let Some(entry) = open.by_number.remove(&number) {
                entry.closed.cancel();
            }
            self.metrics.admin_refused(AdminRefusal::Connections);
        }
        let number = open.next;
        open.next += 1;
        let closed = CancellationToken::new();
        open.by_number.insert(
            number,
            AdminClientEntry {
                client,
                at_work: false,
                since: now,
                standing: Standing::Unknown,
                closed: closed.clone(),
            },
        );
        drop(open);
        AdminConnectionPlace {
            number,
            connections: Arc::clone(self),
            closed,
        }
    }

    /// Notes whether a connection has a request in progress.
    fn note(&self, number: u64, at_work: bool, now: Instant) {
        if let Some(entry) = self.open().by_number.get_mut(&number) {
            entry.at_work = at_work;
            entry.since = now;
            if entry.standing == Standing::Right {
                entry.standing = Standing::Unknown;
            }
        }
    }
}

impl OpenAdminConnection {
    /// The connection that makes room for a new one of `client`. One with a wrong token is first,
    /// then one without a request, then one with a request. Among these, a connection of the client
    /// that has the most, and of its connections the one that has been so longest. `None` if each
    /// has a request in progress with a right token.
    fn to_be_closed_for(&self, client: AdminClient) -> Option<u64> {
        let mut counts: HashMap<AdminClient, usize> = HashMap::new();
        for entry in self.by_number.values() {
            *counts.entry(entry.client).or_default() += 1;
        }
        let count = |client| counts.get(&client).copied().unwrap_or_default();
        let own_only = count(client) >= PER_CLIENT;
        if !own_only && self.by_number.len() < CONNECTIONS {
            return None;
        }
        let entries = self.by_number.iter();
        entries
            .filter(|(_, entry)| !own_only || entry.client == client)
            .filter(|(_, entry)| entry.standing != Standing::Right)
            .min_by_key(|(number, entry)| {
                let not_wrong = entry.standing != Standing::Wrong;
                let most = Reverse(count(entry.client));
                (not_wrong, entry.at_work, most, entry.since, **number)
            })
            .map(|(number, _)| *number)
    }
}

/// An open connection among those of its client.
#[must_use = "the place is given back when this is dropped"]
pub struct AdminConnectionPlace {
    number: u64,
    connections: Arc<AdminConnections>,
    closed: CancellationToken,
}

impl AdminConnectionPlace {
    /// Cancelled once the connection must make room for another one.
    pub fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Notes the tokens that come on this connection.
    pub fn conduct(&self) -> Conduct {
        Conduct(Some((self.number, Arc::clone(&self.connections))))
    }

    /// A request is being answered, until this is dropped.
    pub fn begin(&self) -> AtWork<'_> {
        self.connections.note(self.number, true, Instant::now());
        AtWork(self)
    }
}

impl Drop for AdminConnectionPlace {
    fn drop(&mut self) {
        self.connections.open().by_number.remove(&self.number);
    }
}

/// Notes the tokens that come on a connection. The default belongs to no connection.
#[derive(Clone, Default)]
pub struct Conduct(Option<(u64, Arc<AdminConnections>)>);

impl fmt::Debug for Conduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.as_ref().map(|(number, _)| number);
        f.debug_tuple("Conduct").field(&number).finish()
    }
}

impl Conduct {
    /// Notes whether the token of the request in progress is right.
    pub fn gave(&self, right: bool) {
        let Some((number, connections)) = &self.0 else {
            return;
        };
        if let Some(entry) = connections.open().by_number.get_mut(number) {
            entry.standing = if right {
                Standing::Right
            } else {
                Standing::Wrong
            };
        }
    }
}

/// A request that is being answered.
#[must_use]
pub struct AtWork<'a>(&'a AdminConnectionPlace);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let place = self.0;
        place.connections.note(place.number, false, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn connections() -> Arc<AdminConnections> {
        Arc::new(AdminConnections::new(Arc::new(Metrics::new(&[]))))
    }

    fn client(ip: &str) -> AdminClient {
        AdminClient::of(ip.parse().expect("an address"))
    }

    /// The positions of the places that were closed for others.
    fn closed(places: &[AdminConnectionPlace]) -> Vec<usize> {
        let all = places.iter().enumerate();
        all.filter(|(_, place)| place.closed.is_cancelled())
            .map(|(at, _)| at)
            .collect()
    }

    #[test]
    fn the_loopback_is_one_client_and_so_is_an_ipv6_site() {
        assert_eq!(client("127.0.0.1"), client("127.9.9.9"));
        assert_eq!(client("::1"), client("::ffff:127.0.0.1"));
        assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::9"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_eq!(client("::ffff:192.0.2.7"), client("192.0.2.7"));
        assert_ne!(client("192.0.2.7"), client("192.0.2.8"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_makes_room_for_itself_and_for_nobody_else() {
        let (connections, began) = (connections(), Instant::now());
        let other = connections.enter(client("192.0.2.8"), began);
        let after =
            |number: usize| began + Duration::from_secs(1) * u32::try_from(number).unwrap_or(0);
        let mut places: Vec<_> = (0..PER_CLIENT)
            .map(|number| connections.enter(AdminClient::Loopback, after(number)))
            .collect();
        assert!(closed(&places).is_empty());
        // The longest idle one is closed; the one with a request stays.
        let work = places[0].begin();
        let next = connections.enter(AdminClient::Loopback, after(100));
        assert_eq!(closed(&places), [1]);
        tokio::time::advance(Duration::from_secs(200)).await;
        drop(work);
        // It has just had a request, so others have been idle for longer.
        let another = connections.enter(AdminClient::Loopback, after(101));
        assert_eq!(closed(&places), [1, 2]);
        places.extend([next, another]);
        assert!(!other.closed.is_cancelled());
        drop((places, other));
        assert!(connections.open().by_number.is_empty());
    }

    #[tokio::test]
    async fn a_full_port_takes_from_the_client_that_has_the_most() {
        let (connections, now) = (connections(), Instant::now());
        let kubelet = connections.enter(client("192.0.2.1"), now);
        let mut places = Vec::new();
        for site in 0..8 {
            let crowd = client(&format!("198.51.100.{site}"));
            let room = if site == 7 {
                PER_CLIENT - 1
            } else {
                PER_CLIENT
            };
            places.extend((0..room).map(|_| connections.enter(crowd, now)));
        }
        assert_eq!(places.len() + 1, CONNECTIONS);
        assert!(closed(&places).is_empty());
        for number in 0..20 {
            let _place = connections.enter(client(&format!("203.0.113.{number}")), now);
        }
        assert!(!kubelet.closed.is_cancelled());
        assert_eq!(
            closed(&places).len(),
            1,
            "places that are given back are free"
        );
    }

    #[tokio::test]
    async fn where_all_are_at_work_the_longest_of_the_largest_client_goes() {
        let (connections, now) = (connections(), Instant::now());
        let places: Vec<_> = (0..PER_CLIENT)
            .map(|_| connections.enter(AdminClient::User(Some(0)), now))
            .collect();
        let work: Vec<_> = places.iter().map(AdminConnectionPlace::begin).collect();
        let _place = connections.enter(AdminClient::User(Some(0)), now);
        assert_eq!(closed(&places).len(), 1);
        drop(work);
    }

    #[tokio::test]
    async fn guessers_make_room_first_and_an_operator_at_work_never_does() {
        let (connections, now) = (connections(), Instant::now());
        let places: Vec<_> = (0..PER_CLIENT)
            .map(|_| connections.enter(AdminClient::Loopback, now))
            .collect();
        let mut newer = Vec::new();
        // The first has had a request for the longest time, and the last is new.
        let mut work: Vec<_> = places[..5]
            .iter()
            .map(AdminConnectionPlace::begin)
            .collect();
        places[0].conduct().gave(true);
        places[3].conduct().gave(false);
        places[4].conduct().gave(false);
        for expected in [&[3][..], &[3, 4], &[3, 4, 5]] {
            newer.push(connections.enter(AdminClient::Loopback, now));
            assert_eq!(closed(&places), expected);
        }
        // The next right token makes a wrong one forgotten, and is itself forgotten with its
        // request.
        places[1].conduct().gave(false);
        places[1].conduct().gave(true);
        work.extend(newer.iter().map(AdminConnectionPlace::begin));
        for place in &places[6..] {
            work.push(place.begin());
        }
        let _next = connections.enter(AdminClient::Loopback, now);
        assert_eq!(closed(&places), [2, 3, 4, 5]);
        // If all of them have a right token, the new one is accepted nevertheless.
        let operators: Vec<_> = (0..PER_CLIENT)
            .map(|_| connections.enter(AdminClient::User(None), now))
            .collect();
        let at_work: Vec<_> = operators.iter().map(AdminConnectionPlace::begin).collect();
        for place in &operators {
            place.conduct().gave(true);
        }
        let next = connections.enter(AdminClient::User(None), now);
        assert!(closed(&operators).is_empty());
        assert!(!next.closed.is_cancelled());
        drop(at_work);
    }
}
