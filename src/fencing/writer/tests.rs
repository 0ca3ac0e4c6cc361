//! The writer over a store in memory that is slow, fails, loses answers and commits late.

use crate::store::Instances;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Want;
use crate::fencing::epochs::Recalled;
use crate::fencing::refused::{Refused, Undecided};
use crate::fencing::tests::{
    CallPlan, Double, LOSS, Rig, alone, assert_repairing, broken, key, pair, rig, token,
};
use crate::metrics::DecidedBy;
use crate::routing::ResourceKey;
use crate::store::{EpochRow, InstanceId, Notification, Override};

/// Longer than the writer's tick.
const A_TICK: Duration = Duration::from_millis(300);

fn ask(rig: &Rig, on: &str, number: i64, want: Want) -> JoinHandle<Result<bool, Refused>> {
    let (writer, key) = (rig.writer.clone(), key(on));
    tokio::spawn(async move { writer.append(&key, token(number), want).await })
}

async fn open(rig: &Rig, on: &str, number: i64) -> Result<bool, Refused> {
    ask(rig, on, number, Want::Open).await.expect("no panic")
}

fn undecided(answer: Result<bool, Refused>) -> bool {
    answer.is_err_and(|refused| refused.is_undecided())
}

fn stale(mark: i64) -> Result<bool, Refused> {
    Err(Refused::stale(token(mark), DecidedBy::Store))
}

fn look(rig: &Rig, on: &str, number: i64) -> Result<Recalled, Refused> {
    let incarnation = rig.lease.incarnation();
    rig.epoch_table.recall(&key(on), token(number), incarnation)
}

#[tokio::test(start_paused = true)]
async fn what_waits_while_a_batch_commits_shares_the_next_one() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(&rig, "a", 1, Want::Open);
    store.until("advance", 1).await;
    let rest = [
        ask(&rig, "b", 7, Want::Open),
        ask(&rig, "b", 9, Want::Open),
        ask(&rig, "b", 9, Want::Open),
        ask(&rig, "c", 3, Want::Raise),
        ask(&rig, "a", 1, Want::Open),
    ];
    tokio::task::yield_now().await;
    go.notify_one();
    assert_eq!(first.await.expect("no panic"), Ok(true));
    let mut answers = Vec::new();
    for asked in rest {
        answers.push(asked.await.expect("no panic"));
    }
    assert_eq!(
        answers,
        [stale(9), Ok(true), Ok(false), Ok(true), Ok(false)]
    );
    assert_eq!(store.calls("advance"), 2);
    assert_eq!(
        store.open(&key("a")).len(),
        1,
        "the second needed no opening"
    );
    assert_eq!(store.open(&key("b")).len(), 1);
    assert!(store.open(&key("c")).is_empty());
    assert_eq!(look(&rig, "b", 9), Ok(Recalled::Open));
    assert_eq!(
        look(&rig, "b", 8),
        Err(Refused::stale(token(9), DecidedBy::Memory))
    );
}

