//! The failure detector: which of the other instances have stopped renewing their leases, and which
//! dead ones' work has settled.
//!
//! It only evaluates rows; the caller reads them and passes the time in. Each read has two moments:
//! before it was sent, and after it was answered. The one that errs on the safe side is used. A
//! counter certainly had its value *after* the first answer, and certainly still had it *before*
//! the second read was sent.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::locked::locked;
use crate::store::reckoning::Reckoning;
use crate::store::{InstanceId, InstanceRow};

/// The observations of one other instance.
#[derive(Debug)]
struct Seen {
    renewals: i64,
    /// Since when the counter is known not to have moved. `None` after a failed read.
    still_since: Option<Duration>,
    /// When this instance learned that the other is dead. Kept while the store says so.
    dead_since: Option<Duration>,
    /// How long to wait for its work from then.
    settling: Duration,
    /// Only epochs know it: no row says that it lives, or that it has settled.
    unknown: bool,
}

impl Seen {
    fn settles_in(&self, now: Duration) -> Option<Duration> {
        Some((self.dead_since? + self.settling).saturating_sub(now))
    }
}

/// The other instances, as far as this one has seen them.
#[derive(Debug)]
pub struct FailureDetector {
    reckoning: Reckoning,
    /// Short sections, never across an await.
    table: Mutex<WatchedInstances>,
}

#[derive(Debug, Default)]
struct WatchedInstances {
    instances: HashMap<InstanceId, Seen>,
    /// The connection of the last read.
    connection: u64,
    /// Owners of epochs that are none of these instances, as of the last read and since.
    strangers: (HashSet<InstanceId>, HashSet<InstanceId>),
    /// When these were not on record as living or settling any more: they have settled, and epochs
    /// in memory may still name them.
    vanished: HashMap<InstanceId, Duration>,
}

/// How long memory may name an instance that has settled.
const NAMED: Duration = Duration::from_secs(10);

/// How the instances were read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Names the connection. Another connection may lead to another server: after a failover, to
    /// one whose counters are behind.
    pub connection: u64,
    pub sent: Duration,
    pub answered: Duration,
}

/// The consequences of a read of the instances.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Counters that stood still for a whole lease: to be declared dead by compare-and-set.
    pub silent: Vec<(InstanceId, i64)>,
    /// Dead, and all of its work has settled: to be recorded.
    pub settled: Vec<InstanceId>,
    /// An instance was newly found dead. Requests that wait for it can now learn for how long.
    pub changed: bool,
}

/// One instance of the namespace, as this one sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceView {
    pub id: String,
    pub state: InstanceState,
    /// How long its lease has not been renewed, as far as this instance has watched.
    pub silent_seconds: Option<f64>,
    /// Of a dead one: how long newer tokens wait for what it may have in flight.
    pub settles_in_seconds: Option<f64>,
}

/// Whether an instance may forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// The one that answers.
    This,
    Alive,
    Dead,
}

impl FailureDetector {
    #[must_use]
    pub fn new(reckoning: Reckoning) -> Self {
        Self {
            reckoning,
            table: Mutex::default(),
        }
    }

    /// Evaluates one successful read. Ignores `me`.
    pub fn observe(&self, me: InstanceId, rows: &[InstanceRow], read: Read) -> Verdict {
        let mut table = locked(&self.table);
        if std::mem::replace(&mut table.connection, read.connection) != read.connection {
            table.interrupt();
        }
        let WatchedInstances {
            instances: seen,
            strangers,
            vanished,
            ..
        } = &mut *table;
        vanished.retain(|_, at| read.sent.saturating_sub(*at) < NAMED);
        seen.retain(|id, seen| {
            let stays = seen.unknown || rows.iter().any(|row| row.id == *id);
            if !stays {
                vanished.insert(*id, read.answered);
            }
            stays
        });
        // Owners of epochs that were met before this read was sent, or earlier, and have no row.
        let mut unknown = std::mem::replace(&mut strangers.0, std::mem::take(&mut strangers.1));
        let before = seen.iter().filter(|(_, seen)| seen.unknown);
        unknown.extend(before.map(|(id, _)| *id));
        unknown.retain(|id| rows.iter().all(|row| row.id != *id));
        let unknown: Vec<_> = unknown.into_iter().map(InstanceRow::unknown).collect();
        let known = rows.iter().map(|row| (row, false));
        let all = known.chain(unknown.iter().map(|row| (row, true)));
        let mut verdict = Verdict::default();
        for (row, unknown) in all.filter(|(row, _)| row.id != me) {
            let entry = seen.entry(row.id).or_insert(Seen {
                renewals: row.terms.renewals,
                still_since: None,
                dead_since: None,
                settling: Duration::ZERO,
                unknown,
            });
            entry.unknown = unknown;
            entry.settling = self.reckoning.after_death_of(row);
            if row.dead {
                if std::mem::replace(&mut entry.renewals, row.terms.renewals) != row.terms.renewals
                {
                    // It has lived since: a failover has lost one death, and this is the next one.
                    entry.dead_since = None;
                }
                verdict.changed |= entry.dead_since.is_none();
                let since = *entry.dead_since.get_or_insert(read.answered);
                if read.sent.saturating_sub(since) >= entry.settling {
                    verdict.settled.push(row.id);
                }
                continue;
            }
            // A failover has lost the declaration, so this death has not happened: the next one
            // settles again.
            entry.dead_since = None;
            if entry.renewals != row.terms.renewals || entry.still_since.is_none() {
                entry.renewals = row.terms.renewals;
                entry.still_since = Some(read.answered);
            } else if let Some(since) = entry.still_since
                && read.sent.saturating_sub(since) >= self.reckoning.silence(row.terms.lease)
            {
                verdict.silent.push((row.id, row.terms.renewals));
            }
        }
        verdict
    }

