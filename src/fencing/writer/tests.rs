//! The writer over a store in memory that is slow, fails, loses answers and commits late.

use crate::store::Instances;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Answer, Want, WriterError};
use crate::fencing::double::{Act, Double, LOSS, Rig, broken, clock, key, token};
use crate::fencing::epochs::Look;
use crate::routing::ResourceKey;
use crate::store::{EpochRow, InstanceId, Notification, Override, StoreError};

/// Longer than the writer's tick.
const A_TICK: Duration = Duration::from_millis(300);

async fn rig(store: &Arc<Double>, id: u128) -> Rig {
    Rig::new(Arc::clone(store) as _, id, clock()).await
}

async fn alone() -> (Arc<Double>, Rig) {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    (store, rig)
}

fn ask(rig: &Rig, on: &str, number: i64, want: Want) -> JoinHandle<Result<Answer, WriterError>> {
    let (writer, key) = (rig.writer.clone(), key(on));
    tokio::spawn(async move { writer.ask(&key, token(number), want).await })
}

async fn open(rig: &Rig, on: &str, number: i64) -> Result<Answer, WriterError> {
    ask(rig, on, number, Want::Open).await.expect("no panic")
}

fn granted(advanced: bool) -> Answer {
    Answer::Granted { advanced }
}

fn stale(mark: i64) -> Answer {
    Answer::Stale { mark: token(mark) }
}

fn look(rig: &Rig, on: &str, number: i64) -> Look {
    let generation = rig.lease.generation();
    rig.epoch_table.look(&key(on), token(number), generation)
}

#[tokio::test(start_paused = true)]
async fn what_waits_while_a_batch_commits_shares_the_next_one() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", Act::Hold(Arc::clone(&go)));
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
    assert_eq!(
        first.await.expect("no panic").expect("granted"),
        granted(true)
    );
    let mut answers = Vec::new();
    for asked in rest {
        answers.push(asked.await.expect("no panic").expect("an answer"));
    }
    assert_eq!(
        answers,
        [
            stale(9),
            granted(true),
            granted(false),
            granted(true),
            granted(false)
        ]
    );
    assert_eq!(store.calls("advance"), 2);
    assert_eq!(
        store.open(&key("a")).len(),
        1,
        "the second needed no opening"
    );
    assert_eq!(store.open(&key("b")).len(), 1);
    assert!(store.open(&key("c")).is_empty());
    assert_eq!(look(&rig, "b", 9), Look::Open);
    assert_eq!(look(&rig, "b", 8), Look::Stale(token(9)));
}

#[tokio::test(start_paused = true)]
async fn a_doubt_answers_only_its_own_batch_and_leaves_no_epoch() {
    for act in [Act::Fail(broken()), Act::Lose] {
        let (store, rig) = alone().await;
        let go = Arc::new(Notify::new());
        store.plan("advance", Act::Hold(Arc::clone(&go)));
        store.plan("advance", act);
        let first = ask(&rig, "a", 1, Want::Open);
        store.until("advance", 1).await;
        let second = ask(&rig, "b", 1, Want::Open);
        tokio::task::yield_now().await;
        go.notify_one();
        assert!(first.await.expect("no panic").is_ok());
        let error = second.await.expect("no panic").expect_err("in doubt");
        assert_eq!(error.kind, "connection");
        assert_eq!(
            look(&rig, "b", 1),
            Look::Ask,
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
    store.plan("advance", Act::Late);
    assert!(open(&rig, "a", 5).await.is_err());
    tokio::time::sleep(A_TICK).await;
    store.commit_late();
    assert_eq!(store.open(&key("a")), [(1, 5)]);
    assert_eq!(look(&rig, "a", 5), Look::Ask);
    assert_eq!(open(&rig, "a", 6).await.expect("granted"), granted(true));
    rig.writer.poll();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(2, 6)]);
    assert_eq!(open(&rig, "a", 5).await.expect("an answer"), stale(6));
}

