//! Attempts beside each other, and statements that are late or get no answer.

use super::*;
use crate::fencing::permit::Permit;
use crate::fencing::tests::{CallPlan, Double, Rig, SETTLE, broken, clock, key, token};

const DAY: Duration = Duration::from_hours(24);

/// The store of an instance, the tasks that a stop waits for, and a permit for 41.
async fn admitted() -> (Arc<Double>, TaskTracker, Permit) {
    let store = Arc::new(Double::default());
    let rig = Rig::new(Arc::clone(&store) as _, 1, clock()).await;
    let _ = rig.run();
    let permit = rig.admit("a", 41).await;
    (store, TaskTracker::new(), permit)
}

/// An attempt that is at the upstream.
async fn sent(permit: &Permit, tasks: &TaskTracker) -> OwnAttempt {
    let mut first = own(begin(permit, "first", tasks).await);
    first.begin();
    first
}

async fn begin(permit: &Permit, name: &str, tasks: &TaskTracker) -> Result<Begun, Refused> {
    let named = ("charge".to_owned(), "digest".to_owned(), name.to_owned());
    permit.fencing.begin_operation(permit, named, tasks).await
}

fn own(begun: Result<Begun, Refused>) -> OwnAttempt {
    match begun {
        Ok(Begun::Own(own)) => own,
        _ => panic!("it may not send"),
    }
}

fn unknown(begun: Result<Begun, Refused>) -> UnknownAttempt {
    match begun {
        Ok(Begun::Unknown(unknown)) => unknown,
        _ => panic!("something else is known"),
    }
}

/// The name of the attempt on record, and its state.
fn on_record(store: &Double) -> Option<(String, OperationState)> {
    let rows = store.rows();
    let row = rows.operations.get(&(key("a"), "charge".to_owned()));
    row.map(|(row, _)| (row.attempt.clone(), row.state.clone()))
}

#[tokio::test(start_paused = true)]
async fn of_two_that_take_the_place_of_one_one_does() {
    let (store, tasks, permit) = admitted().await;
    drop(sent(&permit, &tasks).await);
    // Unknown, and in flight until it has settled.
    assert!(matches!(
        begin(&permit, "second", &tasks).await,
        Ok(Begun::UnderWay)
    ));
    tokio::time::sleep(SETTLE * 2).await;
    let one = unknown(begin(&permit, "second", &tasks).await);
    let other = unknown(begin(&permit, "third", &tasks).await);
    let taken = one
        .retake(false)
        .await
        .expect("an answer")
        .expect("its turn");
    assert!(other.retake(false).await.expect("an answer").is_none());
    assert_eq!(
        on_record(&store).map(|row| row.0).as_deref(),
        Some("second")
    );
    taken.know("{}", DAY).await;
    assert!(matches!(
        begin(&permit, "fourth", &tasks).await,
        Ok(Begun::Known(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_answer_was_lost_is_given_back_until_that_succeeds() {
    let (store, tasks, permit) = admitted().await;
    store.plan("begin", CallPlan::Lose);
    for _ in 0..3 {
        store.plan("forget", CallPlan::Fail(broken()));
    }
    assert!(begin(&permit, "lost", &tasks).await.is_err());
    assert!(on_record(&store).is_some());
    tasks.close();
    tasks.wait().await;
    // A stop need not wait for the rest.
    assert!(on_record(&store).is_some());
    tokio::time::sleep(SETTLE * 2).await;
    assert_eq!(on_record(&store), None);
    drop(own(begin(&permit, "next", &tasks).await));
}

/// A token that an operator has lowered the mark below says nothing about newer ones.
#[tokio::test(start_paused = true)]
async fn a_permit_says_nothing_about_newer_tokens() {
    let (store, tasks, permit) = admitted().await;
    let first = sent(&permit, &tasks).await;
    for (newer, settles) in [(true, false), (false, true)] {
        let other = token(if newer { 42 } else { 40 });
        for (row, _) in store.rows().operations.values_mut() {
            row.token = other;
        }
        let begun = begin(&permit, "second", &tasks).await;
        assert_eq!(matches!(begun, Ok(Begun::Unknown(_))), settles);
    }
    // Without its lease, a permit says nothing: it may be long over.
    permit.fencing.lease().end();
    assert!(matches!(
        begin(&permit, "second", &tasks).await,
        Ok(Begun::UnderWay)
    ));
    first.know("{}", DAY).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_store_does_not_take_is_recorded_when_it_does() {
    let (store, tasks, permit) = admitted().await;
    let first = sent(&permit, &tasks).await;
    for _ in 0..4 {
        store.plan("know", CallPlan::Fail(broken()));
    }
    first.know("{}", DAY).await;
    assert!(matches!(
        begin(&permit, "second", &tasks).await,
        Ok(Begun::UnderWay)
    ));
    tasks.close();
    tasks.wait().await;
    assert!(matches!(
        begin(&permit, "second", &tasks).await,
        Ok(Begun::Known(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn that_an_attempt_has_settled_is_recorded_when_the_store_takes_it() {
    let (store, tasks, permit) = admitted().await;
    let first = sent(&permit, &tasks).await;
    for _ in 0..3 {
        store.plan("settle operation", CallPlan::Fail(broken()));
    }
    drop(first);
    tokio::time::sleep(SETTLE * 3).await;
    let _ = unknown(begin(&permit, "second", &tasks).await);
}

/// The first attempt may have taken effect: that the second one has not says nothing of it.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_made_again_leaves_the_outcome_unknown() {
    let (store, tasks, permit) = admitted().await;
    drop(sent(&permit, &tasks).await);
    tokio::time::sleep(SETTLE * 2).await;
    for (name, lost) in [("second", false), ("third", true)] {
        let last = unknown(begin(&permit, name, &tasks).await);
        if lost {
            store.plan("settle operation", CallPlan::Fail(broken()));
        }
        let again = last.retake(true).await.expect("an answer");
        again.expect("its turn").give_back().await;
        tokio::time::sleep(SETTLE).await;
        assert_eq!(
            on_record(&store).map(|row| row.1),
            Some(OperationState::Settled)
        );
    }
}
