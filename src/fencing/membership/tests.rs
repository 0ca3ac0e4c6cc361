//! The membership task, its rounds stepped by hand: rejoin, death, burial, and the start over a file that another run
//! has left.

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
use crate::fencing::double::{
    Act, DEATH, Double, LOSS, ROOM, Rig, SETTLE, SILENCE, TERM, UNDELIVERED, broken, clock, key,
    token,
};
use crate::fencing::epochs::{Ending, Entered, Look};
use crate::fencing::writer::WriterError;
use crate::fencing::writer::{Answer, Want};
use crate::routing::{ResourceKey, Token};
use crate::store::Notification;
use crate::store::Override;
use crate::store::sqlite::SqliteStore;

const MOMENT: Duration = Duration::from_millis(1);

async fn rig(store: &Arc<Double>, id: u128) -> Rig {
    Rig::new(Arc::clone(store) as _, id, clock()).await
}

async fn open(rig: &Rig, on: &ResourceKey, number: i64) -> Result<Answer, WriterError> {
    rig.writer.ask(on, token(number), Want::Open).await
}

/// A round, and the burials that it asks for.
async fn step(membership: &Membership) {
    membership.round().await.expect("a round");
    step_burials(membership).await;
}

async fn step_burials(membership: &Membership) {
    let mut graves = HashMap::new();
    while membership.bury_one(&mut graves).await.is_some() {}
}

fn enter(rig: &Rig, on: &ResourceKey, number: Token) -> Entered {
    let now = rig.lease.clock().now();
    let left = |id: &InstanceId| rig.detector.settles_in(id, now);
    rig.epoch_table
        .enter(on, number, rig.lease.generation(), left)
}

#[tokio::test(start_paused = true)]
async fn a_join_in_doubt_is_tried_again_under_another_id() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 2).await;
    let membership = Membership {
        lease: Arc::new(Lease::new(clock(), Some(TERM), InstanceId::from_bits(3))),
        ..rig.membership()
    };
    store.plan("join", Act::Lose);
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
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let membership = rig.membership();
    let (a, b) = (key("a"), key("b"));
    assert!(open(&rig, &a, 5).await.is_ok());
    assert!(open(&rig, &b, 10).await.is_ok());
    let Entered::Permit(ticket) = enter(&rig, &a, token(5)) else {
        panic!("no permit")
    };
    // Declared dead, buried, and the mark of b overridden, all unnoticed; and the era comes by a statement first.
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
    // Nobody is buried sooner.
    tokio::time::advance(TERM + SETTLE).await;
    membership.round().await.expect("a round");
    assert_eq!(rig.lease.generation(), 1);
    assert_ne!(rig.lease.identity().instance, me);
    assert_eq!(rig.epoch_table.known(&b), None);
    assert_eq!(
        open(&rig, &b, 4).await.expect("granted"),
        Answer::Granted { advanced: true }
    );
    // The permit of the generation before still counts, and gives no other.
    assert!(matches!(enter(&rig, &a, token(5)), Entered::NotOpen));
    assert!(open(&rig, &a, 6).await.is_ok());
    assert!(matches!(
        enter(&rig, &a, token(6)),
        Entered::Wait { known_left: None }
    ));
    rig.epoch_table.end(&a, &ticket, Ending::Settled);
    assert!(matches!(enter(&rig, &a, token(6)), Entered::Permit(_)));
}

