//! Overrides and resolves beside other instances. What each answers is tested with the admin port.

use std::sync::Arc;

use tokio::sync::Notify;

use super::*;
use crate::fencing::tests::rows::Mark;
use crate::fencing::tests::{CallPlan, LOSS, Rig, alone, key, pair, signed, token};
use crate::store::{InstanceId, Terms};

async fn lower(rig: &Rig, number: i64) -> Override {
    let (key, by) = (key("a"), signed("why", "who"));
    let done = rig.override_mark(&key, token(number), &by);
    done.await.expect("an answer")
}

fn is_done(done: &Override, era: i64) -> bool {
    matches!(done, Override::Done { era: new, .. } if *new == era)
}

#[tokio::test(start_paused = true)]
async fn an_override_cedes_what_is_idle_here_and_elsewhere() {
    let (store, one, two) = pair().await;
    assert!(one.open("a", 5).await.is_ok());
    assert!(two.open("a", 5).await.is_ok());
    one.run();
    two.run();
    let done = lower(&one, 3).await;
    assert!(is_done(&done, 1), "{done:?}");
    assert_eq!((store.mark_of(&key("a")), one.known("a")), (Some(3), None));
    assert!(one.open("a", 4).await.is_ok());
    assert!(one.passes("a", 4));
    assert_eq!(
        two.open("a", 5).await,
        Ok(true),
        "it has forgotten the mark"
    );
}

#[tokio::test(start_paused = true)]
async fn an_override_is_refused_while_something_is_in_flight() {
    let (store, one, two) = pair().await;
    two.run();
    one.run();
    for rig in [&one, &two] {
        let permit = rig.admit("a", 5).await;
        let Override::EpochsOpen(open) = lower(&one, 3).await else {
            panic!("it is in flight")
        };
        assert_eq!(open.len(), 1);
        assert_eq!(open[0].instance, rig.instance());
        drop(permit);
    }
    // An epoch of a dead instance is never ceded, even if a notification names it.
    assert!(two.open("a", 5).await.is_ok());
    {
        let mut rows = store.rows();
        let (id, renewals) = (two.instance(), i64::MAX);
        rows.instances
            .get_mut(&id)
            .expect("a row")
            .row
            .terms
            .renewals = renewals;
        assert!(rows.declare_dead(id, renewals));
    }
    one.round().await;
    let began = Instant::now();
    assert!(matches!(lower(&one, 3).await, Override::EpochsOpen(_)));
    assert_eq!(began.elapsed(), Duration::ZERO, "known to be pointless");
}

#[tokio::test(start_paused = true)]
async fn an_override_does_not_cede_the_opening_of_a_statement_without_an_answer() {
    let (store, one) = alone().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::HoldAnswer(Arc::clone(&go)));
    let permit = one.spawn_admit("a", 5);
    store.until("advance", 1).await;
    assert!(matches!(lower(&one, 3).await, Override::EpochsOpen(_)));
    assert_eq!(store.open(&key("a")), [5]);
    go.notify_one();
    drop(permit.await.expect("a permit"));
    assert!(is_done(&lower(&one, 3).await, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_of_a_dead_instance_is_resolved_unless_its_row_is_locked() {
    let (store, one) = alone().await;
    let dead = InstanceId::from_bits(7);
    {
        let mut rows = store.rows();
        rows.join(dead, &Terms::default()).expect("a new id");
        assert!(rows.declare_dead(dead, 0));
        let mut mark = Mark::at(token(41));
        mark.open.push(Epoch {
            instance: dead,
            opening: 3,
            token: token(41),
        });
        rows.marks.insert(key("a"), mark);
    }
    one.run();
    assert!(one.open("a", 42).await.is_ok());
    one.round().await;
    let id = format!("{dead}/3");
    let view = one.view(&key("a")).await.expect("read").expect("a mark");
    assert_eq!(
        (
            view.activity.unknown.len(),
            view.activity.unknown[0].id.as_str()
        ),
        (1, &*id)
    );
    assert!(
        view.activity.unknown[0]
            .settles_in_seconds
            .is_some_and(|left| left <= LOSS.as_secs_f64())
    );
    store.rows().locked.insert(key("a"));
    let refused = one.resolve(&key("a"), &id, &signed("seen", "me")).await;
    assert!(
        matches!(refused, Err(OperatorError::Refused(_))),
        "{refused:?}"
    );
    store.rows().locked.clear();
    assert!(!one.passes("a", 42));
    let resolved = one.resolve(&key("a"), &id, &signed("seen", "me")).await;
    assert!(resolved.is_ok_and(|found| found));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(one.passes("a", 42), "its row is read at once");
    let again = one.resolve(&key("a"), &id, &signed("seen", "me")).await;
    assert!(again.is_ok_and(|found| !found));
}