#[tokio::test(start_paused = true)]
async fn a_second_statement_in_doubt_registers_nothing() {
    let (store, rig) = alone().await;
    store.plan("epochs", Act::Fail(broken()));
    assert!(open(&rig, "a", 5).await.is_err());
    assert_eq!(look(&rig, "a", 5), Look::Ask);
    assert_eq!(
        look(&rig, "a", 4),
        Look::Stale(token(5)),
        "the first was durable"
    );
    tokio::time::sleep(A_TICK).await;
    assert!(store.open(&key("a")).is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_locked_row_stops_nobody_else() {
    let (store, rig) = alone().await;
    store.lock_row(&key("locked"));
    let go = Arc::new(Notify::new());
    store.plan("advance", Act::Hold(Arc::clone(&go)));
    let first = ask(&rig, "a", 1, Want::Open);
    store.until("advance", 1).await;
    let locked = ask(&rig, "locked", 1, Want::Open);
    let others = [ask(&rig, "b", 1, Want::Open), ask(&rig, "c", 1, Want::Open)];
    tokio::task::yield_now().await;
    go.notify_one();
    assert!(first.await.expect("no panic").is_ok());
    for other in others {
        assert_eq!(
            other.await.expect("no panic").expect("granted"),
            granted(true)
        );
    }
    let error = locked.await.expect("no panic").expect_err("locked");
    assert_eq!(error.kind, "lock-timeout");
    // From now on it is kept off the writer: the others' batches are not taken apart any more.
    let before = store.calls("advance");
    let (locked, other) = (
        ask(&rig, "locked", 2, Want::Open),
        ask(&rig, "d", 1, Want::Open),
    );
    assert!(other.await.expect("no panic").is_ok());
    assert!(locked.await.expect("no panic").is_err());
    assert_eq!(store.calls("advance"), before + 2);
}

#[tokio::test(start_paused = true)]
async fn an_aside_statement_that_is_answered_out_of_order_gives_nothing_back() {
    let (store, rig) = alone().await;
    store.plan(
        "advance",
        Act::Fail(StoreError::LockTimeout("for once".into())),
    );
    let go = Arc::new(Notify::new());
    store.plan("advance", Act::HoldAnswer(Arc::clone(&go)));
    let five = ask(&rig, "a", 5, Want::Open);
    store.until("advance", 2).await;
    // Committed beside the writer and not answered yet: its row is not nobody's.
    assert_eq!(store.open(&key("a")), [(2, 5)]);
    let other = crate::fencing::double::Rig::new(Arc::clone(&store) as _, 2, clock()).await;
    assert!(open(&other, "a", 6).await.is_ok());
    rig.writer.poll();
    tokio::time::sleep(A_TICK).await;
    assert!(
        store.open(&key("a")).contains(&(2, 5)),
        "unanswered, so not closed"
    );
    go.notify_one();
    assert_eq!(
        five.await.expect("no panic").expect("an answer"),
        granted(true)
    );
    // It is registered only after the newer mark is known: it closes at once, and gives no permit.
    assert_eq!(look(&rig, "a", 5), Look::Stale(token(6)));
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(1, 6)]);
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_answered_after_a_rejoin_is_closed_and_not_used() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", Act::HoldAnswer(Arc::clone(&go)));
    let asked = ask(&rig, "a", 5, Want::Open);
    store.until("advance", 1).await;
    rig.lease
        .rejoined(InstanceId::from_bits(7), rig.lease.clock().now());
    go.notify_one();
    assert_eq!(
        asked.await.expect("no panic").expect_err("a doubt").kind,
        "rejoined"
    );
    assert_eq!(look(&rig, "a", 5), Look::Ask);
    tokio::time::sleep(A_TICK).await;
    assert!(store.open(&key("a")).is_empty());
    assert!(open(&rig, "a", 5).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_override_elsewhere_sends_the_statement_back_in_the_new_era() {
    let (store, rig) = alone().await;
    let other = crate::fencing::double::Rig::new(Arc::clone(&store) as _, 2, clock()).await;
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
    assert_eq!(open(&rig, "a", 4).await.expect("an answer"), stale(10));
    // An open epoch of another resource does not keep the memory of this one.
    assert!(open(&rig, "b", 1).await.is_ok());
    assert_eq!(open(&rig, "a", 12).await.expect("granted"), granted(true));
    assert_eq!(rig.epoch_table.era(), 1);
    assert_eq!(rig.meters.regressions.get(), 0, "an override is not a loss");
    assert_eq!(open(&rig, "a", 4).await.expect("an answer"), stale(12));
    assert_eq!(store.mark_of(&key("a")), Some(12));
}

#[tokio::test(start_paused = true)]
async fn a_lost_mark_is_seen_barred_and_written_back() {
    let (store, rig) = alone().await;
    assert!(
        ask(&rig, "a", 10, Want::Raise)
            .await
            .expect("no panic")
            .is_ok()
    );
    store.state().marks.insert(key("a"), (token(3), None, 0));
    let error = open(&rig, "a", 10).await.expect_err("lost");
    assert_eq!(error.kind, "lost");
    assert_eq!(rig.meters.regressions.get(), 1);
    assert!(matches!(look(&rig, "a", 10), Look::Barred(_)));
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.mark_of(&key("a")), Some(10));
    assert!(store.open(&key("a")).is_empty(), "that opening is nobody's");
    assert_eq!(look(&rig, "a", 3), Look::Stale(token(10)));
}

/// A failover loses thousands at once. They are found part by part of what is known here, and those of one part
/// are repaired together.
#[tokio::test(start_paused = true)]
async fn very_many_losses_are_repaired_in_a_few_statements() {
    let (store, rig) = alone().await;
    let keys: Vec<String> = (0..2000).map(|number| format!("r{number:04}")).collect();
    for key in &keys {
        assert!(open(&rig, key, 5).await.is_ok());
    }
    let calls = |store: &Double| store.calls("advance") + store.calls("reopen");
    store.state().marks.clear();
    store.state().epochs.clear();
    // One that is locked keeps none of the others waiting.
    store.lock_row(&key("r0007"));
    let before = calls(&store);
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK * 4).await;
    for text in &keys {
        let mark = Some(5).filter(|_| text != "r0007");
        assert_eq!(store.mark_of(&key(text)), mark, "{text}");
        assert_eq!(store.open(&key(text)).len(), 1, "{text}");
        assert!(matches!(look(&rig, text, 5), Look::Barred(_)));
    }
    let calls = calls(&store) - before;
    assert!(calls < 3 * rig.epoch_table.shards(), "{calls}");
}