/// A failover has lost an override: the namespace's era is below the one that instances know.
#[tokio::test(start_paused = true)]
async fn an_era_that_a_failover_has_lost_is_raised_again() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
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
        "methods":null,"resource":"{resource}:{{id}}","safe_methods":"optional",
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
        routes,
        ..rig.membership()
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
    store.plan("join", Act::Hold(Arc::clone(&go)));
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
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let (old, routes) = served("old");
    let membership = Membership {
        routes,
        ..rig.membership()
    };
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
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let (_, routes) = served("a");
    let membership = Membership {
        routes: Arc::clone(&routes),
        ..one.membership()
    };
    let me = one.lease.identity().instance;
    let other = two.lease.identity().instance;
    let row = |id: &InstanceId| store.state().instances[id].clone();
    membership.round().await.expect("a round");
    assert_eq!(row(&me).routes, routes.digest());
    for (digest, dead, differs) in [
        (routes.digest(), false, false),
        ("another".to_owned(), false, true),
        (String::new(), false, false),
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

/// An old backup, say. What this instance knows tells what else was lost, so it must not be forgotten.
#[tokio::test(start_paused = true)]
async fn an_instance_that_the_store_has_lost_is_recorded_again_and_forgets_nothing() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let membership = rig.membership();
    let (a, me) = (key("a"), rig.lease.identity().instance);
    assert!(open(&rig, &a, 5).await.is_ok());
    rig.epoch_table.learn(&key("b"), token(9), 0, false);
    store.state().instances.clear();
    membership.round().await.expect("a round");
    assert_eq!(rig.lease.identity().instance, me);
    assert_eq!(rig.lease.generation(), 0);
    assert!(store.state().instances.contains_key(&me));
    assert_eq!(rig.epoch_table.known(&a), Some(token(5)));
    assert_eq!(rig.epoch_table.known(&key("b")), Some(token(9)));
}

/// It may have been declared dead and buried; then its epochs protect nothing any more.
#[tokio::test(start_paused = true)]
async fn an_instance_that_may_have_been_buried_goes_on_under_a_new_id() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let membership = rig.membership();
    let me = rig.lease.identity().instance;
    rig.epoch_table.learn(&key("b"), token(9), 0, false);
    store.state().instances.clear();
    tokio::time::advance(TERM + SETTLE).await;
    membership.round().await.expect("a round");
    assert_ne!(rig.lease.identity().instance, me);
    assert_eq!(rig.epoch_table.known(&key("b")), None);
}

/// The renewal was sent in time, and waited; what counts is when its answer came.
#[tokio::test(start_paused = true)]
async fn an_instance_that_is_buried_while_it_renews_goes_on_under_a_new_id() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let me = rig.lease.identity().instance;
    tokio::time::advance((TERM + SETTLE).saturating_sub(MOMENT)).await;
    let go = Arc::new(Notify::new());
    store.plan("renew", Act::Hold(Arc::clone(&go)));
    let membership = rig.membership();
    let round = tokio::spawn(async move { membership.round().await });
    store.until("renew", 1).await;
    store.state().instances.clear();
    tokio::time::advance(2 * MOMENT).await;
    go.notify_one();
    round.await.expect("no panic").expect("a round");
    assert_ne!(rig.lease.identity().instance, me);
    assert_eq!(rig.lease.generation(), 1);
}

/// Its counter stood at 3 when a watcher read it, and never does again: the watcher would take it for dead.
#[tokio::test(start_paused = true)]
async fn a_renewal_number_never_comes_back() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let membership = rig.membership();
    let me = rig.lease.identity().instance;
    let counter = |store: &Double| store.state().instances[&me].renewals;
    let mut seen = vec![counter(&store)];
    for _ in 0..3 {
        membership.round().await.expect("a round");
        seen.push(counter(&store));
    }
    // This one may still be committed, by whatever server has it.
    store.plan("renew", Act::Late);
    assert!(membership.round().await.is_err());
    store.state().instances.clear();
    for _ in 0..5 {
        membership.round().await.expect("a round");
        seen.push(counter(&store));
    }
    store.commit_late();
    seen.push(counter(&store));
    let before = seen[3];
    assert!(
        seen[4..].iter().all(|number| *number > before + 1),
        "{seen:?}"
    );
    assert!(
        seen.is_sorted(),
        "the late one moves nothing back: {seen:?}"
    );
    // A failover that has lost the latest of them.
    let lost = *seen.last().expect("some");
    store
        .state()
        .instances
        .get_mut(&me)
        .expect("a row")
        .renewals = 2;
    membership.round().await.expect("a round");
    assert!(counter(&store) > lost);
}

