//! [`Reckoning`]: how long an instance waits for the last requests of another one. The one place
//! where the terms of dead instances are added up.
//!
//! Three spans pass one after the other, each counted from the end of the one before:
//!
//! 1. the *lease*: until it lapses, its owner writes;
//! 2. *undelivered*: after the last write, the kernel of a process that is stopped or cut off may
//!    go on delivering the bytes it holds, until its user timeout (`TCP_USER_TIMEOUT`) drops them;
//! 3. *settle*: after the last byte has arrived, the upstream may work on it.
//!
//! Of two instances' terms the larger counts: each knows only its own configuration.
//!
//! An instance that has *ended* for certain is simpler: one in whose place on its machine this
//! process is now (`InstanceRow::ended`). It writes no more, and the kernel has closed its sockets.
//! Fenced sockets are closed with a linger of 0, which drops the bytes they held. Only *settle* is
//! left, counted by the clock of the machine that the dead instance ran on. No margin is added, and
//! none where an instance settles its own unknown outcomes: only one of this program's clocks is
//! involved. `barrier.settle` bounds the upstream's work, so the operator has measured it and left
//! room.
//!
//! So it is with a store that is not shared: its file has one process at a time. But its volume may
//! be forced onto another machine while the old one still runs. So an instance that has recorded
//! another boot is waited for as over a shared store: its lease, the bytes that it may deliver after
//! that, and *settle*, by the clocks of two machines.

use std::time::Duration;

use crate::store::InstanceRow;

/// How much longer a watcher counts than the owner does, as a fraction.
///
/// `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` are slewed along with the time of day, and so are the
/// jiffies of a kernel's timeouts, near enough. chrony slews by up to 83,333 ppm (`maxslewrate`).
/// While the owner counts 1 s on a clock that is slewed back, 1 / 0.9167 = 1.091 s pass. A clock
/// that is slewed forward counts 1.0833 × 1.091 = 1.182 s of that. 6/5 leaves 1.5 % for the clocks
/// themselves, which are off by some hundred ppm.
const RATES: (u32, u32) = (6, 5);

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Reckoning {
    lease: Duration,
    undelivered: Duration,
    settle: Duration,
    shared: bool,
}

impl Reckoning {
    /// For a store that instances on other machines share; with this instance's own terms.
    #[must_use]
    pub fn shared(lease: Duration, undelivered: Duration, settle: Duration) -> Self {
        Self {
            lease,
            undelivered,
            settle,
            shared: true,
        }
    }

    /// For a store that only one process uses.
    #[must_use]
    pub fn alone(settle: Duration) -> Self {
        Self {
            lease: Duration::ZERO,
            undelivered: Duration::ZERO,
            settle,
            shared: false,
        }
    }

    /// How long an instance's own exchanges may run on after its lease has lapsed; then it resets
    /// them. Not longer than `undelivered`: each part that the upstream takes restarts the kernel's
    /// user timeout, and the upstream would work on late bytes for longer than the watchers wait.
    /// Not longer than `settle` either: after that, no request waits for an outcome.
    pub fn cutoff(&self) -> Duration {
        if self.shared {
            self.undelivered.min(self.settle)
        } else {
            self.settle
        }
    }

    /// How long a counter must stand still before its owner's lease has surely lapsed.
    pub fn silence(&self, lease: Duration) -> Duration {
        self.stretched(lease)
    }

    /// How long the work of this instance is waited for, from the moment its death was learned.
    pub fn after_death_of(&self, row: &InstanceRow) -> Duration {
        if row.is_unknown() {
            // Only epochs know the id. A failover may have lost the row of an instance that
            // lives, and that goes on for a lease.
            self.after_loss()
        } else if row.ended {
            self.settle.max(row.terms.settle)
        } else if self.shared {
            self.after_death(row.terms.undelivered, row.terms.settle)
        } else {
            self.after_a_move(row)
        }
    }

