//! The lease: how long this instance may trust that its open epochs still hold others back.
//!
//! With a shared store, the other instances declare an instance dead that cannot renew. Its epochs
//! then hold nothing back, so it must have stopped by itself before that. A lease runs from before
//! the renewal was *sent*. The watcher's count starts after it has *read* the counter, so the
//! owner's lease always ends first. The clock goes on while the machine is suspended
//! (`CLOCK_BOOTTIME`). Every write to an upstream socket checks the lease, not only the start of an
//! exchange: a process that was stopped halfway through a body wakes up in front of the next write.
//!
//! Exchanges that still run when the lease has been lapsed for a while are cut. The membership task
//! does that at the due moment. After a suspension its timer is late, so every check that finds the
//! lease lapsed does it too.
//!
//! With a store of its own, an instance has no others to watch it. There the lease shows that the
//! volume is still this instance's. It runs from before the latest heartbeat was written that is on
//! the disk.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::boot_clock::BootClock;
use crate::locked::locked;
use crate::store::InstanceId;
use crate::worker::PerWorker;

/// The current name of this process in the store, and the rejoin that made it.
#[derive(Clone, Debug)]
pub struct Identity {
    pub instance: InstanceId,
    /// Counts rejoins. Nothing new may use a permit, an epoch or a socket of an earlier
    /// incarnation.
    pub incarnation: u64,
    /// Cancelled when the lease of this incarnation has been lapsed for [`Lease::cutting_after`].
    /// Exchanges that still run are then reset, because no other instance waits for what they would
    /// still deliver.
    pub cutoff: Arc<CancellationToken>,
}

impl Identity {
    /// A copy whose token is cancelled with this one. The waiters of the copy share a lock with
    /// those of the same copy only.
    fn child(&self) -> Self {
        Self {
            cutoff: Arc::new(self.cutoff.child_token()),
            ..self.clone()
        }
    }
}

/// The lease of this process. One per process; shared by the membership task that renews it and
/// everything that must not act without it.
#[derive(Debug)]
pub struct Lease {
    clock: BootClock,
    /// The first id of this process. The others follow it without a gap.
    first: InstanceId,
    term: Duration,
    /// When it ends, in nanoseconds of `clock`. 0: it has not begun.
    ends: AtomicU64,
    /// The run is over: the lease is never valid again.
    over: AtomicBool,
    /// The store has been exchanged for another one: the lease is never valid again.
    revoked: AtomicBool,
    incarnation: AtomicU64,
    /// How long exchanges may run on after the lease has lapsed.
    cutoff: Duration,
    /// The number of the next renewal. Never used twice in this process, whatever became of the
    /// statement.
    renewals: AtomicI64,
    /// Short sections, never across an await.
    state: Mutex<LeaseState>,
    /// Each worker's copy of the identity: what a permit is given under.
    terms: PerWorker<Identity>,
}

#[derive(Debug)]
struct LeaseState {
    identity: Identity,
    /// The last id that was used, perhaps in vain.
    last: InstanceId,
    /// The exchanges of earlier incarnations that are still to be cut, and when.
    earlier: Vec<(Duration, Arc<CancellationToken>)>,
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Lease {
    /// A lease that has not begun. The first [`Self::renewed`] begins it. With a `term` of
    /// [`Duration::MAX`] it never ends by itself.
    #[must_use]
    pub fn new(clock: BootClock, term: Duration, instance: InstanceId) -> Self {
        let identity = Identity {
            instance,
            incarnation: 0,
            cutoff: Arc::default(),
        };
        Self {
            clock,
            first: instance,
            term,
            ends: AtomicU64::new(0),
            over: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            incarnation: AtomicU64::new(0),
            cutoff: Duration::MAX,
            renewals: AtomicI64::new(0),
            terms: PerWorker::new(|| identity.child()),
            state: Mutex::new(LeaseState {
                last: instance,
                identity,
                earlier: Vec::new(),
            }),
        }
    }

    /// Cuts the exchanges that still run when the lease has been lapsed for `cutoff` (see
    /// [`Reckoning::cutoff`]). By default nothing is cut.
    ///
    /// [`Reckoning::cutoff`]: crate::store::reckoning::Reckoning::cutoff
    #[must_use]
    pub fn cutting_after(mut self, cutoff: Duration) -> Self {
        self.cutoff = cutoff;
        self
    }

    pub fn clock(&self) -> &BootClock {
        &self.clock
    }

    /// Whether something new may be forwarded now.
    pub fn valid(&self) -> bool {
        nanos(self.clock.now()) < self.ends.load(Ordering::Acquire)
            && !self.over.load(Ordering::Acquire)
            && !self.revoked.load(Ordering::Acquire)
    }

    /// Whether this instance has ever joined the store.
    pub fn begun(&self) -> bool {
        self.ends.load(Ordering::Acquire) > 0
    }

    /// Ends the run: nothing is written upstream any more, even if renewals are still answered.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Never trusts the store again in this run: nothing is written upstream any more, even if
    /// renewals are still answered. Running exchanges are cut at once, because the process that now
    /// serves the path does not wait for them.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        self.ends
            .fetch_min(nanos(self.clock.now()), Ordering::AcqRel);
        self.cut();
    }

