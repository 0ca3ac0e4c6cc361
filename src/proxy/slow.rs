//! Slow clients: those that are behind with the bodies of their requests, or that do not take their
//! answers. Where places become few, their requests make room.
//!
//! A client that announces a body and sends none has a place for as long as the proxy is patient, at
//! the price of a few bytes, and so has one that leaves its answer in the kernel or behind a closed
//! window. Shares bound what one connection and one address can take in this way. They do not bound
//! what many do. So nothing keeps a place that waits for its client, once others need it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::shares::Network;

/// How far a client is behind before its request makes room. A client with a lossy connection is
/// not, at a rate that any connection has.
pub(crate) const AT_LEAST: Duration = Duration::from_secs(1);
/// How often they are looked through.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// All requests whose clients were waited for.
#[derive(Default)]
pub(crate) struct SlowClients(Mutex<SlowClientMembers>);

/// Held for a look, never across an await.
#[derive(Default)]
struct SlowClientMembers {
    next: u64,
    open: HashMap<u64, Arc<SlowClientWaiting>>,
    /// When they were last looked through, and when those of one network were; not those times that
    /// are long past. One network's looks keep no other's from taking place.
    looked: HashMap<Option<Network>, Instant>,
}

struct SlowClientWaiting {
    /// `None`: it came over a Unix socket.
    network: Option<Network>,
    /// How far its client is behind, in milliseconds.
    behind: AtomicU64,
    crowded: CancellationToken,
}

/// A slow client that is known here until this is dropped.
#[must_use]
pub(crate) struct SlowClient {
    all: Arc<SlowClients>,
    number: u64,
    waiting: Arc<SlowClientWaiting>,
}

impl SlowClients {
    fn members(&self) -> MutexGuard<'_, SlowClientMembers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(self: &Arc<Self>, network: Option<Network>) -> SlowClient {
        let waiting = Arc::new(SlowClientWaiting {
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
    /// How far it is behind.
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

    /// A stranger who has its share may not have others' requests cut.
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
