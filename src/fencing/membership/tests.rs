//! The membership task over a store in memory: joins and rejoins, routes, deaths, notifications,
//! repairs. Its rounds are stepped by hand, or it runs on tokio's clock.

use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::Notify;

use super::*;
use crate::config::RouteTable;
use crate::fencing::epochs::{Ending, Entered, Ticket};
use crate::fencing::refused::Refused;
use crate::fencing::tests::rows::Rows;
use crate::fencing::tests::{
    CallPlan, DEATH, Double, LOSS, ROOM, Rig, SETTLE, SILENCE, TERM, UNDELIVERED, alone,
    assert_repairing, broken, clock, key, pair, rig, signed, token,
};
use crate::metrics::DecidedBy;
use crate::routing::Token;
use crate::store::{Administration, Heard, Instances, Notification, Override, Publication};

mod deaths;
mod notifications;
mod rejoins;

const MOMENT: Duration = Duration::from_millis(1);

fn recall(rig: &Rig, on: &str, number: i64) -> Result<bool, Refused> {
    rig.recall(&key(on), token(number), Instant::now())
}

/// A permit, and the name to end it by.
fn permit(rig: &Rig, on: &str, number: i64) -> Ticket {
    match rig.enter(on, number) {
        Ok(Entered::Permit(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

fn end(rig: &Rig, on: &str, ticket: &Ticket) {
    let now = Instant::now();
    rig.epoch_table.end(&key(on), ticket, Ending::Settled, now);
}

fn waits(rig: &Rig, on: &str, number: i64) -> bool {
    matches!(rig.enter(on, number), Ok(Entered::Wait { .. }))
}

/// An instance's row, whatever its state.
fn row(store: &Double, id: InstanceId) -> crate::store::InstanceRow {
    store.rows().instances[&id].row.clone()
}

/// Declared dead by another instance, and settled.
fn bury(store: &Double, id: InstanceId) {
    let at = row(store, id).terms.renewals;
    let mut rows = store.rows();
    assert!(rows.declare_dead(id, at) && rows.settle(id));
}

#[tokio::test(start_paused = true)]
async fn a_join_in_doubt_is_tried_again_under_another_id() {
    let store = Arc::new(Double::default());
    let rig = Rig::assemble(Arc::clone(&store) as _, 3, clock(), ROOM);
    let membership = rig.membership();
    store.plan("join", CallPlan::Lose);
    assert!(membership.join().await.is_err());
    assert!(!rig.lease.valid() && !rig.lease.begun());
    membership.join().await.expect("another id");
    assert!(rig.lease.valid());
    assert_ne!(rig.lease.identity().instance, InstanceId::from_bits(3));
}

#[tokio::test(start_paused = true)]
async fn who_was_declared_dead_goes_on_under_a_new_id_and_forgets() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    assert!(rig.open("a", 5).await.is_ok());
    assert!(rig.open("b", 10).await.is_ok());
    let held = permit(&rig, "a", 5);
    // Declared dead, settled, and the mark of b overridden, all unnoticed; and the era comes by a
    // statement first.
    let me = rig.instance();
    bury(&store, me);
    let done = store
        .override_mark(&key("b"), token(3), &signed("why", "who"))
        .await;
    assert!(matches!(done, Ok(Override::Done { era: 1, .. })));
    rig.epoch_table.adopt(1);
    assert_eq!(rig.known("b"), Some(10), "not known to be dead yet");
    // No instance is recorded as settled sooner.
    tokio::time::advance(TERM + SETTLE).await;
    membership.round().await.expect("a round");
    assert_eq!(rig.lease.incarnation(), 1);
    assert_ne!(rig.instance(), me);
    assert_eq!(rig.instance().name(), me.name());
    assert_eq!(rig.known("b"), None);
    assert_eq!(rig.open("b", 4).await, Ok(true));
    // The permit of the incarnation before still counts, and gives no other.
    assert!(matches!(rig.enter("a", 5), Ok(Entered::NotOpen)));
    assert!(rig.open("a", 6).await.is_ok());
    assert!(waits(&rig, "a", 6));
    end(&rig, "a", &held);
    assert!(rig.passes("a", 6));
}

/// A failover has lost an override: the namespace's era is below the one that instances know.
#[tokio::test(start_paused = true)]
async fn an_era_that_a_failover_has_lost_is_raised_again() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    rig.epoch_table.adopt(2);
    store.rows().era = 1;
    membership.round().await.expect("a round");
    assert_eq!(store.rows().era, 2);
    assert_eq!(store.calls("raise_era"), 1);
    membership.round().await.expect("a round");
    assert_eq!(store.calls("raise_era"), 1, "and not once more");
}

fn served(resource: &str) -> (String, Arc<RouteRecord>) {
    let document = format!(
        r#"{{"version":1,"unmatched":"refuse","routes":[{{"path":"/o/{{id}}","mode":"enforce",
        "methods":["POST","PUT"],"resource":"{resource}:{{id}}","safe_methods":"optional",
        "token_format":"decimal","reuse":"allow","allow":[]}}]}}"#
    );
    let table = RouteTable::from_document(&document).expect("a good table");
    let gauge = IntGauge::new("mismatch", "of a test").expect("good options");
    (
        table.to_document(),
        Arc::new(RouteRecord::new(table, gauge)),
    )
}

