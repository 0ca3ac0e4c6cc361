//! The writer across overrides: the limits of an instance that knows the old mark, or is dead and
//! does not know it.

use super::*;
use crate::fencing::tests::{SETTLE, TERM};
use crate::store::{Administration, Instances};

/// Declared dead and reaped, with the mark of `a` overridden to 10 in era 1; and the era known
/// here, by a statement about something else, while the death is not.
async fn dead_unawares(store: &Double, rig: &Rig) {
    let me = rig.lease.identity().instance;
    tokio::time::sleep(TERM + SETTLE).await;
    assert!(store.declare_dead(&me, 0).await.expect("declared"));
    store.bury(&me, &[], None).await.expect("buried");
    let done = store
        .override_mark(&key("a"), token(10), "why", "who")
        .await;
    assert!(
        matches!(done, Ok(Override::Done { era: 1, .. })),
        "{done:?}"
    );
    rig.epoch_table.adopt(1);
    let known = rig.epoch_table.known(&key("a"));
    assert_eq!(
        known,
        Some(token(42)),
        "an epoch that is open protects it, as far as is known here"
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_dead_unawares_writes_no_mark_back() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 42).await.is_ok());
    dead_unawares(&store, &rig).await;
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.mark_of(&key("a")), Some(10));
    assert!(
        store.open(&key("a")).is_empty(),
        "nothing is recorded again"
    );
    // A newer token truly asked for is another thing; but it finds no loss.
    let asked = ask(&rig, "a", 43, Want::Raise).await.expect("no panic");
    assert_eq!(asked, Ok(true));
    assert_eq!(rig.metrics.store().series.mark_regressions.get(), 0);
    assert!(!matches!(
        look(&rig, "a", 43),
        Err(Refused::Unavailable {
            why: Undecided::Repairing,
            ..
        })
    ));
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_is_not_written_back_over_an_override() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 42).await.is_ok());
    // A loss is seen, and the store goes away before it is repaired.
    store.state().marks.insert(key("a"), (token(30), None, 0));
    store.state().epochs.clear();
    for _ in 0..10_000 {
        store.plan("advance", CallPlan::Fail(broken()));
    }
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK).await;
    assert_repairing(look(&rig, "a", 42));
    let tried = store.calls("advance");
    assert!(tried > 0);
    dead_unawares(&store, &rig).await;
    store.forget_plans("advance");
    tokio::time::sleep(A_TICK).await;
    assert_eq!(
        store.mark_of(&key("a")),
        Some(10),
        "the old mark stays away"
    );
}

#[tokio::test(start_paused = true)]
async fn a_permit_from_before_an_override_spends_nothing() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 42).await.is_ok());
    let _permit = rig.epoch_table.enter(&key("a"), token(42), 0, |_| None);
    let me = rig.lease.identity().instance;
    assert!(store.declare_dead(&me, 0).await.expect("declared"));
    store.bury(&me, &[], None).await.expect("buried");
    let done = store
        .override_mark(&key("a"), token(10), "why", "who")
        .await;
    assert!(matches!(done, Ok(Override::Done { .. })));
    let spent = ask(&rig, "a", 42, Want::Spend("x".into()))
        .await
        .expect("no panic");
    assert_eq!(spent.expect_err("its epoch is gone").kind(), "era");
    assert_eq!(
        store.mark_of(&key("a")),
        Some(10),
        "nor does it raise the mark again"
    );
}

#[tokio::test(start_paused = true)]
async fn an_opening_committed_late_is_closed_though_nothing_supersedes_it() {
    for asked_for in [true, false] {
        let (store, rig) = alone().await;
        store.plan("advance", CallPlan::Late);
        assert!(undecided(open(&rig, "a", 5).await));
        tokio::time::sleep(A_TICK).await;
        store.commit_late();
        assert!(open(&rig, "b", 5).await.is_ok());
        assert_eq!(
            store.open(&key("a")),
            [(1, 5)],
            "nothing has looked for it yet"
        );
        if asked_for {
            rig.writer.reconcile();
            tokio::time::sleep(A_TICK).await;
        } else {
            // Long enough for the lease to be renewed meanwhile, as a membership task would.
            rig.lease
                .renewed(rig.lease.clock().now() + Duration::from_mins(2));
            tokio::time::sleep(Duration::from_mins(1) + A_TICK).await;
        }
        assert!(store.open(&key("a")).is_empty(), "nobody will ever use it");
        assert_eq!(store.open(&key("b")).len(), 1, "what is used stays");
        let done = store.override_mark(&key("a"), token(3), "why", "who").await;
        assert!(matches!(done, Ok(Override::Done { .. })), "{done:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn news_is_of_the_era_in_which_it_was_read() {
    let (store, one, two) = pair().await;
    assert!(open(&one, "a", 5).await.is_ok());
    let go = Arc::new(Notify::new());
    store.plan("epochs", CallPlan::HoldAnswer(Arc::clone(&go)));
    let asked = ask(&two, "a", 6, Want::Open);
    store.until("epochs", 2).await;
    two.epoch_table.adopt(1);
    go.notify_one();
    assert!(asked.await.expect("no panic").is_ok());
    tokio::time::sleep(A_TICK).await;
    let newer = Notification::Newer {
        resource: key("a"),
        token: token(6),
        era: 0,
        owner: Some(InstanceId::from_bits(1)),
    };
    assert_eq!(store.announced(), [newer]);
}
