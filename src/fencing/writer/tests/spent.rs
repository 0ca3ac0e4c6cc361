//! The writer and spent tokens: a spending that a failover has lost, alone or with its mark, and
//! states that only look like one.

use super::*;
use crate::store::Administration;

async fn spend(rig: &Rig, number: i64, name: &str) -> Result<bool, Refused> {
    ask(rig, "a", number, Want::Spend(name.into()))
        .await
        .expect("no panic")
}

fn spent_by(store: &Double) -> Option<String> {
    let state = store.state();
    let mark = state.marks.get(&key("a")).expect("a mark");
    mark.1.clone()
}

/// A failover to a replica that has the mark and not the spending.
fn lose_spending(store: &Double) {
    let mut state = store.state();
    state.marks.get_mut(&key("a")).expect("a mark").1 = None;
}

/// Refuses the token until it is repaired and has settled, and then because it is spent.
async fn is_repaired(store: &Double, rig: &Rig) {
    assert_repairing(look(rig, "a", 5));
    tokio::time::sleep(A_TICK).await;
    assert!(spent_by(store).is_some(), "written back");
    tokio::time::sleep(LOSS).await;
    rig.lease.renewed(rig.lease.clock().now());
    let counted = rig.metrics.store().series.mark_regressions.get();
    assert!(open(rig, "a", 5).await.is_ok());
    assert_eq!(spend(rig, 5, "later").await, Err(Refused::Spent));
    assert_eq!(
        rig.metrics.store().series.mark_regressions.get(),
        counted,
        "one loss, once"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_spending_is_a_loss_whatever_asks() {
    for spends in [true, false] {
        let (store, rig) = alone().await;
        assert!(open(&rig, "a", 5).await.is_ok());
        assert_eq!(spend(&rig, 5, "x").await, Ok(false));
        lose_spending(&store);
        let error = if spends {
            spend(&rig, 5, "y").await.expect_err("lost")
        } else {
            let raised = ask(&rig, "a", 5, Want::Raise).await.expect("no panic");
            raised.expect_err("lost")
        };
        assert_eq!(error.kind(), "lost");
        assert_eq!(rig.metrics.store().series.mark_regressions.get(), 1);
        is_repaired(&store, &rig).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_spending_that_is_lost_with_its_mark_is_written_back_with_it() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    assert_eq!(spend(&rig, 5, "x").await, Ok(false));
    store.state().marks.insert(key("a"), (token(4), None, 0));
    let raised = ask(&rig, "a", 5, Want::Raise).await.expect("no panic");
    assert_eq!(raised.expect_err("lost").kind(), "lost");
    tokio::time::sleep(A_TICK).await;
    assert_eq!(spent_by(&store).as_deref(), Some("x"));
    is_repaired(&store, &rig).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_spent_elsewhere_is_missed_too() {
    let (store, one, two) = pair().await;
    assert!(open(&one, "a", 5).await.is_ok());
    assert_eq!(spend(&one, 5, "x").await, Ok(false));
    assert_eq!(spend(&two, 5, "y").await, Err(Refused::Spent));
    lose_spending(&store);
    assert_eq!(spend(&two, 5, "z").await.expect_err("lost").kind(), "lost");
    assert_eq!(two.metrics.store().series.mark_regressions.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_given_back_is_no_loss() {
    let (_store, one, two) = pair().await;
    assert!(open(&one, "a", 5).await.is_ok());
    assert_eq!(spend(&one, 5, "x").await, Ok(false));
    assert_eq!(spend(&two, 5, "y").await, Err(Refused::Spent));
    assert!(one.writer.give_back(&key("a"), token(5), "x".into()).await);
    assert!(open(&one, "a", 5).await.is_ok());
    assert_eq!(spend(&two, 5, "z").await, Ok(false));
    // Another name stands there now, and that is no loss either.
    assert_eq!(spend(&one, 5, "w").await, Err(Refused::Spent));
    for rig in [&one, &two] {
        assert_eq!(rig.metrics.store().series.mark_regressions.get(), 0);
    }
}

/// Its outcome is unknown, and it may still be done at any time.
#[tokio::test(start_paused = true)]
async fn a_giving_back_in_doubt_leaves_nothing_known() {
    for act in [CallPlan::Fail(broken()), CallPlan::Lose, CallPlan::Late] {
        let (store, rig) = alone().await;
        assert!(open(&rig, "a", 5).await.is_ok());
        assert_eq!(spend(&rig, 5, "x").await, Ok(false));
        store.plan("give_back", act);
        assert!(!rig.writer.give_back(&key("a"), token(5), "x".into()).await);
        let answer = spend(&rig, 5, "y").await;
        store.commit_late();
        if answer == Err(Refused::Spent) {
            let again = spend(&rig, 5, "z").await;
            assert!(matches!(again, Ok(_) | Err(Refused::Spent)));
        }
        assert_eq!(rig.metrics.store().series.mark_regressions.get(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_override_that_clears_what_is_spent_is_no_loss() {
    let (store, rig) = alone().await;
    let raised = ask(&rig, "a", 5, Want::Raise).await.expect("no panic");
    assert!(raised.is_ok());
    assert_eq!(spend(&rig, 5, "x").await, Ok(false));
    let done = store.override_mark(&key("a"), token(5), "why", "who").await;
    assert!(matches!(done, Ok(Override::Done { .. })), "{done:?}");
    assert!(open(&rig, "a", 5).await.is_ok());
    assert_eq!(spend(&rig, 5, "y").await, Ok(false));
    assert_eq!(rig.metrics.store().series.mark_regressions.get(), 0);
}

/// An instance that knew of nothing has spent the token once more. That cannot be undone, but it is
/// reported, once.
#[tokio::test(start_paused = true)]
async fn a_token_that_was_spent_again_behind_a_loss_is_told_of_once() {
    let (store, one, two) = pair().await;
    assert!(open(&one, "a", 5).await.is_ok());
    assert_eq!(spend(&one, 5, "x").await, Ok(false));
    lose_spending(&store);
    assert_eq!(spend(&two, 5, "y").await, Ok(false));
    let raised = ask(&one, "a", 5, Want::Raise).await.expect("no panic");
    assert_eq!(raised.expect_err("lost").kind(), "lost");
    is_repaired(&store, &one).await;
    assert_eq!(one.metrics.store().series.mark_regressions.get(), 1);
}