#[tokio::test(start_paused = true)]
async fn who_serves_other_routes_than_those_on_record_does_not_join() {
    let store = Arc::new(Double::default());
    let (old, _) = served("old");
    let (new, routes) = served("new");
    let rig = Rig::assemble(Arc::clone(&store) as _, 3, clock(), ROOM);
    let membership = rig.membership_with(routes);
    store.rows().routes = Some(old.clone());
    let refused = membership.join().await.expect_err("it has other keys");
    assert!(matches!(refused, StoreError::Unfit(_)), "{refused}");
    assert!(!rig.lease.begun() && store.calls("join") == 0);

    // Replaced after it had looked, before it was on record.
    store.rows().routes = Some(new);
    let go = Arc::new(Notify::new());
    store.plan("join", CallPlan::Hold(Arc::clone(&go)));
    let (joined, ()) = tokio::join!(membership.join(), async {
        store.until("join", 1).await;
        store.rows().routes = Some(old);
        go.notify_one();
    });
    let refused = joined.expect_err("it has other keys");
    assert!(matches!(refused, StoreError::Unfit(_)), "{refused}");
    assert!(!rig.lease.begun());
    assert!(store.rows().instances().is_empty(), "it has settled");
}

#[tokio::test(start_paused = true)]
async fn who_was_dead_does_not_come_back_with_routes_that_were_replaced() {
    let (store, rig) = alone().await;
    let (old, routes) = served("old");
    let membership = rig.membership_with(routes);
    store.rows().routes = Some(old.clone());
    membership.round().await.expect("a round");
    bury(&store, rig.instance());
    let left = store.replace_routes(&served("new").0).await;
    assert_eq!(left.expect("replaced"), []);
    tokio::time::advance(TERM + SETTLE + SETTLE).await;
    let refused = membership
        .round()
        .await
        .expect_err("the keys are others now");
    assert!(matches!(refused, StoreError::Unfit(_)), "{refused}");
    assert!(!rig.lease.valid() && store.rows().instances().is_empty());
    store.rows().routes = Some(old);
    membership.round().await.expect("a round");
    assert!(rig.lease.valid());
}

#[tokio::test(start_paused = true)]
async fn another_live_route_table_is_noticed_and_its_own_is_told() {
    let (store, one, two) = pair().await;
    let (_, routes) = served("a");
    let membership = one.membership_with(Arc::clone(&routes));
    let (me, other) = (one.instance(), two.instance());
    membership.round().await.expect("a round");
    assert_eq!(row(&store, me).terms.routes, routes.digest());
    for (digest, dead, differs) in [
        (routes.digest(), false, false),
        ("another".to_owned(), false, true),
        ("another".to_owned(), true, false),
    ] {
        {
            let mut rows = store.rows();
            let row = &mut rows.instances.get_mut(&other).expect("a row").row;
            (row.terms.routes, row.dead) = (digest, dead);
        }
        membership.round().await.expect("a round");
        let expected: &[InstanceId] = if differs { &[other] } else { &[] };
        assert_eq!(routes.others(), expected);
    }
}

/// An idle epoch costs no statement of its own.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_ends_what_is_idle() {
    let (store, rig) = alone().await;
    rig.run();
    assert!(rig.open("idle", 5).await.is_ok());
    assert!(rig.open("busy", 5).await.is_ok());
    let _held = permit(&rig, "busy", 5);
    tokio::time::sleep(Duration::from_secs(7)).await;
    let open = ["idle", "busy"].map(|on| store.open(&key(on)).len());
    assert_eq!(open, [0, 1]);
    assert_eq!((store.calls("advance"), store.calls("cede")), (2, 0));
    assert_eq!(rig.open("idle", 5).await, Ok(false));
    assert!(rig.passes("idle", 5));
}

#[tokio::test(start_paused = true)]
async fn counted_pieces_add_up_and_the_next_count_begins_at_the_start() {
    let (store, rig) = alone().await;
    for on in ["a", "b", "c", "d", "e"] {
        assert!(rig.open(on, 5).await.is_ok());
    }
    let (counting, marks) = (rig.membership(), rig.metrics().series.marks.clone());
    tokio::spawn(async move { counting.counting().await });
    for piece in 1..=2 {
        store.arrived("count_marks", piece).await;
        assert_eq!(marks.get(), 0, "not all have been counted");
    }
    store.arrived("count_marks", 3).await;
    assert_eq!(marks.get(), 5);
    assert!(rig.open("f", 5).await.is_ok());
    store.plan("count_marks", CallPlan::Fail(broken()));
    store.arrived("count_marks", 6).await;
    assert_eq!(marks.get(), 5, "as of the last whole count");
    // The failed piece is counted again; the fourth has no marks.
    store.arrived("count_marks", 7).await;
    assert_eq!(marks.get(), 5);
    store.arrived("count_marks", 8).await;
    assert_eq!(marks.get(), 6);
}
