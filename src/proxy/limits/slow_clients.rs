//! Slow clients: those that are behind with the bodies of their requests, or that do not read their
//! answers. When few in-flight permits are free, their requests make room.
//!
//! A client that announces a body and sends none keeps a permit until a timeout, for a few bytes.
//! So does a client that leaves its answer in the kernel or behind a closed window. Shares bound
//! what one connection and one address can take in this way, but not what many can take together.
//! So no request that waits for its client keeps a permit that others need.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::network::Network;

/// The lag of a client after which its request makes room. A client with a lossy connection is
/// not, at a rate that any connection has.
pub(crate) const AT_LEAST: Duration = Duration::from_secs(1);
/// The interval between two searches for them.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// All requests whose clients were waited for.
#[derive(Default)]
pub(crate) struct SlowClients(Mutex<SlowClientTable>);

/// Held for a look, never across an await.
#[derive(Default)]
struct SlowClientTable {
    next: u64,
    open: HashMap<u64, Arc<SlowClientEntry>>,
    /// The last time that all of them were looked through, and those of one network; long past
    /// times are left out. Looking at one network does not put off another one.
    looked: HashMap<Option<Network>, Instant>,
}

struct SlowClientEntry {
    /// `None`: it came over a Unix socket.
    network: Option<Network>,
    /// The lag of its client, in milliseconds.
    behind: AtomicU64,
    crowded: CancellationToken,
}

/// A slow client that is known here until this is dropped.
#[must_use]
pub(crate) struct SlowClient {
    all: Arc<SlowClients>,
    number: u64,
    waiting: Arc<SlowClientEntry>,
}

impl SlowClients {
    fn members(&self) -> MutexGuard<'_, SlowClientTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(self: &Arc<Self>, network: Option<Network>) -> SlowClient {
        let waiting = Arc::new(SlowClientEntry {
            network,
            behind: AtomicU64::default(),
            crowded: CancellationToken::new(),
        });
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        members.open.insert(number, Arc::clone(&waiting));
        drop(members);
        SlowClient {
            all: Arc::clone(self),
            number,
            waiting,
        }
    }

    /// Has up to `most` of them make room, those first that are furthest behind.
    pub(crate) fn make_room(&self, most: usize, now: Instant) {
        self.look(None, most, now);
    }

    /// As [`Self::make_room`], among those of one network.
    pub(crate) fn make_room_of(&self, network: Network, most: usize, now: Instant) {
        self.look(Some(network), most, now);
    }

    fn look(&self, among: Option<Network>, most: usize, now: Instant) {
        let mut members = self.members();
        let lately = |looked: &Instant| now.saturating_duration_since(*looked) < LOOK_AGAIN;
        members.looked.retain(|_, looked| lately(looked));
        if members.looked.contains_key(&among) {
            return;
        }
        members.looked.insert(among, now);
        let behind = members.open.iter().filter_map(|(number, waiting)| {
            if among.is_some() && waiting.network != among {
                return None;
            }
            let behind = waiting.behind.load(Ordering::Relaxed);
            (u128::from(behind) >= AT_LEAST.as_millis()).then_some((behind, *number))
        });
        let mut behind: Vec<_> = behind.collect();
        behind.sort_unstable_by(|one, other| other.cmp(one));
        behind.truncate(most);
        for (_, number) in behind {
            if let Some(waiting) = members.open.remove(&number) {
                waiting.crowded.cancel();
            }
        }
    }
}

impl SlowClient {
    /// Sets its lag.
    pub(crate) fn is_behind(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.waiting.behind.store(millis, Ordering::Relaxed);
    }

    /// Cancelled when it has to make room.
    pub(crate) fn crowded(&self) -> CancellationToken {
        self.waiting.crowded.clone()
    }
}

impl Drop for SlowClient {
    fn drop(&mut self) {
        self.all.members().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_that_are_furthest_behind_make_room_and_no_other() {
        let all: Arc<SlowClients> = Arc::default();
        let clients = [999, 1001, 1000, 9000].map(|behind| {
            let client = all.add(None);
            client.is_behind(Duration::from_millis(behind));
            client
        });
        let told = || [0, 1, 2, 3].map(|at: usize| clients[at].crowded().is_cancelled());
        all.make_room(2, Instant::now());
        assert_eq!(told(), [false, true, false, true]);
        all.make_room(2, Instant::now());
        assert_eq!(told(), [false, true, false, true], "just looked");
        tokio::time::sleep(LOOK_AGAIN).await;
        all.make_room(2, Instant::now());
        assert_eq!(told(), [false, true, true, true]);
        drop(clients);
        assert!(all.members().open.is_empty());
    }

    /// A client that has used its share must not have the requests of others cut.
    #[tokio::test(start_paused = true)]
    async fn one_network_makes_room_for_itself() {
        let all: Arc<SlowClients> = Arc::default();
        let [one, other] = ["192.0.2.7", "192.0.2.8"].map(|ip| {
            let network = Network::of(ip.parse().expect("an address"));
            let client = all.add(Some(network));
            client.is_behind(Duration::from_secs(9));
            (network, client)
        });
        let told = |client: &SlowClient| client.crowded().is_cancelled();
        all.make_room_of(one.0, 2, Instant::now());
        assert!(told(&one.1) && !told(&other.1));
        // Nor does one look put off another.
        all.make_room_of(other.0, 2, Instant::now());
        assert!(told(&other.1));
        let unix = all.add(None);
        unix.is_behind(Duration::from_secs(9));
        all.make_room(2, Instant::now());
        assert!(told(&unix));
        tokio::time::sleep(LOOK_AGAIN).await;
        all.make_room(2, Instant::now());
        assert_eq!(all.members().looked.len(), 1);
    }
}
