//! The lanes over a store that is slow, fails, and has locked rows.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;
use crate::fencing::refused::Refused;
use crate::fencing::tests::{CallPlan, Double, Rig, alone, key, pair, token};
use crate::store::InstanceId;

fn ask(rig: &Rig, on: &str, number: i64) -> JoinHandle<Result<bool, Refused>> {
    let (rig, on) = (Rig(Arc::clone(&rig.0)), on.to_owned());
    tokio::spawn(async move { rig.open(&on, number).await })
}

async fn answer(asked: JoinHandle<Result<bool, Refused>>) -> Result<bool, Refused> {
    asked.await.expect("no panic")
}

#[tokio::test(start_paused = true)]
async fn what_waits_while_a_statement_commits_shares_the_next_one() {
    let (store, rig) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(&rig, "a", 1);
    store.until("advance", 1).await;
    let rest = ["b", "c", "d"].map(|on| ask(&rig, on, 1));
    tokio::task::yield_now().await;
    go.notify_one();
    assert_eq!(answer(first).await, Ok(true));
    for asked in rest {
        assert_eq!(answer(asked).await, Ok(true));
    }
    assert_eq!(store.calls("advance"), 2);
}

#[tokio::test(start_paused = true)]
async fn one_locked_row_stops_nobody_else() {
    let (store, rig) = alone().await;
    store.rows().locked.insert(key("locked"));
    let mut asked = ["a", "b", "locked"].map(|on| ask(&rig, on, 1));
    for asked in &mut asked[..2] {
        assert_eq!(asked.await.expect("no panic"), Ok(true));
    }
    assert_eq!(rig.open("a", 2).await, Ok(true));
    let before = store.calls("advance");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let tries = store.calls("advance") - before;
    assert!((15..=21).contains(&tries), "{tries}: some pause after each");
    let newer = ask(&rig, "locked", 2);
    tokio::task::yield_now().await;
    store.rows().locked.clear();
    assert_eq!(answer(newer).await, Ok(true));
    let [.., locked] = asked;
    assert!(
        matches!(answer(locked).await, Err(Refused::Stale { .. })),
        "it is older"
    );
}

/// As when it panics, or at the end of a run.
#[tokio::test(start_paused = true)]
async fn a_lane_that_ends_answers_its_requests() {
    let store = Arc::new(Double::default());
    let rig = Rig::without_lanes(Arc::clone(&store) as _, 1).await;
    store.plan("advance", CallPlan::Hold(Arc::default()));
    let mut lanes = rig.0.start_lanes(&[]);
    let asked = ask(&rig, "a", 1);
    store.until("advance", 1).await;
    lanes.abort_all();
    let began = Instant::now();
    assert_eq!(
        answer(asked).await.expect_err("no answer").kind(),
        "stopping"
    );
    assert_eq!(began.elapsed(), Duration::ZERO);
    let recalled = rig.epoch_table.recall(&key("a"), token(1), 0, began);
    assert_eq!(recalled, Ok(false));
    // Nobody takes this one up.
    let asked = ask(&rig, "a", 1);
    assert_eq!(
        answer(asked).await.expect_err("no answer").kind(),
        "timeout"
    );
}

#[tokio::test(start_paused = true)]
async fn the_owners_of_older_epochs_are_notified_while_they_live() {
    let (store, one, two) = pair().await;
    assert_eq!(one.open("a", 5).await, Ok(true));
    assert_eq!(two.open("a", 6).await, Ok(true));
    let owner = |to| Notification {
        resource: key("a"),
        waits: Some(token(6)),
        to: Some(to),
    };
    let one_id = InstanceId::from_bits(1);
    let notifications = || two.epoch_table.errands.notifications.take(9);
    assert_eq!(notifications(), [owner(one_id)]);
    assert!(store.rows().declare_dead(one_id, 0));
    two.round().await;
    two.tell(two.epoch_table.waited_for());
    assert_eq!(notifications(), []);
}
