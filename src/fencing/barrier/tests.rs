//! The barrier over a store in memory: requests that wait, pass or are refused.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::fencing::epochs::RequestLimits;
use crate::fencing::tests::{DEATH, Double, ROOM, Rig, SETTLE, SILENCE, TERM, clock, key, token};
use crate::metrics::{DecidedBy, Limit};

const WAIT: Duration = Duration::from_secs(2);
/// No refusal of the barrier: it stands for `None` here.
const NOT_OPEN: Refused = Refused::Spent;

struct One {
    rig: Rig,
}

async fn instance(store: &Arc<Double>, id: u64) -> One {
    with_room(store, id, RequestLimits { queue: 2, ..ROOM }).await
}

async fn with_room(store: &Arc<Double>, id: u64, room: RequestLimits) -> One {
    let rig = Rig::assemble(Arc::clone(store) as _, id, clock(), room);
    rig.0.start_lanes(&[]).detach_all();
    rig.membership().join().await.expect("joined");
    One { rig }
}

async fn alone() -> One {
    instance(&Arc::default(), 1).await
}

impl One {
    async fn open(&self, resource: &str, number: i64) {
        self.rig.open(resource, number).await.expect("granted");
    }

    /// A permit; [`NOT_OPEN`] where the epoch is not open.
    async fn enter(&self, resource: &str, number: i64) -> Result<Permit, Refused> {
        let (key, token) = (key(resource), token(number));
        let (now, route) = (Instant::now(), self.rig.metrics().route("/orders/{id}"));
        let subject = (&key, token);
        let entered = self.rig.0.enter(subject, now, now + WAIT, &route).await?;
        entered.ok_or(NOT_OPEN)
    }

    async fn admit(&self, resource: &str, number: i64) -> Permit {
        self.open(resource, number).await;
        self.enter(resource, number).await.expect("a permit")
    }
}

