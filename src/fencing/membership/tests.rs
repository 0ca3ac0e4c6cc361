//! The membership task, its rounds stepped by hand: rejoin, death, reaping, and the start over a
//! file that another run has left.

use crate::store::{Administration, Instances};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::Notify;

use super::*;
use crate::boot_clock::BootClock;
use crate::config::RouteTable;
use crate::fencing::epochs::Recalled;
use crate::fencing::epochs::{Ending, Entered};
use crate::fencing::refused::Refused;
use crate::fencing::tests::{
    CallPlan, DEATH, Double, LOSS, ROOM, Rig, SETTLE, SILENCE, TERM, UNDELIVERED, alone,
    assert_repairing, broken, clock, key, pair, rig, token,
};
use crate::fencing::writer::Want;
use crate::metrics::DecidedBy;
use crate::routing::{ResourceKey, Token};
use crate::store::Notification;
use crate::store::Override;
use crate::store::sqlite::SqliteStore;

const MOMENT: Duration = Duration::from_millis(1);

async fn open(rig: &Rig, on: &ResourceKey, number: i64) -> Result<bool, Refused> {
    rig.writer.append(on, token(number), Want::Open).await
}

/// A round, and the burials that it asks for.
async fn step(membership: &Membership) {
    membership.round().await.expect("a round");
    step_reaping(membership).await;
}

async fn step_reaping(membership: &Membership) {
    let mut progress_of = HashMap::new();
    while membership.reap_one(&mut progress_of).await.is_some() {}
}

fn enter(rig: &Rig, on: &ResourceKey, number: Token) -> Result<Entered, Refused> {
    let now = rig.lease.clock().now();
    let left = |id: &InstanceId| rig.detector.settles_in(id, now);
    rig.epoch_table
        .enter(on, number, rig.lease.incarnation(), left)
}

#[tokio::test(start_paused = true)]
async fn a_join_in_doubt_is_tried_again_under_another_id() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 2).await;
    let membership = Membership {
        lease: Arc::new(Lease::new(clock(), Some(TERM), InstanceId::from_bits(3))),
        ..rig.membership()
    };
    store.plan("join", CallPlan::Lose);
    assert!(membership.join().await.is_err());
    assert!(!membership.lease.valid() && !membership.lease.begun());
    membership.join().await.expect("another id");
    assert!(membership.lease.valid());
    assert_ne!(
        membership.lease.identity().instance,
        InstanceId::from_bits(3)
    );
}

#[tokio::test(start_paused = true)]
async fn who_was_declared_dead_goes_on_under_a_new_id_and_forgets() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let (a, b) = (key("a"), key("b"));
    assert!(open(&rig, &a, 5).await.is_ok());
    assert!(open(&rig, &b, 10).await.is_ok());
    let Ok(Entered::Permit(ticket)) = enter(&rig, &a, token(5)) else {
        panic!("no permit")
    };
    // Declared dead, reaped, and the mark of b overridden, all unnoticed; and the era comes by a
    // statement first.
    let me = rig.lease.identity().instance;
    assert!(store.declare_dead(&me, 0).await.expect("declared"));
    store.bury(&me, &[], None).await.expect("buried");
    let done = store.override_mark(&b, token(3), "why", "who").await;
    assert!(matches!(done, Ok(Override::Done { era: 1, .. })));
    rig.epoch_table.adopt(1);
    assert_eq!(
        rig.epoch_table.known(&b),
        Some(token(10)),
        "not known to be dead yet"
    );
    // No instance is reaped sooner.
    tokio::time::advance(TERM + SETTLE).await;
    membership.round().await.expect("a round");
    assert_eq!(rig.lease.incarnation(), 1);
    assert_ne!(rig.lease.identity().instance, me);
    assert_eq!(rig.epoch_table.known(&b), None);
    assert_eq!(open(&rig, &b, 4).await, Ok(true));
    // The permit of the incarnation before still counts, and gives no other.
    assert!(matches!(enter(&rig, &a, token(5)), Ok(Entered::NotOpen)));
    assert!(open(&rig, &a, 6).await.is_ok());
    assert!(matches!(
        enter(&rig, &a, token(6)),
        Ok(Entered::Wait { known_left: None })
    ));
    rig.epoch_table.end(&a, &ticket, Ending::Settled);
    assert!(matches!(enter(&rig, &a, token(6)), Ok(Entered::Permit(_))));
}