    /// Cuts all running exchanges, those of earlier incarnations too.
    pub fn cut(&self) {
        let mut state = self.state();
        state.identity.cutoff.cancel();
        for (_, cutoff) in state.earlier.drain(..) {
            cutoff.cancel();
        }
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether a socket, an epoch or a permit of `incarnation` may still be used for a write.
    pub fn holds(&self, incarnation: u64) -> bool {
        // In this order. A rejoin writes the incarnation before the end, so a reader that has found
        // the new end finds the new incarnation too. In the other order, a rejoin in between would
        // lend the new lease to the old incarnation.
        let holds = self.valid() && self.incarnation.load(Ordering::Acquire) == incarnation;
        if !holds {
            self.cut_overdue();
        }
        holds
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    pub fn identity(&self) -> Identity {
        self.state().identity.clone()
    }

    /// The terms of a permit that is given now. They are good only if [`Self::holds`] is true of
    /// their incarnation afterwards.
    pub fn terms(&self) -> Identity {
        self.terms.own().clone()
    }

    /// The number of a renewal (or a join) that is about to be sent. A watcher declares an instance
    /// dead if the counter still has the number that the watcher saw. So no number may be used
    /// twice, even after the store has lost this instance's row or the answer to a statement was
    /// lost.
    pub fn next_renewal(&self) -> i64 {
        self.renewals.fetch_add(1, Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        locked(&self.state)
    }

    /// The rest of the lease. `None` if the run is over: nothing is to be renewed.
    pub fn remaining(&self) -> Option<Duration> {
        (!self.is_over()).then(|| self.ends().saturating_sub(self.clock.now()))
    }

    fn ends(&self) -> Duration {
        Duration::from_nanos(self.ends.load(Ordering::Acquire))
    }

    /// How long it has been over; `None` while it runs.
    pub fn lapsed_for(&self) -> Option<Duration> {
        (!self.valid()).then(|| self.clock.now().saturating_sub(self.ends()))
    }

    /// When the exchanges of a lease that is over will be cut; `None` while it runs.
    pub fn cuts_in(&self) -> Option<Duration> {
        Some(self.cutoff.saturating_sub(self.lapsed_for()?))
    }

    /// Cuts the exchanges that have run for too long under a lapsed lease. Returns the time until
    /// there may be more of them.
    pub fn cut_overdue(&self) -> Duration {
        let mut state = self.state();
        let now = self.clock.now();
        let mut next = Duration::MAX;
        state.earlier.retain(|(due, cutoff)| {
            if *due <= now {
                cutoff.cancel();
            } else {
                next = next.min(due.saturating_sub(now));
            }
            *due > now
        });
        next.min(self.cut_current(&state, now))
    }

    /// As [`Self::cut_overdue`], for this incarnation only. The end is read under the lock: a
    /// renewal that comes meanwhile begins something new, which must not be cut.
    fn cut_current(&self, state: &LeaseState, now: Duration) -> Duration {
        let ends = self.ends();
        let due = ends.saturating_add(self.cutoff);
        if state.identity.cutoff.is_cancelled() || ends.is_zero() {
            return Duration::MAX;
        }
        if due <= now {
            state.identity.cutoff.cancel();
            return Duration::MAX;
        }
        due.saturating_sub(now)
    }

    /// A renewal (or the join) that was sent at `sent` has succeeded.
    pub fn renewed(&self, sent: Duration) {
        if self.revoked.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state();
        self.cut_current(&state, self.clock.now());
        // The same id may revive after its exchanges were cut: new ones are not to be cut with
        // them.
        if state.identity.cutoff.is_cancelled() {
            state.identity.cutoff = Arc::default();
            self.terms.change(|terms| *terms = state.identity.child());
        }
        self.extend(sent);
    }

    fn extend(&self, sent: Duration) {
        self.ends
            .fetch_max(nanos(sent.saturating_add(self.term)), Ordering::AcqRel);
    }

    /// An id that this process has not used. It is unknown whether a join that failed was recorded,
    /// and an id is never used twice.
    pub fn next_id(&self) -> InstanceId {
        let mut state = self.state();
        state.last = state.last.next();
        state.last
    }

    /// Whether this process has used the id.
    pub fn has_used(&self, id: InstanceId) -> bool {
        (self.first..=self.state().last).contains(&id)
    }

    /// Takes another id before the lease has begun.
    pub fn rename(&self) {
        let id = self.next_id();
        self.state().identity.instance = id;
    }

    /// Continues under a new id: nothing of the old incarnation may be written any more. Its
    /// running exchanges are cut when that is due. Returns the identity that has ended.
    pub fn rejoined(&self, instance: InstanceId, sent: Duration) -> Identity {
        let mut state = self.state();
        let now = self.clock.now();
        let ended = self.ends().min(now);
        let incarnation = state.identity.incarnation + 1;
        let new = Identity {
            instance,
            incarnation,
            cutoff: Arc::default(),
        };
        let old = std::mem::replace(&mut state.identity, new);
        let due = ended.saturating_add(self.cutoff);
        state.earlier.push((due, Arc::clone(&old.cutoff)));
        // Terms of one incarnation do not hold in another, so a request that comes in between gets
        // no permit.
        self.terms.change(|terms| *terms = state.identity.child());
        // The incarnation first: a look that sees the new end must see the new incarnation too.
        self.incarnation.store(incarnation, Ordering::Release);
        self.extend(sent);
        drop(state);
        self.cut_overdue();
        old
    }
}

#[cfg(test)]
mod tests;