/// No read has failed, but it is another server that answers.
#[tokio::test(start_paused = true)]
async fn the_watch_begins_again_over_another_connection() {
    let store = Arc::new(Double::default());
    let (_one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let membership = two.membership();
    let dead = |store: &Double| store.state().instances[&InstanceId::from_bits(1)].dead;
    membership.round().await.expect("a round");
    tokio::time::sleep(SILENCE).await;
    store.state().instances_over += 1;
    membership.round().await.expect("a round");
    assert!(!dead(&store), "its counter may only be behind there");
    tokio::time::sleep(SILENCE).await;
    membership.round().await.expect("a round");
    assert!(dead(&store));
}

/// Not at the next look at the clock.
#[tokio::test(start_paused = true)]
async fn the_cutoff_comes_when_it_is_due() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let joined = Instant::now();
    for _ in 0..1000 {
        store.plan("renew", Act::Fail(broken()));
    }
    let stop = CancellationToken::new();
    tokio::spawn(rig.membership().run(stop.clone()));
    rig.lease.identity().cutoff.cancelled().await;
    let after = joined.elapsed();
    let due = TERM + UNDELIVERED;
    assert!(due <= after && after <= due + 2 * MOMENT, "{after:?}");
    stop.cancel();
}

/// Every socket of the generation before is dead to writes, and what still waits for an answer has the rest of
/// its time.
#[tokio::test(start_paused = true)]
async fn after_a_rejoin_the_cutoff_of_before_comes_when_it_is_due() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let joined = Instant::now();
    let before = rig.lease.identity();
    tokio::time::sleep(TERM + UNDELIVERED / 2).await;
    store
        .declare_dead(&before.instance, 0)
        .await
        .expect("declared");
    let stop = CancellationToken::new();
    tokio::spawn(rig.membership().run(stop.clone()));
    before.cutoff.cancelled().await;
    assert_eq!(rig.lease.generation(), 1);
    let after = joined.elapsed();
    let due = TERM + UNDELIVERED;
    assert!(due <= after && after <= due + 2 * MOMENT, "{after:?}");
    stop.cancel();
}

/// The failover has lost its epoch, so that nothing stood in the way; and the era is known here before the loss is.
#[tokio::test(start_paused = true)]
async fn an_override_of_what_a_failover_has_laid_open_is_not_undone() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let membership = rig.membership();
    let a = key("a");
    assert!(open(&rig, &a, 50).await.is_ok());
    store.state().epochs.clear();
    let done = store.override_mark(&a, token(10), "why", "who").await;
    assert!(matches!(done, Ok(Override::Done { era: 1, .. })));
    membership.round().await.expect("a round");
    assert_eq!(rig.epoch_table.era(), 1);
    rig.writer.reconcile();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.mark_of(&a), Some(10));
    assert!(matches!(enter(&rig, &a, token(50)), Entered::Barred(_)));
    tokio::time::sleep(LOSS).await;
    rig.lease.renewed(rig.lease.clock().now());
    assert!(open(&rig, &a, 11).await.is_ok());
    assert_eq!(store.mark_of(&a), Some(11));
}

/// A failover that is over between two renewals fails none of them.
#[tokio::test(start_paused = true)]
async fn epochs_are_looked_for_after_every_new_connection() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(rig.membership().run(stop.clone()));
    let a = key("a");
    assert!(open(&rig, &a, 5).await.is_ok());
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("own_of"), 0);
    {
        let mut state = store.state();
        state.epochs.clear();
        state.connections += 1;
    }
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("own_of"), 1);
    assert_eq!(store.open(&a), [(1, 5)], "recorded again");
    assert!(matches!(enter(&rig, &a, token(5)), Entered::Barred(_)));
    stop.cancel();
    running.await.expect("ended");
}

