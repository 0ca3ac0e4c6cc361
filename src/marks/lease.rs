//! The lease: how long this instance may trust that its open epochs still hold others back.
//!
//! With a shared store an instance that cannot renew is declared dead by its peers, and its epochs
//! stop holding anybody back. So it must have stopped by itself before that. A lease runs from
//! before the renewal was *sent*; the watcher's count starts after it has *read* the counter, so the
//! owner's lease always ends first. The clock is one that goes on while the machine is suspended
//! (`CLOCK_BOOTTIME`). Every write to an upstream socket looks at the lease, not only the start of an
//! exchange: a process that was stopped halfway through a body wakes up in front of the next write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::store::InstanceId;

/// A clock that never jumps, read as the time since some fixed moment.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Counts suspended time too.
    #[must_use]
    pub fn boottime() -> Self {
        Self::from_fn(|| {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            Duration::new(
                u64::try_from(t.tv_sec).unwrap_or(0),
                u32::try_from(t.tv_nsec).unwrap_or(0),
            )
        })
    }

    #[must_use]
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// Who this process is to the store right now, and since which rejoin.
#[derive(Clone, Debug)]
pub struct Identity {
    pub instance: InstanceId,
    /// Counts rejoins. A permit, an epoch or a socket of an earlier generation is good for nothing new.
    pub generation: u64,
    /// Cancelled when the lease of this generation has been lapsed for `settle`: exchanges that still
    /// run are reset then, since nobody waits for them any longer.
    pub cutoff: CancellationToken,
}

/// The lease of this process. One per process; shared by the keeper that renews it and everything
/// that must not act without it.
#[derive(Debug)]
pub struct Lease {
    clock: Clock,
    /// `None`: the store is not shared, and nobody else can declare this instance dead.
    term: Option<Duration>,
    /// When it ends, in nanoseconds of `clock`. 0: it has not begun.
    ends: AtomicU64,
    /// The run is over: it never is valid again.
    over: AtomicBool,
    generation: AtomicU64,
    /// Short sections, never across an await: only copies in and out.
    identity: Mutex<Identity>,
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Lease {
    /// A lease that has not begun yet: the first [`Self::renewed`] begins it. `term` is `None` for a store that is
    /// not shared; it never ends by itself then.
    #[must_use]
    pub fn new(clock: Clock, term: Option<Duration>, instance: InstanceId) -> Self {
        Self {
            clock,
            term,
            ends: AtomicU64::new(0),
            over: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            identity: Mutex::new(Identity {
                instance,
                generation: 0,
                cutoff: CancellationToken::new(),
            }),
        }
    }

    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether something new may be forwarded now.
    #[must_use]
    pub fn valid(&self) -> bool {
        nanos(self.clock.now()) < self.ends.load(Ordering::Acquire)
            && !self.over.load(Ordering::Acquire)
    }

    /// Whether this instance has ever joined the store.
    #[must_use]
    pub fn begun(&self) -> bool {
        self.ends.load(Ordering::Acquire) > 0
    }

    /// The run is over: nothing is written upstream any more, whatever renewals are still answered.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether a socket, epoch or permit of `generation` may still be written under.
    #[must_use]
    pub fn holds(&self, generation: u64) -> bool {
        // In this order. A rejoin writes the generation before the end, so a look that has found the new
        // end finds the new generation too; the other way round, a rejoin in between would lend the
        // new lease to the old generation.
        self.valid() && self.generation.load(Ordering::Acquire) == generation
    }

    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What is left of it; `None` where the store is not shared, and when the run is over: nothing is to be renewed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.term?;
        if self.is_over() {
            return None;
        }
        let ends = Duration::from_nanos(self.ends.load(Ordering::Acquire));
        Some(ends.saturating_sub(self.clock.now()))
    }

    /// How long it has been over; `None` while it runs.
    #[must_use]
    pub fn lapsed_for(&self) -> Option<Duration> {
        if self.valid() {
            return None;
        }
        let ends = Duration::from_nanos(self.ends.load(Ordering::Acquire));
        Some(self.clock.now().saturating_sub(ends))
    }

    /// A renewal (or the join) that was sent at `sent` has succeeded.
    pub fn renewed(&self, sent: Duration) {
        {
            // The same id may revive after its exchanges were cut: what begins now is not to be cut with them.
            let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
            if identity.cutoff.is_cancelled() {
                identity.cutoff = CancellationToken::new();
            }
        }
        let ends = self.term.map_or(u64::MAX, |term| nanos(sent + term));
        self.ends.fetch_max(ends, Ordering::AcqRel);
    }

    /// Takes another id, before the lease has begun: whether the join under the one before was recorded is
    /// not known, and an id is never used twice.
    pub fn rename(&self, instance: InstanceId) {
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        identity.instance = instance;
    }

