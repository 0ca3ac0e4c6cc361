//! Idle connections under pressure. Where a new connection finds no permit, the connection that has
//! been without a request for the longest time is closed.
//!
//! A connection is idle while it has no request, not a byte of one, and its client has taken all of
//! the last answer. Its own task closes it, after a request that has begun by then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection_state::ConnectionState;
use super::signals::Signal;
use crate::proxy::Network;

/// A connection is idle for this long before it makes room. A client that has just connected is
/// about to send a request, and a connection in constant use should not be closed between two
/// requests.
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
}

/// One open connection.
#[derive(Clone)]
pub(super) struct Presence {
    pub state: Arc<ConnectionState>,
    /// The client network that it counts for.
    pub network: Option<Network>,
}

/// Keeps a connection in the list until this is dropped.
#[must_use]
pub(super) struct Member {
    all: Arc<IdleConnections>,
    number: u64,
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

    /// Has the longest idle connection closed: of all, or of one client network. `false`: none has
    /// been idle for long enough.
    pub(super) fn close_longest(&self, of: Option<Network>, now: Instant) -> bool {
        let members = self.members();
        let among = members
            .open
            .values()
            .filter(|one| of.is_none() || one.network == of);
        let idle = among.filter_map(|one| Some((one.state.idle_since()?, one)));
        let idle = idle.filter(|(since, _)| now.saturating_duration_since(*since) >= MIN_IDLE);
        let longest = idle.min_by_key(|(since, _)| *since);
        if let Some((_, longest)) = longest {
            longest.state.signal(Signal::MakeRoom);
        }
        longest.is_some()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.all.members().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::connection_state::ActiveStream;

    fn presence() -> Presence {
        Presence {
            state: Arc::new(ConnectionState::new()),
            network: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_one_goes_first_and_none_that_is_busy() {
        let all: Arc<IdleConnections> = Arc::default();
        let close = |of| all.close_longest(of, Instant::now());
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
        assert!(!close(None), "all are new");
        tokio::time::sleep(MIN_IDLE).await;
        // The first has a request under way, the second the beginning of one; the fourth's client
        // does not take the end of its answer.
        let request = ActiveStream::begin(&open[0].1.state);
        open[1].1.state.set_under_way(true);
        open[3].1.state.set_under_way(true);
        assert!(close(None));
        assert_eq!(asked(), [false, false, true, false]);
        assert!(!close(None), "nobody else is idle");
        open[3].1.state.set_under_way(false);
        assert!(close(None));
        assert!(!close(None), "all others are asked or busy");
        assert_eq!(asked(), [false, false, true, true]);
        drop(request);
        assert!(!close(None), "the first has just answered");
        tokio::time::sleep(MIN_IDLE).await;
        let network = Network::of(std::net::Ipv4Addr::LOCALHOST.into());
        assert!(!close(Some(network)), "none is of this network");
        assert!(close(None));
        assert_eq!(asked(), [true, false, true, true]);
        drop(open);
        assert!(all.members().open.is_empty());
        all.signal(Signal::Leave);
        let late = presence();
        let _member = all.add(late.clone());
        assert!(late.state.is(Signal::Leave), "it came later");
    }
}