/// The failover has lost only that; the token would pass at any other proxy, and nobody asks this one.
#[tokio::test(start_paused = true)]
async fn what_is_spent_is_looked_for_after_every_new_connection() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(rig.membership().run(stop.clone()));
    for on in ["a", "b"] {
        let on = key(on);
        assert!(open(&rig, &on, 5).await.is_ok());
        let spent = rig.writer.ask(&on, token(5), Want::Spend("x".into()));
        assert!(spent.await.is_ok());
    }
    assert!(rig.writer.give_back(&key("b"), token(5), "x".into()).await);
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("marks"), 0);
    {
        let mut state = store.state();
        state.marks.get_mut(&key("a")).expect("a mark").1 = None;
        state.connections += 1;
    }
    tokio::time::sleep(TERM).await;
    assert_eq!(store.state().marks[&key("a")].1.as_deref(), Some("x"));
    assert_eq!(rig.meters.regressions.get(), 1);
    assert!(matches!(
        enter(&rig, &key("a"), token(5)),
        Entered::Barred(_)
    ));
    assert!(matches!(
        enter(&rig, &key("b"), token(5)),
        Entered::Permit(_)
    ));
    stop.cancel();
    running.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_everybody_ends_with_the_same_id_and_no_cut() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(rig.membership().run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rig.lease.valid());
    for _ in 0..400 {
        store.plan("renew", Act::Fail(broken()));
    }
    let before = rig.lease.identity();
    tokio::time::sleep(TERM + SETTLE + Duration::from_secs(1)).await;
    assert!(!rig.lease.valid());
    assert!(before.cutoff.is_cancelled(), "exchanges were cut");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(rig.lease.valid());
    let after = rig.lease.identity();
    assert_eq!((after.instance, after.generation), (before.instance, 0));
    assert!(!after.cutoff.is_cancelled());
    stop.cancel();
    running.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn a_silent_instance_is_declared_dead_settles_and_is_buried() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    assert!(open(&two, &a, 6).await.is_ok());
    let membership = two.membership();
    let dead = |store: &Double| store.state().instances[&InstanceId::from_bits(1)].dead;
    step(&membership).await;
    tokio::time::sleep(SILENCE.saturating_sub(MOMENT)).await;
    step(&membership).await;
    assert!(
        !dead(&store),
        "a whole lease has not passed on the owner's clock"
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    // A failed read starts the watch anew.
    store.plan("instances", Act::Fail(broken()));
    assert!(membership.round().await.is_err());
    two.detector.interrupted();
    step(&membership).await;
    assert!(!dead(&store));
    tokio::time::sleep(SILENCE).await;
    step(&membership).await;
    assert!(dead(&store));
    assert!(matches!(
        enter(&two, &a, token(6)),
        Entered::Wait { known_left: Some(left) } if left == DEATH
    ));
    tokio::time::sleep(DEATH.saturating_sub(MOMENT)).await;
    step(&membership).await;
    assert_eq!(store.open(&a).len(), 2, "not settled yet");
    tokio::time::sleep(Duration::from_millis(1)).await;
    step(&membership).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.open(&a), [(1, 6)]);
    assert!(matches!(enter(&two, &a, token(6)), Entered::Permit(_)));
    // Its counter moves no more.
    assert_eq!(one.membership().round().await.ok(), Some(()));
    assert_eq!(one.lease.generation(), 1);
}

/// Its epochs are many times what one step deletes.
#[tokio::test(start_paused = true)]
async fn a_burial_goes_on_within_its_round_with_what_is_waited_for_first() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    for n in 0..95 {
        assert!(open(&one, &key(&format!("r{n:02}")), 5).await.is_ok());
    }
    let waited = key("r77");
    assert!(open(&two, &waited, 6).await.is_ok());
    let _place = two
        .epoch_table
        .queue(&waited, token(6), ROOM)
        .expect("a place");
    let me = one.lease.identity().instance;
    store.leave(&me).await.expect("left");
    let membership = two.membership();
    step(&membership).await;
    assert_eq!(store.calls("bury"), 0, "it has not settled");
    tokio::time::sleep(DEATH).await;
    let go = Arc::new(Notify::new());
    store.plan("bury", Act::HoldAnswer(Arc::clone(&go)));
    membership.round().await.expect("a round");
    let burial = tokio::spawn(async move { step_burials(&membership).await });
    store.arrived("bury", 1).await;
    assert_eq!(store.open(&waited).len(), 1, "the first step has freed it");
    go.notify_one();
    burial.await.expect("no panic");
    assert_eq!(store.state().epochs.len(), 1);
    let steps = store.order(&["bury"]);
    assert_eq!(steps.len(), 10, "{steps:?}");
    assert_eq!(steps[0], ("bury", 1));
    assert!(matches!(enter(&two, &waited, token(6)), Entered::Permit(_)));
    assert_eq!(store.calls("instances"), 2);
}