    /// The compare-and-set has declared this instance dead.
    pub fn declared(&self, id: InstanceId, answered: Duration) {
        if let Some(entry) = locked(&self.table).instances.get_mut(&id) {
            entry.dead_since.get_or_insert(answered);
        }
    }

    /// An epoch of this instance is in the way here. If no row knows the instance by the read after
    /// the next, it counts as dead.
    pub fn meet(&self, id: InstanceId) {
        let mut table = locked(&self.table);
        if !table.instances.contains_key(&id) && !table.vanished.contains_key(&id) {
            table.strangers.1.insert(id);
        }
    }

    /// It is on record that this instance has settled, or that it lives after all.
    pub fn forget(&self, id: InstanceId, now: Duration) {
        let mut table = locked(&self.table);
        table.instances.remove(&id);
        table.vanished.insert(id, now);
    }

    /// A read has failed, so it is unknown whether the counters moved meanwhile.
    pub fn interrupted(&self) {
        locked(&self.table).interrupt();
    }

    /// The time until the work of a dead instance has settled. `None` if the instance lives, or was
    /// not seen yet.
    pub fn settles_in(&self, id: InstanceId, now: Duration) -> Option<Duration> {
        locked(&self.table).instances.get(&id)?.settles_in(now)
    }

    /// The other instances as they were last seen.
    pub fn others(&self, now: Duration) -> Vec<InstanceView> {
        let table = locked(&self.table);
        let others = table.instances.iter().map(|(id, seen)| InstanceView {
            id: id.to_string(),
            state: match seen.dead_since {
                Some(_) => InstanceState::Dead,
                None => InstanceState::Alive,
            },
            silent_seconds: seen
                .still_since
                .map(|since| now.saturating_sub(since).as_secs_f64()),
            settles_in_seconds: seen.settles_in(now).map(|left| left.as_secs_f64()),
        });
        others.collect()
    }

    /// Whether the instance was declared dead. One that only epochs know may still have a lease.
    pub fn is_dead(&self, id: InstanceId) -> bool {
        let table = locked(&self.table);
        let entry = table.instances.get(&id);
        entry.is_some_and(|entry| entry.dead_since.is_some() && !entry.unknown)
    }
}