/// A row that the store refuses, and a batch that it has no time for, keep the others from nothing.
#[tokio::test(start_paused = true)]
async fn a_batch_of_repairs_that_fails_is_made_smaller() {
    let (store, rig) = alone().await;
    let keys: Vec<String> = (0..300).map(|number| format!("r{number:04}")).collect();
    for key in &keys {
        assert!(open(&rig, key, 5).await.is_ok());
    }
    store.state().marks.clear();
    store.state().epochs.clear();
    store.refuse_row(&key("r0007"));
    store.has_time_for(20);
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK * 200).await;
    for text in &keys {
        let mark = Some(5).filter(|_| text != "r0007");
        assert_eq!(store.mark_of(&key(text)), mark, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_own_epoch_that_is_missing_is_a_loss_and_not_the_end_of_others() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    assert!(open(&one, "a", 5).await.is_ok());
    assert!(open(&two, "a", 6).await.is_ok());
    assert!(two.epoch_table.waits_for_others(&key("a")));
    // A failover to a replica that was behind.
    store.state().epochs.clear();
    two.writer.look(key("a"));
    store.until("epochs", 3).await;
    tokio::task::yield_now().await;
    assert!(
        two.epoch_table.waits_for_others(&key("a")),
        "what is lost has not ended"
    );
    assert!(matches!(look(&two, "a", 6), Look::Barred(_)));
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(1, 6)], "recorded again");
    // The same between the two statements of one batch.
    let go = Arc::new(Notify::new());
    store.plan("epochs", Act::Hold(Arc::clone(&go)));
    let asked = ask(&one, "b", 1, Want::Open);
    store.until("epochs", 4).await;
    store.state().epochs.clear();
    go.notify_one();
    assert_eq!(
        asked.await.expect("no panic").expect_err("lost").kind,
        "lost"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_let_in_behind_a_lost_mark_is_waited_for_after_the_repair() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    assert!(open(&two, "a", 7).await.is_ok());
    // A failover to a replica that was behind.
    store.state().marks.clear();
    store.state().epochs.clear();
    assert!(open(&one, "a", 6).await.is_ok());
    two.writer.reconcile();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.mark_of(&key("a")), Some(7));
    assert!(matches!(look(&two, "a", 7), Look::Barred(_)));
    tokio::time::sleep(LOSS).await;
    assert_eq!(
        look(&two, "a", 7),
        Look::Ask,
        "the epoch from before knows nothing of 6"
    );
    assert_eq!(open(&two, "a", 7).await.expect("an answer"), granted(false));
    assert!(two.epoch_table.waits_for_others(&key("a")));
}

