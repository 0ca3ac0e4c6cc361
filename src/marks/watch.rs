//! Watching the other instances: who has stopped renewing, and whose last work has settled.
//!
//! Pure bookkeeping over rows that somebody else reads; time is passed in. Two moments belong to
//! each read, the one before it was sent and the one after it was answered, and each is used where it
//! errs on the safe side: a counter is known to have stood at its value *after* the first answer, and
//! still to stand there *before* the second read was sent.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::store::{InstanceId, InstanceRow};

/// What this instance has seen of one other.
#[derive(Debug)]
struct Seen {
    renewals: i64,
    /// Since when the counter is known to have stood still; `None` after a failed read.
    still_since: Option<Duration>,
    /// When this instance learned that the other is dead. Not forgotten while the store says so.
    dead_since: Option<Duration>,
    lease: Duration,
    settle: Duration,
    /// Only its epochs are on record: a failover may have lost the rest of an instance that lives, and may go on for
    /// a lease.
    orphan: bool,
}

/// The other instances, as far as this one has seen them.
#[derive(Debug)]
pub struct Watch {
    /// This instance's own `settle`; the larger of both counts.
    settle: Duration,
    /// This instance's own lease; zero where the store is not shared.
    lease: Duration,
    /// Short sections, never across an await.
    seen: Mutex<HashMap<InstanceId, Seen>>,
}

/// What a read of the instances asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Counters that stood still for a whole lease: to be declared dead by compare-and-set.
    pub silent: Vec<(InstanceId, i64)>,
    /// Dead, and settled: to be buried.
    pub settled: Vec<InstanceId>,
    /// An instance was found dead that was not known to be: who waits for it learns for how long.
    pub news: bool,
}

impl Watch {
    #[must_use]
    pub fn new(settle: Duration, lease: Duration) -> Self {
        Self {
            settle,
            lease,
            seen: Mutex::new(HashMap::new()),
        }
    }