impl WatchedInstances {
    /// Starts every count again with the next read.
    fn interrupt(&mut self) {
        for entry in self.instances.values_mut() {
            entry.still_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Terms;

    const SEC: Duration = Duration::from_secs(1);

    fn row(id: u64, renewals: i64, dead: bool) -> InstanceRow {
        InstanceRow {
            id: InstanceId::from_bits(id),
            terms: Terms {
                renewals,
                lease: 5 * SEC,
                settle: 30 * SEC,
                undelivered: 10 * SEC,
                routes: String::new(),
            },
            dead,
            ended: false,
        }
    }

    /// A lease of 5 s: a counter must stand still for 6 s of the watcher's clock.
    fn detector() -> FailureDetector {
        FailureDetector::new(Reckoning::shared(5 * SEC, SEC, 10 * SEC))
    }

    /// The rows are read over this connection, and answered at once.
    fn over(
        connection: u64,
        detector: &FailureDetector,
        rows: &[InstanceRow],
        at: Duration,
    ) -> Verdict {
        let read = Read {
            connection,
            sent: at,
            answered: at,
        };
        detector.observe(InstanceId::from_bits(1), rows, read)
    }

    fn observe(detector: &FailureDetector, rows: &[InstanceRow], at: Duration) -> Verdict {
        over(1, detector, rows, at)
    }

    #[test]
    fn a_counter_must_stand_still_for_the_whole_lease() {
        let detector = detector();
        let first = Read {
            connection: 1,
            sent: Duration::ZERO,
            answered: SEC,
        };
        let me = InstanceId::from_bits(1);
        assert_eq!(
            detector.observe(me, &[row(2, 7, false)], first),
            Verdict::default()
        );
        assert_eq!(
            observe(&detector, &[row(2, 7, false)], 6 * SEC),
            Verdict::default(),
            "counted from the first answer, not from its sending"
        );
        let verdict = observe(&detector, &[row(2, 7, false)], 7 * SEC);
        assert_eq!(verdict.silent, vec![(InstanceId::from_bits(2), 7)]);
        let verdict = observe(&detector, &[row(2, 8, false)], 8 * SEC);
        assert_eq!(verdict, Verdict::default(), "it moved");
    }

    #[test]
    fn a_failed_read_restarts_the_count_but_not_the_settling() {
        let detector = detector();
        let rows = [row(2, 7, false), row(3, 1, true)];
        observe(&detector, &rows, Duration::ZERO);
        detector.interrupted();
        assert_eq!(observe(&detector, &rows, 47 * SEC), Verdict::default());
        let verdict = observe(&detector, &rows, 48 * SEC);
        assert_eq!(
            verdict.settled,
            vec![InstanceId::from_bits(3)],
            "the larger of each term, once"
        );
        assert!(verdict.silent.is_empty());
    }

    /// No read has failed, but it may be another server that answers: one whose counters are
    /// behind.
    #[test]
    fn another_connection_restarts_the_count_but_not_the_settling() {
        let detector = detector();
        let rows = [row(2, 7, false), row(3, 1, true)];
        observe(&detector, &rows, Duration::ZERO);
        let verdict = over(2, &detector, &rows, 48 * SEC);
        assert_eq!(verdict.silent, vec![], "read over another connection");
        assert_eq!(verdict.settled, vec![InstanceId::from_bits(3)]);
        let verdict = over(2, &detector, &rows, 54 * SEC);
        assert_eq!(verdict.silent, vec![(InstanceId::from_bits(2), 7)]);
    }

    #[test]
    fn a_death_that_a_failover_has_lost_does_not_shorten_the_next_one() {
        let two = InstanceId::from_bits(2);
        let detector = detector();
        observe(&detector, &[row(2, 7, false)], Duration::ZERO);
        detector.declared(two, 6 * SEC);
        // Its row comes back alive, and it renews.
        observe(&detector, &[row(2, 8, false)], 40 * SEC);
        assert!(!detector.is_dead(two));
        assert_eq!(detector.settles_in(two, 40 * SEC), None);
        let verdict = observe(&detector, &[row(2, 8, true)], 60 * SEC);
        assert!(verdict.settled.is_empty(), "{verdict:?}");
        assert_eq!(detector.settles_in(two, 60 * SEC), Some(48 * SEC));
        // And where nobody here has seen it alive in between, its counter tells.
        observe(&detector, &[row(2, 9, true)], 70 * SEC);
        assert_eq!(detector.settles_in(two, 70 * SEC), Some(48 * SEC));
    }

    #[test]
    fn an_id_that_only_epochs_know_may_live_for_a_lease_more() {
        let detector = FailureDetector::new(Reckoning::shared(5 * SEC, 10 * SEC, 10 * SEC));
        let two = InstanceId::from_bits(2);
        detector.meet(two);
        observe(&detector, &[], SEC);
        assert!(!detector.is_dead(two), "the read may have been sent before");
        assert!(observe(&detector, &[], 2 * SEC).changed);
        assert_eq!(detector.settles_in(two, 2 * SEC), Some(30 * SEC));
        assert!(!detector.is_dead(two), "it may live");
        assert_eq!(observe(&detector, &[], 31 * SEC), Verdict::default());
        assert_eq!(observe(&detector, &[], 32 * SEC).settled, vec![two]);
        // It records itself again.
        observe(&detector, &[row(2, 9, false)], 33 * SEC);
        assert!(!detector.is_dead(two));
    }

    #[test]
    fn an_instance_that_has_settled_is_no_stranger_while_memory_names_it() {
        let detector = detector();
        let two = InstanceId::from_bits(2);
        observe(&detector, &[row(2, 7, true)], SEC);
        observe(&detector, &[], 2 * SEC);
        for at in 3..6 {
            detector.meet(two);
            observe(&detector, &[], at * SEC);
            assert!(!detector.is_dead(two));
        }
        // Its row is lost, and epochs are not over.
        observe(&detector, &[], 12 * SEC);
        detector.meet(two);
        observe(&detector, &[], 13 * SEC);
        observe(&detector, &[], 14 * SEC);
        assert!(detector.settles_in(two, 14 * SEC).is_some());
    }

    #[test]
    fn says_what_is_left() {
        let detector = FailureDetector::new(Reckoning::shared(5 * SEC, 5 * SEC, 40 * SEC));
        let two = InstanceId::from_bits(2);
        observe(&detector, &[row(2, 7, false)], SEC);
        assert_eq!(detector.settles_in(two, SEC), None);
        detector.declared(two, 2 * SEC);
        assert_eq!(detector.settles_in(two, 3 * SEC), Some(59 * SEC));
        assert!(detector.is_dead(two));
    }
}
