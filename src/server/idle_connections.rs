//! Idle connections under pressure. Where a new connection finds no permit, the connection that has
//! been without a request for the longest time makes room.
//!
//! A connection is idle while it has no request, not a byte of one, and its client has taken all of
//! the last answer. A client that takes long over a head or over its TLS handshake counts as idle
//! too: with a byte now and then it could keep others out. The connection's own task closes it.
//! That task reads once more before, and serves a request that has begun by then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection_limit::{ClientPermit, TakenShare};
use super::connection_state::ConnectionState;
use super::signals::Signal;
use crate::proxy::Network;

/// How long a connection is idle before it makes room. A client that has just connected is about to
/// send a request, and a connection in constant use should not be closed between two requests.
const MIN_IDLE: Duration = Duration::from_secs(1);

/// All open connections.
#[derive(Default)]
pub(super) struct IdleConnections(Mutex<OpenConnections>);

/// Locked for short sections, never across an await.
#[derive(Default)]
struct OpenConnections {
    next: u64,
    /// The signals to all connections. Later connections get them too.
    signals: Vec<Signal>,
    open: HashMap<u64, Presence>,
    /// The connections that were idle at the last look, the longest first, and since when.
    candidates: VecDeque<(u64, Instant)>,
}

/// One open connection.
#[derive(Clone)]
pub(super) struct Presence {
    pub state: Arc<ConnectionState>,
    /// Its permit among those of its client.
    pub client_permit: Option<ClientPermit>,
}

/// Keeps a connection in the list until this is dropped.
#[must_use]
pub(super) struct Member {
    all: Arc<IdleConnections>,
    number: u64,
}

impl Presence {
    /// Whether it has a request that must not be cut off.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        let lingers = |since| now.saturating_duration_since(since) >= MIN_IDLE;
        self.state.is_busy() && !self.state.head_since().is_some_and(lingers)
    }

    /// Has the connection close, unless a request begins first. It no longer counts for its client.
    /// `take` has the place before the connection's own task hears of it, and could withdraw.
    fn ask_to_make_room<T>(&self, take: impl FnOnce() -> T) -> T {
        if let Some(permit) = &self.client_permit {
            permit.count(false);
        }
        let taken = take();
        self.state.signal(Signal::MakeRoom);
        taken
    }

    /// A request has begun meanwhile: the connection stays, and counts for its client again.
    pub(super) fn withdraw_make_room(&self) {
        if let Some(permit) = &self.client_permit {
            permit.count(true);
        }
        self.state.withdraw_make_room();
    }
}

impl IdleConnections {
    fn members(&self) -> MutexGuard<'_, OpenConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Self>, presence: Presence) -> Member {
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        for signal in &members.signals {
            presence.state.signal(*signal);
        }
        members.open.insert(number, presence);
        Member {
            all: Arc::clone(self),
            number,
        }
    }

    /// Sends a signal to all connections, and to later ones.
    pub(super) fn signal(&self, signal: Signal) {
        let mut members = self.members();
        members.signals.push(signal);
        for presence in members.open.values() {
            presence.state.signal(signal);
        }
    }

    /// Has the longest idle connection make room. `false`: none has been idle for long enough.
    pub(super) fn close_longest(&self, now: Instant) -> bool {
        let mut members = self.members();
        loop {
            while let Some((number, since)) = members.candidates.pop_front() {
                // It may have been busy since, or have gone.
                if let Some(presence) = members.open.get(&number)
                    && presence.state.idle_since() == Some(since)
                {
                    presence.ask_to_make_room(|| ());
                    return true;
                }
            }
            // One look at all of them serves for many that have to go.
            let idle = members.idle(now, |_| true);
            if idle.is_empty() {
                return false;
            }
            members.candidates = idle.into();
        }
    }

    /// As [`Self::close_longest_of`], for a connection of a network that has its share. `take`
    /// takes its place.
    pub(super) fn give_way(&self, network: Network, take: &dyn Fn() -> TakenShare) -> TakenShare {
        self.close_longest_of(network, Instant::now(), take)
            .flatten()
    }

    /// Whether a connection without a request was asked to make room and is still open.
    pub(super) fn is_any_closing(&self, now: Instant) -> bool {
        let members = self.members();
        let mut open = members.open.values();
        open.any(|presence| presence.state.is(Signal::MakeRoom) && !presence.is_busy(now))
    }

    /// As [`Self::close_longest`], among the connections of one client network. Returns what `take`
    /// makes of the place. `None`: none has been idle for long enough.
    pub(super) fn close_longest_of<T>(
        &self,
        network: Network,
        now: Instant,
        take: impl FnOnce() -> T,
    ) -> Option<T> {
        let members = self.members();
        let idle = members.idle(now, |presence| {
            let permit = presence.client_permit.as_ref();
            permit.is_some_and(|permit| permit.holder() == network)
        });
        let longest = idle
            .first()
            .and_then(|(number, _)| members.open.get(number));
        longest.map(|presence| presence.ask_to_make_room(take))
    }
}