    /// For an instance that had the file on another machine, or before a boot, and may still run
    /// there. It writes until its lease lapses, and resets its exchanges after its
    /// [`Self::cutoff`].
    fn after_a_move(&self, row: &InstanceRow) -> Duration {
        let span = row.terms.lease
            + row.terms.undelivered.max(row.terms.settle)
            + self.settle.max(row.terms.settle);
        span * RATES.0 / RATES.1
    }

    /// `undelivered` and `settle` are as the dead instance has recorded them.
    pub fn after_death(&self, undelivered: Duration, settle: Duration) -> Duration {
        let undelivered = self.undelivered.max(undelivered);
        self.stretched(undelivered + self.settle.max(settle))
    }

    /// How long a resource is refused after its marks were lost. Another instance whose epochs were
    /// lost as well may not know it, and write until its lease lapses.
    pub fn after_loss(&self) -> Duration {
        self.stretched(self.lease + self.undelivered + self.settle)
    }

    /// How long to wait for a file that has lost commits, with the terms of [`Self::shared`].
    /// Epochs were among them, of a run that may have been on another machine: as after a move.
    pub fn after_lost_commits(&self) -> Duration {
        self.stretched(self.lease + self.undelivered.max(self.settle) + self.settle)
    }

    fn stretched(&self, span: Duration) -> Duration {
        if self.shared {
            span * RATES.0 / RATES.1
        } else {
            span
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{InstanceId, Terms};

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn the_larger_of_each_term_counts_one_after_the_other() {
        let own = Reckoning::shared(5 * SEC, 10 * SEC, 30 * SEC);
        assert_eq!(own.cutoff(), 10 * SEC);
        assert_eq!(own.silence(10 * SEC), 12 * SEC);
        assert_eq!(own.after_death(5 * SEC, 5 * SEC), 48 * SEC);
        assert_eq!(own.after_death(20 * SEC, 5 * SEC), 60 * SEC);
        assert_eq!(own.after_death(5 * SEC, 40 * SEC), 60 * SEC);
        assert_eq!(own.after_loss(), 54 * SEC);
        assert_eq!(own.after_lost_commits(), 78 * SEC);
    }

    #[test]
    fn of_an_instance_that_has_ended_only_settle_is_left() {
        let mut row = InstanceRow {
            id: InstanceId::from_bits(1),
            terms: Terms {
                renewals: 7,
                lease: 5 * SEC,
                settle: 20 * SEC,
                undelivered: 10 * SEC,
                routes: String::new(),
            },
            dead: true,
            ended: true,
        };
        let alone = Reckoning::alone(30 * SEC);
        let shared = Reckoning::shared(SEC, SEC, SEC);
        assert_eq!(alone.after_death_of(&row), 30 * SEC);
        assert_eq!(shared.after_death_of(&row), 20 * SEC);
        // It may still run.
        row.ended = false;
        assert_eq!(alone.after_death_of(&row), 66 * SEC);
        assert_eq!(shared.after_death_of(&row), 36 * SEC);
        row.terms.undelivered = 40 * SEC;
        assert_eq!(alone.after_death_of(&row), 90 * SEC);
        assert_eq!(shared.after_death_of(&row), 72 * SEC);
        row.terms.lease = Duration::ZERO;
        assert_eq!(alone.after_death_of(&row), alone.after_loss());
        assert_eq!(alone.after_loss(), 30 * SEC);
    }

    /// The owner's clock is slewed back and the watcher's forward, each as far as chrony goes by
    /// itself.
    #[test]
    fn clocks_that_are_slewed_apart_shorten_no_wait() {
        let (slow, fast) = (1.0 - 0.083_333_4, 1.0 + 0.083_333_4);
        for span in [SEC, 5 * SEC, 10 * SEC] {
            let own = Reckoning::shared(span, span, span);
            let passed = own.silence(span).as_secs_f64() / fast;
            assert!(passed >= span.as_secs_f64() / slow, "{passed}");
            let passed = own.after_death(span, span).as_secs_f64() / fast;
            assert!(passed >= 2.0 * span.as_secs_f64() / slow, "{passed}");
        }
    }
}
