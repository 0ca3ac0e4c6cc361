//! Idle connections under pressure: where there is no place for a new connection, the one that has
//! been without a request for the longest time makes room.
//!
//! A connection is idle while no request is under way on it, no byte of one has come, and the client has
//! made room for all of the last answer. One whose client takes long over a head, or over its TLS
//! handshake, is no better: a byte now and then would keep others out. It is closed by its own task,
//! which reads once more before it does: what has begun by then is served.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::activity::{ConnectionActivity, Signal};
use super::slots::PeerPlace;
use crate::proxy::Network;

/// How long a connection is idle before it makes room. A client that has just connected is about to
/// ask, and one in constant use should not find its connection closed between two requests.
const AT_LEAST: Duration = Duration::from_secs(1);

/// All connections that may be idle.
#[derive(Default)]
pub(super) struct IdleConnections(Mutex<IdleMembers>);

/// Held for a look, never across an await.
#[derive(Default)]
struct IdleMembers {
    next: u64,
    /// What all have been told, and those that come later are.
    told: Vec<Signal>,
    open: HashMap<u64, Presence>,
    /// Those that were idle when somebody last looked, the longest first, and since when.
    candidates: VecDeque<(u64, Instant)>,
}

/// What there is to know of one connection.
#[derive(Clone)]
pub(super) struct Presence {
    pub activity: Arc<ConnectionActivity>,
    /// Its place among those of its address.
    pub peer: Option<PeerPlace>,
}

/// A connection that is known here until this is dropped.
#[must_use]
pub(super) struct Member {
    all: Arc<IdleConnections>,
    number: u64,
}

impl Presence {
    /// Whether it has something to do that has to come to an end.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        let lingers = |since| now.saturating_duration_since(since) >= AT_LEAST;
        self.activity.is_busy() && !self.activity.head_since().is_some_and(lingers)
    }

    /// It is to make room.
    fn tell(&self) {
        if let Some(peer) = &self.peer {
            peer.count(false);
        }
        self.activity.signal(Signal::MakeRoom);
    }

    /// It was to make room, and a request has begun meanwhile.
    pub(super) fn stays(&self) {
        if let Some(peer) = &self.peer {
            peer.count(true);
        }
        self.activity.stays();
    }
}

impl IdleConnections {
    fn members(&self) -> MutexGuard<'_, IdleMembers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Self>, presence: Presence) -> Member {
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        for signal in &members.told {
            presence.activity.signal(*signal);
        }
        members.open.insert(number, presence);
        Member {
            all: Arc::clone(self),
            number,
        }
    }

    /// Says something to all connections, and to those that come later.
    pub(super) fn signal(&self, signal: Signal) {
        let mut members = self.members();
        members.told.push(signal);
        for presence in members.open.values() {
            presence.activity.signal(signal);
        }
    }

    /// Has the longest idle connection make room; `false`: none has been idle for long enough.
    pub(super) fn close_longest(&self, now: Instant) -> bool {
        let mut members = self.members();
        loop {
            while let Some((number, since)) = members.candidates.pop_front() {
                // It may have been busy since, or have gone.
                if let Some(presence) = members.open.get(&number)
                    && presence.activity.idle_since() == Some(since)
                {
                    presence.tell();
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

    /// Whether a connection was asked to make room, has nothing to do any more, and has not gone yet.
    pub(super) fn is_anyone_leaving(&self, now: Instant) -> bool {
        let members = self.members();
        let mut open = members.open.values();
        open.any(|presence| presence.activity.is(Signal::MakeRoom) && !presence.is_busy(now))
    }

    /// As [`Self::close_longest`], among the connections of one peer.
    pub(super) fn close_longest_of(&self, network: Network, now: Instant) -> bool {
        let members = self.members();
        let idle = members.idle(now, |presence| {
            let peer = presence.peer.as_ref();
            peer.is_some_and(|peer| peer.holder() == network)
        });
        let longest = idle
            .first()
            .and_then(|(number, _)| members.open.get(number));
        longest.map(Presence::tell).is_some()
    }
}

impl IdleMembers {
    fn idle(&self, now: Instant, of: impl Fn(&Presence) -> bool) -> Vec<(u64, Instant)> {
        let open = self.open.iter().filter(|(_, presence)| of(presence));
        let idle =
            open.filter_map(|(number, presence)| Some((*number, presence.activity.idle_since()?)));
        let mut idle: Vec<_> = idle
            .filter(|(_, since)| now.saturating_duration_since(*since) >= AT_LEAST)
            .collect();
        // Those first that are in a head.
        let in_head = |number: &u64| {
            let presence = self.open.get(number);
            presence.is_some_and(|presence| presence.activity.head_since().is_some())
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
    use super::*;
    use crate::server::activity::ActiveStream;

    fn presence() -> Presence {
        Presence {
            activity: Arc::new(ConnectionActivity::new()),
            peer: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_one_goes_first_and_none_that_is_busy() {
        let all: Arc<IdleConnections> = Arc::default();
        let mut open = Vec::new();
        for _ in 0..4 {
            let one = presence();
            open.push((all.add(one.clone()), one));
            tokio::time::sleep(AT_LEAST / 10).await;
        }
        let told = || {
            open.iter()
                .map(|(_, one)| one.activity.is(Signal::MakeRoom))
                .collect::<Vec<_>>()
        };
        assert!(!all.close_longest(Instant::now()), "all are new");
        assert!(!all.is_anyone_leaving(Instant::now()));
        tokio::time::sleep(AT_LEAST).await;
        // The first has a request under way, the second the beginning of one; the fourth's client does
        // not take the end of its answer.
        let request = ActiveStream::begin(&open[0].1.activity);
        open[1].1.activity.set_under_way(true);
        open[3].1.activity.set_under_way(true);
        assert!(all.close_longest(Instant::now()));
        assert_eq!(told(), [false, false, true, false]);
        assert!(!all.close_longest(Instant::now()), "nobody else is idle");
        open[3].1.activity.set_under_way(false);
        assert!(all.close_longest(Instant::now()));
        assert!(
            !all.close_longest(Instant::now()),
            "all others are told or busy"
        );
        assert_eq!(told(), [false, false, true, true]);
        assert!(all.is_anyone_leaving(Instant::now()));
        // One that was told and found busy stays.
        open[2].1.stays();
        drop(request);
        assert!(all.close_longest(Instant::now()), "the third is idle again");
        assert!(
            !all.close_longest(Instant::now()),
            "the first has just answered"
        );
        tokio::time::sleep(AT_LEAST).await;
        assert!(all.close_longest(Instant::now()));
        assert_eq!(told(), [true, false, true, true]);
        drop(open);
        assert!(all.members().open.is_empty());
        all.signal(Signal::Leave);
        let late = presence();
        let _member = all.add(late.clone());
        assert!(late.activity.is(Signal::Leave), "it came later");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_over_a_head_makes_room() {
        let all: Arc<IdleConnections> = Arc::default();
        let one = presence();
        let _member = all.add(one.clone());
        tokio::time::sleep(AT_LEAST).await;
        one.activity.set_in_head(Instant::now());
        assert!(one.is_busy(Instant::now()));
        assert!(!all.close_longest(Instant::now()), "it has just begun");
        tokio::time::sleep(AT_LEAST).await;
        assert!(!one.is_busy(Instant::now()));
        assert!(all.close_longest(Instant::now()));
        one.stays();
        // Its body has begun.
        one.activity.set_under_way(true);
        assert!(one.is_busy(Instant::now()));
        assert!(!all.close_longest(Instant::now()));
    }
}