/// A failed look says nothing of who is dead, so nobody is buried on the word of the one before.
#[tokio::test(start_paused = true)]
async fn nobody_is_buried_while_the_instances_cannot_be_read() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    assert!(open(&one, &key("a"), 5).await.is_ok());
    let me = one.lease.identity().instance;
    store.leave(&me).await.expect("left");
    for _ in 0..1000 {
        store.plan("bury", Act::Fail(broken()));
    }
    let stop = CancellationToken::new();
    tokio::spawn(two.membership().run(stop.clone()));
    tokio::time::sleep(DEATH + TERM).await;
    assert!(store.calls("bury") > 1);
    for _ in 0..1000 {
        store.plan("instances", Act::Fail(broken()));
    }
    tokio::time::sleep(TERM).await;
    let tried = store.calls("bury");
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("bury"), tried);
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_burial_that_fails_keeps_nobody_else_alive() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    store
        .leave(&one.lease.identity().instance)
        .await
        .expect("left");
    assert!(
        open(&one, &key("a"), 5).await.is_ok(),
        "an epoch of an unknown id"
    );
    for _ in 0..1000 {
        store.plan("bury", Act::Fail(broken()));
    }
    let stop = CancellationToken::new();
    tokio::spawn(two.membership().run(stop.clone()));
    tokio::time::sleep(LOSS + 2 * TERM).await;
    assert!(store.calls("bury") > 1);
    // One that joins only now, and never renews.
    let three = rig(&store, 3).await;
    tokio::time::sleep(3 * TERM).await;
    let three = three.lease.identity().instance;
    assert!(
        store
            .state()
            .instances
            .get(&three)
            .is_none_or(|row| row.dead)
    );
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn the_burials_of_many_do_not_cost_the_lease() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    for id in 2..8 {
        let dead = Rig::new(Arc::clone(&store) as _, id, clock()).await;
        assert!(open(&dead, &key("a"), 5).await.is_ok());
        let dead = dead.lease.identity().instance;
        store.leave(&dead).await.expect("left");
        // A store that takes its time, and still answers.
        let go = Arc::new(tokio::sync::Notify::new());
        store.plan("bury", Act::Hold(Arc::clone(&go)));
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store
                .arrived("bury", usize::try_from(id - 1).expect("few"))
                .await;
            tokio::time::sleep(TERM * 2 / 5).await;
            go.notify_one();
        });
    }
    let stop = CancellationToken::new();
    tokio::spawn(rig.membership().run(stop.clone()));
    let end = Instant::now() + DEATH + 10 * TERM;
    while Instant::now() < end {
        assert!(
            rig.lease.valid(),
            "the lease lapsed over {} burials",
            store.calls("bury")
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(store.open(&key("a")).is_empty(), "all are buried");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_another_has_found_an_instance_dead() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    assert!(open(&two, &a, 6).await.is_ok());
    let membership = two.membership();
    membership.round().await.expect("a round");
    let bell = two.epoch_table.queue(&a, token(6), ROOM).expect("a place");
    let rung = bell.notified();
    let me = one.lease.identity().instance;
    store.leave(&me).await.expect("left");
    membership.round().await.expect("a round");
    tokio::time::timeout(Duration::ZERO, rung)
        .await
        .expect("rung");
}

/// A run over a real file, on a clock that only the test moves.
struct Run {
    rig: Rig,
    membership: Membership,
    store: Arc<SqliteStore>,
    now: Arc<AtomicU64>,
}

impl Run {
    async fn start(path: &std::path::Path, id: u128) -> Self {
        let timeout = Duration::from_mins(1);
        let store = SqliteStore::open(path, timeout, true, "test").await;
        let store = Arc::new(store.expect("opened"));
        let now = Arc::new(AtomicU64::new(1000));
        let read = Arc::clone(&now);
        let clock = BootClock::from_fn(move || Duration::from_millis(read.load(Ordering::SeqCst)));
        let rig = Rig::new(Arc::clone(&store) as _, id, clock).await;
        let membership = rig.membership();
        Self {
            rig,
            membership,
            store,
            now,
        }
    }

    /// As a kill -9 leaves the file: nothing is drained, nobody leaves.
    async fn kill(self) {
        self.store.close().await;
    }

    fn pass(&self, span: Duration) {
        let ms = u64::try_from(span.as_millis()).expect("a short span");
        self.now.fetch_add(ms, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn after_a_crash_only_older_work_is_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("marks.db");
    let (a, b) = (key("a"), key("b"));

    // a: 5 at work, 6 waiting. b: 6 at work alone.
    let first = Run::start(&path, 1).await;
    open(&first.rig, &a, 5).await.expect("granted");
    let five = enter(&first.rig, &a, token(5));
    assert!(matches!(five, Entered::Permit(_)));
    open(&first.rig, &a, 6).await.expect("granted");
    assert!(matches!(
        enter(&first.rig, &a, token(6)),
        Entered::Wait { .. }
    ));
    open(&first.rig, &b, 6).await.expect("granted");
    assert!(matches!(
        enter(&first.rig, &b, token(6)),
        Entered::Permit(_)
    ));
    first.kill().await;

    let second = Run::start(&path, 2).await;
    assert_eq!(
        open(&second.rig, &a, 5).await.expect("an answer"),
        Answer::Stale { mark: token(6) }
    );
    open(&second.rig, &a, 6).await.expect("granted");
    open(&second.rig, &b, 6).await.expect("granted");
    assert!(
        matches!(enter(&second.rig, &b, token(6)), Entered::Permit(_)),
        "alone, so nobody older is waited for"
    );
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Entered::Wait { known_left: None }
    ));
    step(&second.membership).await;
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Entered::Wait { known_left: Some(left) } if left == SETTLE
    ));
    second.pass(SETTLE.saturating_sub(MOMENT));
    step(&second.membership).await;
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Entered::Wait { .. }
    ));
    second.pass(Duration::from_millis(1));
    step(&second.membership).await;
    // The look goes through the writer: once it has answered something later, it is done.
    open(&second.rig, &key("c"), 1).await.expect("granted");
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Entered::Permit(_)
    ));
    second.kill().await;
}