    /// Takes in one successful read. `me` is left out.
    pub fn observe(
        &self,
        me: &InstanceId,
        rows: &[InstanceRow],
        sent: Duration,
        answered: Duration,
    ) -> Verdict {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|id, _| rows.iter().any(|row| row.id == *id));
        let mut verdict = Verdict::default();
        for row in rows.iter().filter(|row| row.id != *me) {
            let entry = seen.entry(row.id.clone()).or_insert(Seen {
                renewals: row.renewals,
                still_since: None,
                dead_since: None,
                lease: row.lease,
                settle: row.settle,
                orphan: false,
            });
            entry.lease = row.lease;
            entry.settle = row.settle;
            entry.orphan = row.dead && row.lease.is_zero();
            if row.dead {
                verdict.news |= entry.dead_since.is_none();
                let since = *entry.dead_since.get_or_insert(answered);
                if sent.saturating_sub(since) >= self.settling(entry) {
                    verdict.settled.push(row.id.clone());
                }
                continue;
            }
            // Where a failover has lost the declaration, this death has not happened: the next one settles anew.
            entry.dead_since = None;
            if entry.renewals != row.renewals || entry.still_since.is_none() {
                entry.renewals = row.renewals;
                entry.still_since = Some(answered);
            } else if let Some(since) = entry.still_since
                && sent.saturating_sub(since) >= row.lease
            {
                verdict.silent.push((row.id.clone(), row.renewals));
            }
        }
        verdict
    }

    /// How long the work of a dead instance is waited for, from when it was learned to be dead.
    fn settling(&self, entry: &Seen) -> Duration {
        let lease = if entry.orphan {
            self.lease
        } else {
            Duration::ZERO
        };
        lease + self.settle.max(entry.settle)
    }

    /// The compare-and-set has said that this instance is dead now.
    pub fn declared(&self, id: &InstanceId, answered: Duration) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = seen.get_mut(id) {
            entry.dead_since.get_or_insert(answered);
        }
    }

    /// A read has failed: nothing is known of what the counters did meanwhile.
    pub fn interrupted(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in seen.values_mut() {
            entry.still_since = None;
        }
    }

    /// How long the work of a dead instance has still to settle; `None` for one that lives, or that
    /// nobody here has seen yet.
    #[must_use]
    pub fn settles_in(&self, id: &InstanceId, now: Duration) -> Option<Duration> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = seen.get(id)?;
        let end = entry.dead_since? + self.settling(entry);
        Some(end.saturating_sub(now))
    }

    /// Whether the instance is known to be dead.
    #[must_use]
    pub fn is_dead(&self, id: &InstanceId) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(id).is_some_and(|entry| entry.dead_since.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn row(id: u128, renewals: i64, dead: bool) -> InstanceRow {
        InstanceRow {
            id: InstanceId::from_bits(id),
            renewals,
            lease: 5 * SEC,
            settle: 30 * SEC,
            undelivered: Duration::ZERO,
            routes: String::new(),
            dead,
        }
    }

    #[test]
    fn a_counter_must_stand_still_for_the_whole_lease() {
        let me = InstanceId::from_bits(1);
        let watch = Watch::new(10 * SEC, 5 * SEC);
        let at = |s: u32| s * SEC;
        assert_eq!(
            watch.observe(&me, &[row(2, 7, false)], at(0), at(1)),
            Verdict::default()
        );
        assert_eq!(
            watch.observe(&me, &[row(2, 7, false)], at(5), at(5)),
            Verdict::default(),
            "counted from the first answer, not from its sending"
        );
        let verdict = watch.observe(&me, &[row(2, 7, false)], at(6), at(6));
        assert_eq!(verdict.silent, vec![(InstanceId::from_bits(2), 7)]);
        let verdict = watch.observe(&me, &[row(2, 8, false)], at(7), at(7));
        assert_eq!(verdict, Verdict::default(), "it moved");
    }

    #[test]
    fn a_failed_read_restarts_the_count_but_not_the_settling() {
        let me = InstanceId::from_bits(1);
        let watch = Watch::new(10 * SEC, 5 * SEC);
        let at = |s: u32| s * SEC;
        watch.observe(&me, &[row(2, 7, false), row(3, 1, true)], at(0), at(0));
        watch.interrupted();
        let verdict = watch.observe(&me, &[row(2, 7, false), row(3, 1, true)], at(29), at(29));
        assert_eq!(verdict, Verdict::default());
        let verdict = watch.observe(&me, &[row(2, 7, false), row(3, 1, true)], at(30), at(30));
        assert_eq!(
            verdict.settled,
            vec![InstanceId::from_bits(3)],
            "the larger settle, once"
        );
        assert!(verdict.silent.is_empty());
    }

    #[test]
    fn a_death_that_a_failover_has_lost_does_not_shorten_the_next_one() {
        let me = InstanceId::from_bits(1);
        let two = InstanceId::from_bits(2);
        let watch = Watch::new(10 * SEC, 5 * SEC);
        let at = |s: u32| s * SEC;
        watch.observe(&me, &[row(2, 7, false)], at(0), at(0));
        watch.declared(&two, at(6));
        // Its row comes back alive, and it renews.
        watch.observe(&me, &[row(2, 8, false)], at(40), at(40));
        assert!(!watch.is_dead(&two));
        assert_eq!(watch.settles_in(&two, at(40)), None);
        let verdict = watch.observe(&me, &[row(2, 8, true)], at(50), at(50));
        assert!(verdict.settled.is_empty(), "{verdict:?}");
        assert_eq!(watch.settles_in(&two, at(50)), Some(at(30)));
    }

    #[test]
    fn an_id_that_only_epochs_know_may_live_for_a_lease_more() {
        let me = InstanceId::from_bits(1);
        let watch = Watch::new(10 * SEC, 5 * SEC);
        let orphan = InstanceRow {
            lease: Duration::ZERO,
            settle: Duration::ZERO,
            ..row(2, 0, true)
        };
        let verdict = |at| watch.observe(&me, std::slice::from_ref(&orphan), at, at);
        verdict(SEC);
        assert!(verdict(15 * SEC).settled.is_empty());
        assert_eq!(verdict(16 * SEC).settled, vec![InstanceId::from_bits(2)]);
    }

    #[test]
    fn says_what_is_left() {
        let me = InstanceId::from_bits(1);
        let watch = Watch::new(40 * SEC, 5 * SEC);
        let two = InstanceId::from_bits(2);
        watch.observe(&me, &[row(2, 7, false)], SEC, SEC);
        assert_eq!(watch.settles_in(&two, SEC), None);
        watch.declared(&two, 2 * SEC);
        assert_eq!(watch.settles_in(&two, 3 * SEC), Some(39 * SEC));
        assert!(watch.is_dead(&two));
    }
}