/// Polls once.
async fn pending<F: Future + Unpin>(future: &mut F) -> bool {
    tokio::select! {
        biased;
        _ = future => false,
        () = std::future::ready(()) => true,
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_token_waits_for_the_older_one_and_then_passes() {
    let one = alone().await;
    let five = one.admit("a", 5).await;
    one.open("a", 6).await;
    let mut six = Box::pin(one.enter("a", 6));
    assert!(pending(&mut six).await);
    assert_eq!(one.enter("b", 1).await.err(), Some(NOT_OPEN));
    drop(one.admit("b", 1).await);
    let sending = five.begin();
    assert!(sending.superseded().is_cancelled());
    assert!(pending(&mut six).await, "begun");
    let began = Instant::now();
    sending.settled();
    assert!(six.await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO, "woken, not timed out");
    assert_eq!(
        one.enter("a", 5).await.err(),
        Some(Refused::stale(token(6), DecidedBy::Barrier))
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_superseded_while_it_waits_gets_no_permit() {
    let one = alone().await;
    let five = one.admit("a", 5).await;
    one.open("a", 6).await;
    let mut six = Box::pin(one.enter("a", 6));
    assert!(pending(&mut six).await);
    one.open("a", 7).await;
    assert_eq!(
        six.await.err(),
        Some(Refused::stale(token(7), DecidedBy::Barrier))
    );
    drop(five);
    assert!(one.enter("a", 7).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn waits_no_longer_than_its_deadline_and_gives_up_its_place() {
    let one = alone().await;
    let _five = one.admit("a", 5).await;
    one.open("a", 6).await;
    let began = Instant::now();
    let refused = one.enter("a", 6).await.err();
    assert_eq!(began.elapsed(), WAIT);
    let retry_after = Duration::from_secs(1);
    let settling = false;
    assert_eq!(
        refused,
        Some(Refused::OlderInFlight {
            retry_after,
            settling
        })
    );
    assert_eq!(one.rig.waiting(&key("a")), 0);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait_at_one_resource() {
    let one = alone().await;
    let _five = one.admit("a", 5).await;
    one.open("a", 6).await;
    let mut first = Box::pin(one.enter("a", 6));
    let mut second = Box::pin(one.enter("a", 6));
    assert!(pending(&mut first).await && pending(&mut second).await);
    assert_eq!(
        one.enter("a", 6).await.err(),
        Some(Refused::Limited(Limit::Queue))
    );
    drop(first);
    let mut third = Box::pin(one.enter("a", 6));
    assert!(pending(&mut third).await, "the place is free again");
}

#[tokio::test(start_paused = true)]
async fn a_resource_has_its_share_waiting_or_in_flight_and_the_newest_token_one_more() {
    let room = RequestLimits { share: 3, ..ROOM };
    let one = with_room(&Arc::default(), 1, room).await;
    let five = one.admit("a", 5).await;
    let sending = one.enter("a", 5).await.expect("the second").begin();
    let third = one.enter("a", 5).await.expect("the third");
    assert_eq!(
        one.enter("a", 5).await.err(),
        Some(Refused::Limited(Limit::InFlightPerResource))
    );
    drop(one.admit("b", 1).await);
    // The crowd with 5 does not keep the holder of 6 out, and its crowd has no more room than that.
    one.open("a", 6).await;
    let mut six = Box::pin(one.enter("a", 6));
    assert!(pending(&mut six).await);
    assert_eq!(
        one.enter("a", 6).await.err(),
        Some(Refused::Limited(Limit::InFlightPerResource))
    );
    drop(five);
    sending.settled();
    let mut second = Box::pin(one.enter("a", 6));
    assert!(pending(&mut second).await, "there is room again");
    drop((six, second, third));
    assert!(one.enter("a", 6).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait_at_all_resources_together() {
    let room = RequestLimits { waiting: 2, ..ROOM };
    let one = with_room(&Arc::default(), 1, room).await;
    let _held = (one.admit("a", 5).await, one.admit("b", 5).await);
    for resource in ["a", "b"] {
        one.open(resource, 6).await;
    }
    let mut first = Box::pin(one.enter("a", 6));
    let mut second = Box::pin(one.enter("b", 6));
    assert!(pending(&mut first).await && pending(&mut second).await);
    assert_eq!(
        one.enter("a", 6).await.err(),
        Some(Refused::Limited(Limit::Queue))
    );
    // A request that need not wait is not concerned.
    drop(one.admit("c", 1).await);
    drop(second);
    let mut third = Box::pin(one.enter("a", 6));
    assert!(pending(&mut third).await, "there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_is_superseded_does_not_turn_the_newest_away() {
    let one = alone().await;
    let five = one.admit("a", 5).await;
    one.open("a", 6).await;
    let mut crowd = [Box::pin(one.enter("a", 6)), Box::pin(one.enter("a", 6))];
    for six in &mut crowd {
        assert!(pending(six).await);
    }
    one.open("a", 7).await;
    // Those that wait with 6 have been woken, and none of them has run yet.
    let mut seven = Box::pin(one.enter("a", 7));
    assert!(pending(&mut seven).await);
    for six in crowd {
        assert_eq!(
            six.await.err(),
            Some(Refused::stale(token(7), DecidedBy::Barrier))
        );
    }
    drop(five);
    assert!(seven.await.is_ok());
    assert_eq!(one.rig.waiting(&key("a")), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_holds_newer_tokens_until_it_has_settled() {
    let one = alone().await;
    let five = one.admit("a", 5).await;
    drop(five.begin());
    assert_eq!(one.rig.metrics.series.unknown_outcomes.get(), 1);
    one.open("a", 6).await;
    let began = Instant::now();
    let refused = one.enter("a", 6).await.err();
    assert_eq!(
        began.elapsed(),
        Duration::ZERO,
        "known to be pointless at once"
    );
    assert!(matches!(
        refused,
        Some(Refused::OlderInFlight { retry_after, settling: true }) if retry_after > WAIT && retry_after <= SETTLE
    ));
    tokio::time::sleep(SETTLE.saturating_sub(Duration::from_secs(1))).await;
    // Nothing renews it in this test.
    one.rig.lease.renewed(one.rig.lease.clock().now());
    let waited = Instant::now();
    assert!(one.enter("a", 6).await.is_ok());
    assert!(began.elapsed() >= SETTLE && waited.elapsed() <= Duration::from_millis(1100));
    assert_eq!(one.rig.metrics.series.unknown_outcomes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_never_begun_or_has_settled_holds_nobody() {
    let one = alone().await;
    drop(one.admit("a", 5).await);
    one.admit("a", 5).await.begin().settled();
    one.open("a", 6).await;
    assert!(one.enter("a", 6).await.is_ok());
    assert_eq!(one.rig.metrics.series.unknown_outcomes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_given_under_a_lapsed_lease_or_of_an_earlier_generation() {
    let one = alone().await;
    drop(one.admit("a", 5).await);
    tokio::time::sleep(TERM).await;
    assert_eq!(
        one.enter("a", 5).await.err(),
        Some(Refused::Unavailable(Undecided::Lapsed))
    );
    let now = one.rig.lease.clock().now();
    one.rig.lease.renewed(now);
    let permit = one.enter("a", 5).await.expect("the same id has revived");
    let id = crate::store::InstanceId::from_bits(9);
    let old = one.rig.lease.rejoined(id, now);
    assert_eq!(one.enter("a", 5).await.err(), Some(NOT_OPEN));
    let sending = permit.begin();
    assert!(!one.rig.lease.holds(sending.incarnation()));
    old.cutoff.cancel();
    assert!(sending.cutoff.is_cancelled());
    drop(one.admit("a", 5).await);
    one.open("a", 6).await;
    let mut six = Box::pin(one.enter("a", 6));
    let waits = pending(&mut six).await;
    assert!(waits, "the old incarnation's permit still counts");
    sending.settled();
}

#[tokio::test(start_paused = true)]
async fn permits_after_an_outage_are_not_cut_with_those_before() {
    let one = alone().await;
    drop(one.admit("a", 5).await);
    tokio::time::sleep(TERM + SETTLE).await;
    one.rig.lease.identity().cutoff.cancel();
    one.rig.lease.renewed(one.rig.lease.clock().now());
    let sending = one.enter("a", 5).await.expect("revived").begin();
    assert!(!sending.cutoff.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn waits_for_an_older_epoch_of_another_instance_until_it_is_ceded() {
    let store = Arc::new(Double::default());
    let one = instance(&store, 1).await;
    let two = instance(&store, 2).await;
    one.rig.run();
    two.rig.run();
    let five = one.admit("a", 5).await.begin();
    two.open("a", 6).await;
    let mut six = Box::pin(two.enter("a", 6));
    assert!(pending(&mut six).await);
    five.superseded().cancelled().await;
    tokio::time::sleep(WAIT / 2).await;
    assert!(pending(&mut six).await, "it is in flight");
    let began = Instant::now();
    five.settled();
    assert!(six.await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO, "notified");
    assert_eq!(store.open(&key("a")), [6]);
    let stale = one.rig.open("a", 5).await;
    assert_eq!(stale, Err(Refused::stale(token(6), DecidedBy::Store)));
}

#[tokio::test(start_paused = true)]
async fn a_dead_instance_is_waited_for_until_it_has_settled() {
    let store = Arc::new(Double::default());
    let one = instance(&store, 1).await;
    let two = instance(&store, 2).await;
    let _five = one.admit("a", 5).await.begin();
    two.open("a", 6).await;
    two.rig.run();
    let began = Instant::now();
    let refused = loop {
        let refused = two.enter("a", 6).await;
        match refused {
            Err(Refused::OlderInFlight { settling: true, .. }) => break refused.err(),
            Err(Refused::OlderInFlight { .. }) => {}
            other => panic!("{:?}", other.err()),
        }
    };
    assert!(
        matches!(refused, Some(Refused::OlderInFlight { retry_after, .. })
        if retry_after > SETTLE && retry_after <= DEATH)
    );
    assert!(began.elapsed() >= SILENCE, "alive for its lease");
    // Its epoch is idle in between, so each one asks again.
    while {
        two.open("a", 6).await;
        two.enter("a", 6).await.is_err()
    } {
        assert!(
            began.elapsed() < SILENCE + DEATH + Duration::from_secs(5),
            "forever"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(
        began.elapsed() >= SILENCE + DEATH,
        "too early: {:?}",
        began.elapsed()
    );
}
