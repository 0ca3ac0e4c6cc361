//! The terms of a lease, renewals, rejoins and cuts.

use super::*;
use std::sync::atomic::AtomicU64;

const TERM: Duration = Duration::from_secs(5);

fn manual() -> (BootClock, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&now);
    let clock = BootClock::from_fn(move || Duration::from_millis(read.load(Ordering::SeqCst)));
    (clock, now)
}

#[test]
fn runs_from_before_the_renewal_was_sent() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
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
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    lease.renewed(Duration::from_secs(10));
    lease.renewed(Duration::from_secs(2));
    assert_eq!(lease.remaining(), Some(Duration::from_secs(15)));
}

#[test]
fn a_rejoin_ends_the_generation_before() {
    let (clock, _now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    let before = lease.incarnation();
    assert!(lease.holds(before));
    let old = lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    assert_eq!(old.instance, InstanceId::from_bits(1));
    assert!(!lease.holds(before), "even though the new lease is valid");
    assert!(lease.holds(lease.incarnation()));
}

#[test]
fn a_lease_of_the_longest_term_never_ends_by_itself() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, Duration::MAX, InstanceId::from_bits(1));
    assert!(!lease.valid(), "not joined yet");
    lease.renewed(Duration::from_secs(1));
    now.store(u64::MAX / 2_000_000, Ordering::SeqCst);
    assert!(lease.valid());
}

#[test]
fn a_rejoin_amid_a_look_does_not_lend_the_new_lease_to_the_old_generation() {
    let hook: Arc<Mutex<Option<Arc<Lease>>>> = Arc::default();
    let taken = Arc::clone(&hook);
    let clock = BootClock::from_fn(move || {
        let lease = taken.lock().expect("not poisoned").take();
        if let Some(lease) = lease {
            lease.rejoined(InstanceId::from_bits(2), Duration::from_mins(1));
        }
        Duration::from_mins(1)
    });
    let lease = Arc::new(Lease::new(clock, TERM, InstanceId::from_bits(1)));
    lease.renewed(Duration::ZERO);
    assert!(!lease.holds(0), "lapsed");
    *hook.lock().expect("not poisoned") = Some(Arc::clone(&lease));
    assert!(!lease.holds(0), "rejoined while it was looked at");
    assert!(lease.holds(1));
}

/// The first look at the lease after a suspension cuts, even that of a socket in front of its
/// next write.
#[test]
fn the_first_look_that_finds_it_lapsed_for_too_long_cuts() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    let lease = lease.cutting_after(Duration::from_secs(30));
    lease.renewed(Duration::ZERO);
    let cutoff = lease.identity().cutoff;
    for (at, left) in [(0, 35_000), (5000, 30_000), (34_999, 1)] {
        now.store(at, Ordering::SeqCst);
        let _ = lease.holds(0);
        assert_eq!(lease.cut_overdue(), Duration::from_millis(left));
        assert!(!cutoff.is_cancelled(), "{at}");
    }
    now.store(35_000, Ordering::SeqCst);
    assert!(!lease.holds(0));
    assert!(cutoff.is_cancelled());
}

/// The renewal is what runs first after the suspension, and nobody has missed this instance.
#[test]
fn a_renewal_that_comes_too_late_cuts_before_it_revives() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    let lease = lease.cutting_after(Duration::from_secs(30));
    lease.renewed(Duration::ZERO);
    let before = lease.identity().cutoff;
    now.store(34_999, Ordering::SeqCst);
    lease.renewed(Duration::from_secs(34));
    assert!(!before.is_cancelled());
    now.store(39_000 + 30_000, Ordering::SeqCst);
    lease.renewed(Duration::from_secs(69));
    assert!(before.is_cancelled());
    assert!(lease.valid() && !lease.identity().cutoff.is_cancelled());
}

#[test]
fn the_terms_of_permits_end_and_change_with_the_lease() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    let first = lease.terms();
    assert_eq!(first.incarnation, 0);
    lease.identity().cutoff.cancel();
    assert!(first.cutoff.is_cancelled());
    assert!(lease.terms().cutoff.is_cancelled());
    // It revives, and what begins now is not cut with what was.
    now.store(1000, Ordering::SeqCst);
    lease.renewed(Duration::from_secs(1));
    let second = lease.terms();
    assert!(!second.cutoff.is_cancelled());
    let old = lease.rejoined(InstanceId::from_bits(2), Duration::from_secs(1));
    assert_eq!(lease.terms().incarnation, 1);
    old.cutoff.cancel();
    assert!(second.cutoff.is_cancelled());
    assert!(!lease.terms().cutoff.is_cancelled());
    let third = lease.terms();
    lease.revoke();
    assert!(third.cutoff.is_cancelled());
}

#[test]
fn a_rejoin_leaves_what_still_runs_the_rest_of_its_time() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    let lease = lease.cutting_after(Duration::from_secs(30));
    lease.renewed(Duration::ZERO);
    now.store(15_000, Ordering::SeqCst);
    let old = lease.rejoined(InstanceId::from_bits(2), Duration::from_secs(15));
    assert_eq!(lease.cut_overdue(), Duration::from_secs(20));
    now.store(34_999, Ordering::SeqCst);
    lease.renewed(Duration::from_secs(34));
    assert_eq!(lease.cut_overdue(), Duration::from_millis(1));
    assert!(!old.cutoff.is_cancelled());
    now.store(35_000, Ordering::SeqCst);
    assert_eq!(lease.cut_overdue(), Duration::from_secs(34));
    assert!(old.cutoff.is_cancelled());
    assert!(!lease.identity().cutoff.is_cancelled());
    // One that comes later than that cuts at once.
    now.store(100_000, Ordering::SeqCst);
    let old = lease.rejoined(InstanceId::from_bits(3), Duration::from_secs(100));
    assert!(old.cutoff.is_cancelled());
}

#[test]
fn no_renewal_number_comes_twice() {
    let (clock, _now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    let first = lease.next_renewal();
    lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    assert!(lease.next_renewal() > first);
}

#[test]
fn what_begins_after_a_revival_is_not_cut() {
    let (clock, _now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    let before = lease.identity().cutoff;
    before.cancel();
    lease.renewed(Duration::from_mins(1));
    assert!(before.is_cancelled());
    assert!(!lease.identity().cutoff.is_cancelled());
    assert_eq!(lease.identity().incarnation, 0, "it is the same id");
}

#[test]
fn no_renewal_revives_a_lease_that_was_revoked() {
    let (clock, now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    now.store(2000, Ordering::SeqCst);
    lease.revoke();
    lease.renewed(Duration::from_secs(2));
    assert!(!lease.valid());
    assert_eq!(lease.remaining(), Some(Duration::ZERO));
    now.store(3000, Ordering::SeqCst);
    assert_eq!(lease.lapsed_for(), Some(Duration::from_secs(1)));
}

#[test]
fn no_renewal_revives_a_run_that_is_over() {
    let (clock, _now) = manual();
    let lease = Lease::new(clock, TERM, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    assert!(lease.valid());
    lease.end();
    lease.renewed(Duration::from_secs(1));
    assert!(!lease.valid());
    assert_eq!(lease.remaining(), None);
}