/// A failover has lost an override: the namespace's era is below the one that instances know.
#[tokio::test(start_paused = true)]
async fn an_era_that_a_failover_has_lost_is_raised_again() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    rig.epoch_table.adopt(2);
    store.state().era = 1;
    membership.round().await.expect("a round");
    assert_eq!(store.state().era, 2);
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
    let rig = rig(&store, 2).await;
    store.state().instances.clear();
    let membership = Membership {
        lease: Arc::new(Lease::new(clock(), Some(TERM), InstanceId::from_bits(3))),
        ..rig.membership_with(routes)
    };
    store.state().routes = Some(old.clone());
    let refused = membership.join().await.expect_err("it has other keys");
    assert!(matches!(refused, StoreError::Unfit(_)), "{refused}");
    assert!(
        !membership.lease.begun() && store.calls("join") == 1,
        "the rig's own"
    );

    // Replaced after it had looked, before it was on record.
    store.state().routes = Some(new);
    let go = Arc::new(Notify::new());
    store.plan("join", CallPlan::Hold(Arc::clone(&go)));
    let (joined, ()) = tokio::join!(membership.join(), async {
        store.until("join", 2).await;
        store.state().routes = Some(old);
        go.notify_one();
    });
    let refused = joined.expect_err("it has other keys");
    assert!(matches!(refused, StoreError::Unfit(_)), "{refused}");
    assert!(!membership.lease.begun());
    assert!(store.state().instances.is_empty(), "it leaves no trace");
}

#[tokio::test(start_paused = true)]
async fn who_was_dead_does_not_come_back_with_routes_that_were_replaced() {
    let (store, rig) = alone().await;
    let (old, routes) = served("old");
    let membership = rig.membership_with(routes);
    store.state().routes = Some(old.clone());
    membership.round().await.expect("a round");
    let me = rig.lease.identity().instance;
    let renewals = store.state().instances[&me].renewals;
    assert!(store.declare_dead(&me, renewals).await.expect("declared"));
    store.bury(&me, &[], None).await.expect("buried");
    let left = store.replace_routes(&served("new").0).await;
    assert_eq!(left.expect("replaced"), []);
    tokio::time::advance(TERM + SETTLE + SETTLE).await;
    let refused = membership
        .round()
        .await
        .expect_err("the keys are others now");
    assert!(matches!(refused, StoreError::Unfit(_)), "{refused}");
    assert!(!rig.lease.valid() && store.state().instances.is_empty());
    store.state().routes = Some(old);
    membership.round().await.expect("a round");
    assert!(rig.lease.valid());
}

#[tokio::test(start_paused = true)]
async fn another_live_route_table_is_noticed_and_its_own_is_told() {
    let (store, one, two) = pair().await;
    let (_, routes) = served("a");
    let membership = one.membership_with(Arc::clone(&routes));
    let me = one.lease.identity().instance;
    let other = two.lease.identity().instance;
    let row = |id: &InstanceId| store.state().instances[id].clone();
    membership.round().await.expect("a round");
    assert_eq!(row(&me).routes, routes.digest());
    for (digest, dead, differs) in [
        (routes.digest(), false, false),
        ("another".to_owned(), false, true),
        ("another".to_owned(), true, false),
    ] {
        {
            let mut state = store.state();
            let row = state.instances.get_mut(&other).expect("it is there");
            (row.routes, row.dead) = (digest, dead);
        }
        membership.round().await.expect("a round");
        let expected: &[InstanceId] = if differs {
            std::slice::from_ref(&other)
        } else {
            &[]
        };
        assert_eq!(routes.others(), expected);
    }
    assert_eq!(store.calls("set_routes"), 1);
}

mod notifications;
mod reaping;
mod rejoins;