#[tokio::test(start_paused = true)]
async fn a_failed_close_is_tried_again() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    store.plan("close", Act::Fail(broken()));
    store.plan("close", Act::Lose);
    assert!(open(&rig, "a", 6).await.is_ok());
    tokio::time::sleep(A_TICK * 5).await;
    assert_eq!(store.open(&key("a")), [(2, 6)]);
    assert_eq!(store.calls("close"), 3);
}

#[tokio::test(start_paused = true)]
async fn others_are_told_of_what_waits_and_of_what_has_closed() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    assert!(open(&one, "a", 5).await.is_ok());
    assert!(open(&two, "a", 6).await.is_ok());
    tokio::time::sleep(A_TICK).await;
    let newer = Notification::Newer {
        resource: key("a"),
        token: token(6),
        era: 0,
        owner: Some(InstanceId::from_bits(1)),
    };
    assert_eq!(store.news(), std::slice::from_ref(&newer));
    assert!(one.epoch_table.learn(&key("a"), token(6), 0, true));
    tokio::time::sleep(A_TICK).await;
    let closed = Notification::Closed { resource: key("a") };
    assert_eq!(store.news(), [newer, closed]);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_spent_once_also_within_a_batch_and_given_back_by_name() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    let spend = |name: &str| ask(&rig, "a", 5, Want::Spend(name.into()));
    let (x, y) = (spend("x"), spend("y"));
    let answers = [
        x.await.expect("no panic").expect("an answer"),
        y.await.expect("no panic").expect("an answer"),
    ];
    assert_eq!(answers, [granted(false), Answer::Spent]);
    let a = key("a");
    assert!(rig.writer.give_back(&a, token(5), "y".into()).await);
    assert_eq!(
        spend("z").await.expect("no panic").expect("an answer"),
        Answer::Spent
    );
    assert!(rig.writer.give_back(&a, token(5), "x".into()).await);
    assert_eq!(
        spend("z").await.expect("no panic").expect("an answer"),
        granted(false)
    );
    store.plan("give_back", Act::Fail(broken()));
    assert!(!rig.writer.give_back(&a, token(5), "z".into()).await);
}

#[tokio::test(start_paused = true)]
async fn who_has_left_is_passed_over() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", Act::Hold(Arc::clone(&go)));
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
        crate::fencing::epochs::Entered::Permit(_)
    ));
    rig.writer.stop().await;
    assert!(store.open(&key("idle")).is_empty());
    assert_eq!(store.open(&busy).len(), 1);
    assert!(open(&rig, "idle", 1).await.is_err());
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
mod own;
mod spent;