impl OpenConnections {
    fn idle(&self, now: Instant, of: impl Fn(&Presence) -> bool) -> Vec<(u64, Instant)> {
        let open = self.open.iter().filter(|(_, presence)| of(presence));
        let idle =
            open.filter_map(|(number, presence)| Some((*number, presence.state.idle_since()?)));
        let mut idle: Vec<_> = idle
            .filter(|(_, since)| now.saturating_duration_since(*since) >= MIN_IDLE)
            .collect();
        // Connections in the middle of a head go first.
        let in_head = |number: &u64| {
            let presence = self.open.get(number);
            presence.is_some_and(|presence| presence.state.head_since().is_some())
        };
        idle.sort_by_cached_key(|(number, since)| (!in_head(number), *since));
        idle
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.all.members().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::counts::Counts;
    use crate::server::connection_state::ActiveStream;

    fn presence() -> Presence {
        Presence {
            state: Arc::new(ConnectionState::new()),
            client_permit: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_one_goes_first_and_none_that_is_busy() {
        let all: Arc<IdleConnections> = Arc::default();
        let mut open = Vec::new();
        for _ in 0..4 {
            let one = presence();
            open.push((all.add(one.clone()), one));
            tokio::time::sleep(MIN_IDLE / 10).await;
        }
        let asked = || {
            open.iter()
                .map(|(_, one)| one.state.is(Signal::MakeRoom))
                .collect::<Vec<_>>()
        };
        assert!(!all.close_longest(Instant::now()), "all are new");
        assert!(!all.is_any_closing(Instant::now()));
        tokio::time::sleep(MIN_IDLE).await;
        // The first has a request under way, the second the beginning of one; the fourth's client
        // does not take the end of its answer.
        let request = ActiveStream::begin(&open[0].1.state);
        open[1].1.state.set_under_way(true);
        open[3].1.state.set_under_way(true);
        assert!(all.close_longest(Instant::now()));
        assert_eq!(asked(), [false, false, true, false]);
        assert!(!all.close_longest(Instant::now()), "nobody else is idle");
        open[3].1.state.set_under_way(false);
        assert!(all.close_longest(Instant::now()));
        assert!(
            !all.close_longest(Instant::now()),
            "all others are asked or busy"
        );
        assert_eq!(asked(), [false, false, true, true]);
        assert!(all.is_any_closing(Instant::now()));
        // A connection that was asked and found busy stays.
        open[2].1.withdraw_make_room();
        drop(request);
        assert!(all.close_longest(Instant::now()), "the third is idle again");
        assert!(
            !all.close_longest(Instant::now()),
            "the first has just answered"
        );
        tokio::time::sleep(MIN_IDLE).await;
        assert!(all.close_longest(Instant::now()));
        assert_eq!(asked(), [true, false, true, true]);
        drop(open);
        assert!(all.members().open.is_empty());
        all.signal(Signal::Leave);
        let late = presence();
        let _member = all.add(late.clone());
        assert!(late.state.is(Signal::Leave), "it came later");
    }

    /// A connection that hears of it may have a request again at once, and counts again then.
    #[tokio::test(start_paused = true)]
    async fn the_place_is_taken_before_its_connection_can_withdraw() {
        let all: Arc<IdleConnections> = Arc::default();
        let shares: Arc<Counts<Network>> = Arc::default();
        let network = Network::of(Ipv4Addr::LOCALHOST.into());
        let take = || shares.take(network, |held| held < 1);
        let old = Presence {
            client_permit: take().map(Arc::new),
            ..presence()
        };
        let _member = all.add(old.clone());
        tokio::time::sleep(MIN_IDLE).await;
        let taken = all.close_longest_of(network, Instant::now(), || {
            assert!(!old.state.is(Signal::MakeRoom), "it has not heard of it");
            take()
        });
        let taken = taken.flatten();
        assert!(taken.is_some());
        assert!(old.state.is(Signal::MakeRoom));
        old.withdraw_make_room();
        assert_eq!(shares.of(network), 2, "both count");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_over_a_head_makes_room() {
        let all: Arc<IdleConnections> = Arc::default();
        let one = presence();
        let _member = all.add(one.clone());
        tokio::time::sleep(MIN_IDLE).await;
        one.state.set_in_head(Instant::now());
        assert!(one.is_busy(Instant::now()));
        assert!(!all.close_longest(Instant::now()), "it has just begun");
        tokio::time::sleep(MIN_IDLE).await;
        assert!(!one.is_busy(Instant::now()));
        assert!(all.close_longest(Instant::now()));
        one.withdraw_make_room();
        // Its body has begun.
        one.state.set_under_way(true);
        assert!(one.is_busy(Instant::now()));
        assert!(!all.close_longest(Instant::now()));
    }
}