#[tokio::test]
async fn nothing_is_valid_before_the_join_whatever_the_store() {
    let lease = Lease::new(clock(), None, InstanceId::from_bits(1));
    assert!(!lease.valid() && !lease.begun());
}

#[tokio::test(start_paused = true)]
async fn a_lost_notification_costs_a_poll_and_nothing_else() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    store.plan("announce", Act::Fail(broken()));
    assert!(open(&two, &a, 6).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(one.membership().run(stop.clone()));
    tokio::spawn(two.membership().run(stop.clone()));
    assert!(matches!(enter(&two, &a, token(6)), Entered::Wait { .. }));
    assert_eq!(one.epoch_table.look(&a, token(5), 0), Look::Open);
    let _place = two.epoch_table.queue(&a, token(6), ROOM).expect("a place");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(one.epoch_table.look(&a, token(5), 0), Look::Stale(token(6)));
    assert!(matches!(enter(&two, &a, token(6)), Entered::Permit(_)));
    stop.cancel();
}

/// Any login of the database can notify.
#[tokio::test(start_paused = true)]
async fn a_forged_notification_changes_nothing() {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    let (a, b) = (key("a"), key("b"));
    assert!(open(&rig, &a, 5).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(rig.membership().run(stop.clone()));
    tokio::time::sleep(MOMENT).await;
    let statements = store.calls("advance") + store.calls("epochs") + store.calls("close");
    let began = Instant::now();
    for round in 0..1000 {
        for (resource, era) in [(&a, 0), (&b, 0), (&a, round)] {
            store.notify(&Notification::Newer {
                resource: resource.clone(),
                token: Token::MAX,
                era,
                owner: None,
            });
        }
        store.notify(&Notification::Closed {
            resource: a.clone(),
        });
        tokio::time::sleep(MOMENT).await;
    }
    assert_eq!(rig.epoch_table.look(&a, token(5), 0), Look::Open);
    assert_eq!(rig.epoch_table.look(&b, token(5), 0), Look::Ask);
    assert!(matches!(enter(&rig, &a, token(5)), Entered::Permit(_)));
    assert_eq!(
        rig.epoch_table.known(&b),
        None,
        "nothing is remembered of it"
    );
    assert_eq!(
        store.calls("advance") + store.calls("epochs") + store.calls("close"),
        statements
    );
    let most = began.elapsed().as_millis() / 50 + 2;
    assert!(
        store.calls("marks") as u128 <= most,
        "{}",
        store.calls("marks")
    );
    stop.cancel();
}

/// Every such hint names a resource at which an older epoch really is in the way.
#[tokio::test(start_paused = true)]
async fn a_flood_of_hints_that_something_was_closed_costs_a_bounded_number_of_looks() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    assert!(open(&two, &a, 6).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(two.membership().run(stop.clone()));
    tokio::time::sleep(MOMENT).await;
    let (looks, began) = (store.calls("epochs"), Instant::now());
    let closed = Notification::Closed {
        resource: a.clone(),
    };
    for _ in 0..1000 {
        store.notify(&closed);
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    let looks = store.calls("epochs") - looks;
    let most = began.elapsed().as_millis() / 5 + 2;
    assert!((2..=most).contains(&(looks as u128)), "{looks} looks");
    assert!(two.epoch_table.waits_for_others(&a));
    // One that is true is looked into at once.
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.state().epochs.retain(|row| row.token == token(6));
    let (before, began) = (store.calls("epochs"), Instant::now());
    store.notify(&closed);
    store.until("epochs", before + 1).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(MOMENT).await;
    assert!(!two.epoch_table.waits_for_others(&a));
    stop.cancel();
}

/// The owner may be told, close and tell of it before the answer that says that it is waited for has come.
#[tokio::test(start_paused = true)]
async fn a_close_that_is_told_of_before_the_answer_is_looked_into_at_once() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(two.membership().run(stop.clone()));
    tokio::time::sleep(MOMENT).await;
    let began = Instant::now();
    let go = Arc::new(Notify::new());
    store.plan("epochs", Act::HoldAnswer(Arc::clone(&go)));
    let reads = store.calls("epochs");
    let answer = async {
        store.until("epochs", reads + 1).await;
        store.state().epochs.retain(|row| row.token == token(6));
        store.notify(&Notification::Closed {
            resource: a.clone(),
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        go.notify_one();
        store.until("epochs", reads + 2).await;
    };
    let (opened, ()) = tokio::join!(open(&two, &a, 6), answer);
    assert!(opened.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(MOMENT).await;
    assert!(!two.epoch_table.waits_for_others(&a));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_notification_costs_one_read_and_then_the_epoch_closes() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(one.membership().run(stop.clone()));
    tokio::time::sleep(MOMENT).await;
    let began = Instant::now();
    assert!(open(&two, &a, 6).await.is_ok());
    store.until("close", 1).await;
    assert_eq!(store.open(&a), [(1, 6)]);
    assert_eq!((store.calls("marks"), began.elapsed()), (1, Duration::ZERO));
    assert_eq!(one.epoch_table.look(&a, token(5), 0), Look::Stale(token(6)));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_failover_between_two_rounds_is_noticed_all_the_same() {
    let store = Arc::new(Double::default());
    let one = rig(&store, 1).await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(one.membership().run(stop.clone()));
    tokio::time::sleep(MOMENT).await;
    // To a replica that was behind, and so fast that every call is answered; only the subscription has broken.
    store.state().epochs.clear();
    store.resubscribe();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(
        one.epoch_table.look(&a, token(5), 0),
        Look::Barred(_)
    ));
    assert_eq!(store.open(&a), [(1, 5)], "recorded again");
    stop.cancel();
}

/// Nobody knows then whether the row is gone. The epoch gives no permit any more, and is closed.
#[tokio::test(start_paused = true)]
async fn an_epoch_whose_ceding_is_in_doubt_is_closed() {
    let store = Arc::new(Double::default());
    let (one, two) = (rig(&store, 1).await, rig(&store, 2).await);
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    let stop = CancellationToken::new();
    tokio::spawn(one.membership().run(stop.clone()));
    tokio::time::sleep(MOMENT).await;
    store.plan("close", Act::Lose);
    assert!(open(&two, &a, 6).await.is_ok());
    store.until("close", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.open(&a), [(1, 6)]);
    assert_ne!(one.epoch_table.look(&a, token(5), 0), Look::Open);
    stop.cancel();
}