#[tokio::test(start_paused = true)]
async fn a_doubt_answers_only_its_own_batch_and_leaves_no_epoch() {
    for act in [CallPlan::Fail(broken()), CallPlan::Lose] {
        let (store, rig) = alone().await;
        let go = Arc::new(Notify::new());
        store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
        store.plan("advance", act);
        let first = ask(&rig, "a", 1, Want::Open);
        store.until("advance", 1).await;
        let second = ask(&rig, "b", 1, Want::Open);
        tokio::task::yield_now().await;
        go.notify_one();
        assert!(first.await.expect("no panic").is_ok());
        let error = second.await.expect("no panic").expect_err("in doubt");
        assert_eq!(error.kind(), "connection");
        assert_eq!(
            look(&rig, "b", 1),
            Ok(Recalled::AskStore),
            "nothing was concluded from it"
        );
        assert!(open(&rig, "c", 1).await.is_ok());
        tokio::time::sleep(A_TICK).await;
        assert!(
            store.open(&key("b")).is_empty(),
            "nobody will ever use that opening"
        );
        assert!(open(&rig, "b", 1).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_commit_opens_nothing_that_is_used_and_the_poll_closes_it() {
    let (store, rig) = alone().await;
    store.plan("advance", CallPlan::Late);
    assert!(undecided(open(&rig, "a", 5).await));
    tokio::time::sleep(A_TICK).await;
    store.commit_late();
    assert_eq!(store.open(&key("a")), [(1, 5)]);
    assert_eq!(look(&rig, "a", 5), Ok(Recalled::AskStore));
    assert_eq!(open(&rig, "a", 6).await, Ok(true));
    rig.writer.poll();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(2, 6)]);
    assert_eq!(open(&rig, "a", 5).await, stale(6));
}

#[tokio::test(start_paused = true)]
async fn a_second_statement_in_doubt_registers_nothing() {
    let (store, rig) = alone().await;
    store.plan("epochs", CallPlan::Fail(broken()));
    assert!(undecided(open(&rig, "a", 5).await));
    assert_eq!(look(&rig, "a", 5), Ok(Recalled::AskStore));
    assert_eq!(
        look(&rig, "a", 4),
        Err(Refused::stale(token(5), DecidedBy::Memory)),
        "the first was durable"
    );
    tokio::time::sleep(A_TICK).await;
    assert!(store.open(&key("a")).is_empty());
}

/// Asks for the locked row in one batch with two others, which pass.
async fn in_one_batch_with_others(store: &Double, rig: &Rig) -> JoinHandle<Result<bool, Refused>> {
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(rig, "a", 1, Want::Open);
    store.until("advance", 1).await;
    let locked = ask(rig, "locked", 1, Want::Open);
    let others = [ask(rig, "b", 1, Want::Open), ask(rig, "c", 1, Want::Open)];
    tokio::task::yield_now().await;
    go.notify_one();
    assert!(first.await.expect("no panic").is_ok());
    for other in others {
        assert_eq!(other.await.expect("no panic"), Ok(true));
    }
    locked
}

#[tokio::test(start_paused = true)]
async fn one_locked_row_stops_nobody_else() {
    let (store, rig) = alone().await;
    store.lock_row(&key("locked"));
    let locked = in_one_batch_with_others(&store, &rig).await;
    // From now on it is kept out of the others' batches.
    let before = store.calls("advance");
    let (newer, other) = (
        ask(&rig, "locked", 2, Want::Open),
        ask(&rig, "d", 1, Want::Open),
    );
    assert!(other.await.expect("no panic").is_ok());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!locked.is_finished() && !newer.is_finished());
    assert_eq!(store.calls("advance"), before + 1);
    store.unlock_rows();
    assert_eq!(newer.await.expect("no panic"), Ok(true));
    assert_eq!(
        locked.await.expect("no panic").expect_err("it is older"),
        Refused::stale(token(2), DecidedBy::Store)
    );
    assert_eq!(store.calls("advance"), before + 2);
}

/// Another session has inserted it and not committed.
#[tokio::test(start_paused = true)]
async fn a_locked_row_that_nobody_sees_stops_nobody_else() {
    let (store, rig) = alone().await;
    store.lock_new_row(&key("locked"));
    let locked = in_one_batch_with_others(&store, &rig).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = store.calls("advance");
    let newer = ask(&rig, "locked", 2, Want::Open);
    assert_eq!(open(&rig, "d", 1).await, Ok(true));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!locked.is_finished() && !newer.is_finished());
    let tries = store.calls("advance") - before;
    assert!((5..15).contains(&tries), "{tries}: four times a second");
    store.unlock_rows();
    assert_eq!(newer.await.expect("no panic"), Ok(true));
    assert!(locked.await.expect("no panic").is_err(), "it is older");
}