    /// This process goes on under a new id: nothing of the old generation may be written any more.
    /// Returns the identity that has ended.
    pub fn rejoined(&self, instance: InstanceId, sent: Duration) -> Identity {
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let old = identity.clone();
        *identity = Identity {
            instance,
            generation: old.generation + 1,
            cutoff: CancellationToken::new(),
        };
        // The generation first: whoever sees the new end must see the new generation too.
        self.generation
            .store(identity.generation, Ordering::Release);
        drop(identity);
        self.renewed(sent);
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn manual() -> (Clock, Arc<AtomicU64>) {
        let now = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&now);
        let clock = Clock::from_fn(move || Duration::from_millis(read.load(Ordering::SeqCst)));
        (clock, now)
    }

    #[test]
    fn runs_from_before_the_renewal_was_sent() {
        let (clock, now) = manual();
        let lease = Lease::new(
            clock,
            Some(Duration::from_secs(5)),
            InstanceId::from_bits(1),
        );
        assert!(!lease.valid(), "not joined yet");
        let sent = lease.clock().now();
        now.store(3000, Ordering::SeqCst);
        lease.renewed(sent);
        now.store(4999, Ordering::SeqCst);
        assert!(lease.valid());
        now.store(5000, Ordering::SeqCst);
        assert!(!lease.valid());
        assert_eq!(lease.lapsed_for(), Some(Duration::ZERO));
    }

    #[test]
    fn a_late_answer_never_shortens_it() {
        let (clock, _now) = manual();
        let lease = Lease::new(
            clock,
            Some(Duration::from_secs(5)),
            InstanceId::from_bits(1),
        );
        lease.renewed(Duration::from_secs(10));
        lease.renewed(Duration::from_secs(2));
        assert_eq!(lease.remaining(), Some(Duration::from_secs(15)));
    }

    #[test]
    fn a_rejoin_ends_the_generation_before() {
        let (clock, _now) = manual();
        let lease = Lease::new(
            clock,
            Some(Duration::from_secs(5)),
            InstanceId::from_bits(1),
        );
        lease.renewed(Duration::ZERO);
        let before = lease.generation();
        assert!(lease.holds(before));
        let old = lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
        assert_eq!(old.instance, InstanceId::from_bits(1));
        assert!(!lease.holds(before), "even though the new lease is valid");
        assert!(lease.holds(lease.generation()));
    }

    #[test]
    fn an_unshared_store_needs_none() {
        let (clock, now) = manual();
        let lease = Lease::new(clock, None, InstanceId::from_bits(1));
        assert!(!lease.valid(), "not joined yet");
        lease.renewed(Duration::ZERO);
        now.store(u64::MAX / 2_000_000, Ordering::SeqCst);
        assert!(lease.valid());
        assert_eq!(lease.remaining(), None);
    }

    #[test]
    fn a_rejoin_amid_a_look_does_not_lend_the_new_lease_to_the_old_generation() {
        let hook: Arc<Mutex<Option<Arc<Lease>>>> = Arc::default();
        let taken = Arc::clone(&hook);
        let clock = Clock::from_fn(move || {
            let lease = taken.lock().expect("not poisoned").take();
            if let Some(lease) = lease {
                lease.rejoined(InstanceId::from_bits(2), Duration::from_mins(1));
            }
            Duration::from_mins(1)
        });
        let term = Some(Duration::from_secs(5));
        let lease = Arc::new(Lease::new(clock, term, InstanceId::from_bits(1)));
        lease.renewed(Duration::ZERO);
        assert!(!lease.holds(0), "lapsed");
        *hook.lock().expect("not poisoned") = Some(Arc::clone(&lease));
        assert!(!lease.holds(0), "rejoined while it was looked at");
        assert!(lease.holds(1));
    }

    #[test]
    fn what_begins_after_a_revival_is_not_cut() {
        let (clock, _now) = manual();
        let term = Some(Duration::from_secs(5));
        let lease = Lease::new(clock, term, InstanceId::from_bits(1));
        lease.renewed(Duration::ZERO);
        let before = lease.identity().cutoff;
        before.cancel();
        lease.renewed(Duration::from_mins(1));
        assert!(before.is_cancelled());
        assert!(!lease.identity().cutoff.is_cancelled());
        assert_eq!(lease.identity().generation, 0, "it is the same id");
    }

    #[test]
    fn no_renewal_revives_a_run_that_is_over() {
        let (clock, _now) = manual();
        for term in [None, Some(Duration::from_secs(5))] {
            let lease = Lease::new(clock.clone(), term, InstanceId::from_bits(1));
            lease.renewed(Duration::ZERO);
            assert!(lease.valid());
            lease.end();
            lease.renewed(Duration::from_secs(1));
            assert!(!lease.valid());
        }
    }
}