#[tokio::test(start_paused = true)]
async fn requests_for_a_locked_row_hold_up_none_for_another_that_was_locked() {
    let (store, rig) = alone().await;
    store.lock_row(&key("a"));
    store.lock_row(&key("b"));
    let waits = ask(&rig, "a", 1, Want::Open);
    let mut others = Vec::new();
    for token in 1..30 {
        others.push(ask(&rig, "b", token, Want::Open));
        tokio::time::sleep(Duration::from_millis(100)).await;
        if token == 10 {
            store.unlock_row(&key("a"));
        }
    }
    assert!(waits.is_finished(), "its row has been free for two seconds");
    assert_eq!(waits.await.expect("no panic"), Ok(true));
    assert!(others.iter().all(|other| !other.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_answered_after_a_rejoin_is_closed_and_not_used() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::HoldAnswer(Arc::clone(&go)));
    let asked = ask(&rig, "a", 5, Want::Open);
    store.until("advance", 1).await;
    rig.lease
        .rejoined(InstanceId::from_bits(7), rig.lease.clock().now());
    go.notify_one();
    assert_eq!(
        asked.await.expect("no panic").expect_err("a doubt").kind(),
        "rejoined"
    );
    assert_eq!(look(&rig, "a", 5), Ok(Recalled::AskStore));
    tokio::time::sleep(A_TICK).await;
    assert!(store.open(&key("a")).is_empty());
    assert!(open(&rig, "a", 5).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_override_elsewhere_sends_the_statement_back_in_the_new_era() {
    let (store, rig, other) = pair().await;
    assert!(
        ask(&rig, "a", 10, Want::Raise)
            .await
            .expect("no panic")
            .is_ok()
    );
    let done = other
        .store
        .override_mark(&key("a"), token(3), "why", "who")
        .await;
    assert!(matches!(done, Ok(Override::Done { .. })));
    // Memory does not know yet.
    assert_eq!(open(&rig, "a", 4).await, stale(10));
    // An open epoch of another resource does not keep the memory of this one.
    assert!(open(&rig, "b", 1).await.is_ok());
    assert_eq!(open(&rig, "a", 12).await, Ok(true));
    assert_eq!(rig.epoch_table.era(), 1);
    assert_eq!(
        rig.metrics.store().series.mark_regressions.get(),
        0,
        "an override is not a loss"
    );
    assert_eq!(open(&rig, "a", 4).await, stale(12));
    assert_eq!(store.mark_of(&key("a")), Some(12));
}

#[tokio::test(start_paused = true)]
async fn a_failed_close_is_tried_again() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    store.plan("close", CallPlan::Fail(broken()));
    store.plan("close", CallPlan::Lose);
    assert!(open(&rig, "a", 6).await.is_ok());
    tokio::time::sleep(A_TICK * 5).await;
    assert_eq!(store.open(&key("a")), [(2, 6)]);
    assert_eq!(store.calls("close"), 3);
}

#[tokio::test(start_paused = true)]
async fn others_are_told_of_what_waits_and_of_what_has_closed() {
    let (store, one, two) = pair().await;
    assert!(open(&one, "a", 5).await.is_ok());
    assert!(open(&two, "a", 6).await.is_ok());
    tokio::time::sleep(A_TICK).await;
    let newer = Notification::Newer {
        resource: key("a"),
        token: token(6),
        era: 0,
        owner: Some(InstanceId::from_bits(1)),
    };
    assert_eq!(store.announced(), std::slice::from_ref(&newer));
    assert!(one.epoch_table.learn(&key("a"), token(6), 0, true));
    tokio::time::sleep(A_TICK).await;
    let closed = Notification::Closed { resource: key("a") };
    assert_eq!(store.announced(), [newer, closed]);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_spent_once_also_within_a_batch_and_given_back_by_name() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    let spend = |name: &str| ask(&rig, "a", 5, Want::Spend(name.into()));
    let (x, y) = (spend("x"), spend("y"));
    let answers = [x.await.expect("no panic"), y.await.expect("no panic")];
    assert_eq!(answers, [Ok(false), Err(Refused::Spent)]);
    let a = key("a");
    assert!(rig.writer.give_back(&a, token(5), "y".into()).await);
    assert_eq!(spend("z").await.expect("no panic"), Err(Refused::Spent));
    assert!(rig.writer.give_back(&a, token(5), "x".into()).await);
    assert_eq!(spend("z").await.expect("no panic"), Ok(false));
    store.plan("give_back", CallPlan::Fail(broken()));
    assert!(!rig.writer.give_back(&a, token(5), "z".into()).await);
}

#[tokio::test(start_paused = true)]
async fn who_has_left_is_passed_over() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(&rig, "a", 1, Want::Open);
    store.until("advance", 1).await;
    let gone = ask(&rig, "b", 1, Want::Open);
    tokio::task::yield_now().await;
    gone.abort();
    assert!(gone.await.is_err());
    go.notify_one();
    assert!(first.await.expect("no panic").is_ok());
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.mark_of(&key("b")), None);
    assert_eq!(store.calls("advance"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_stop_closes_what_has_drained_and_keeps_what_is_unknown() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "idle", 1).await.is_ok());
    assert!(open(&rig, "busy", 1).await.is_ok());
    let busy: ResourceKey = key("busy");
    let entered = rig.epoch_table.enter(&busy, token(1), 0, |_| None);
    assert!(matches!(
        entered,
        Ok(crate::fencing::epochs::Entered::Permit(_))
    ));
    rig.writer.stop().await;
    assert!(store.open(&key("idle")).is_empty());
    assert_eq!(store.open(&busy).len(), 1);
    assert!(undecided(open(&rig, "idle", 1).await));
    let id = rig.lease.identity().instance;
    store.leave(&id).await.expect("left");
    assert!(store.state().instances[&id].dead, "settles from now");
}

/// Its deletion was lost with a failover. At its mark nothing else would ever find it.
#[tokio::test(start_paused = true)]
async fn an_own_epoch_that_a_failover_has_brought_back_is_deleted() {
    let (store, rig) = alone().await;
    let a = key("a");
    open(&rig, "a", 5).await.expect("granted");
    let back = EpochRow {
        resource: a.clone(),
        instance: rig.lease.identity().instance,
        opening: 77,
        token: token(5),
    };
    store.state().epochs.push(back);
    rig.writer.reconcile();
    store.arrived("close", 1).await;
    assert_eq!(store.open(&a), [(1, 5)]);
}

mod bounds;
mod closes;
mod era;
mod losses;
mod own;
mod spent;
