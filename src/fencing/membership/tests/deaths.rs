//! Dead instances: declared, settled; and a start over the file of a run that was killed.

use super::*;

/// The first has 5 in flight, and 6 waits at the second.
async fn one_in_front() -> (Arc<Double>, Rig, Rig) {
    let (store, one, two) = pair().await;
    assert!(one.open("a", 5).await.is_ok());
    permit(&one, "a", 5);
    assert!(two.open("a", 6).await.is_ok());
    let place = two.epoch_table.queue(&key("a"), token(6), ROOM);
    place.expect("a place");
    (store, one, two)
}

/// Leaves, with what is in flight.
async fn leave(store: &Double, rig: &Rig) {
    let publication = rig.epoch_table.finish(rig.instance());
    store
        .leave(rig.instance(), &publication)
        .await
        .expect("left");
}

fn settled(store: &Double, id: InstanceId) -> bool {
    store.rows().instances[&id].settled
}

#[tokio::test(start_paused = true)]
async fn a_silent_instance_is_declared_dead_and_settles() {
    let (store, one, two) = one_in_front().await;
    let (membership, id) = (two.membership(), one.instance());
    membership.round().await.expect("a round");
    tokio::time::sleep(SILENCE.saturating_sub(MOMENT)).await;
    membership.round().await.expect("a round");
    let early = row(&store, id).dead;
    assert!(!early, "a whole lease has not passed on the owner's clock");
    tokio::time::sleep(MOMENT).await;
    // A failed read restarts the watch.
    store.plan("instances", CallPlan::Fail(broken()));
    assert!(membership.round().await.is_err());
    two.detector.interrupted();
    membership.round().await.expect("a round");
    assert!(!row(&store, id).dead);
    tokio::time::sleep(SILENCE).await;
    membership.round().await.expect("a round");
    assert!(row(&store, id).dead);
    let entered = two.enter("a", 6);
    let left = Some(DEATH);
    assert!(
        matches!(entered, Ok(Entered::Wait { known_left }) if known_left == left),
        "{entered:?}"
    );
    tokio::time::sleep(DEATH.saturating_sub(MOMENT)).await;
    membership.round().await.expect("a round");
    assert!(!settled(&store, id));
    assert_eq!(store.open(&key("a")), [5, 6]);
    tokio::time::sleep(MOMENT).await;
    membership.round().await.expect("a round");
    assert!(settled(&store, id));
    assert_eq!(store.open(&key("a")), [6]);
    // Its counter moves no more.
    assert_eq!(one.membership().round().await.ok(), Some(()));
    assert_eq!(one.lease.incarnation(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_leaves_with_nothing_in_flight_is_waited_for_by_nobody() {
    let (store, one, two) = pair().await;
    two.run();
    assert!(one.open("a", 5).await.is_ok());
    leave(&store, &one).await;
    assert!(settled(&store, one.instance()));
    let began = Instant::now();
    drop(two.admit("a", 6).await);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A failover has lost its row. It may live for as long as its lease, and then settles.
#[tokio::test(start_paused = true)]
async fn an_instance_that_only_epochs_know_is_waited_for_and_then_recorded() {
    let (store, one, two) = one_in_front().await;
    let id = one.instance();
    store.rows().instances.remove(&id);
    two.run();
    let epoch = store.rows().open(&key("a"))[0];
    let owner = Notification::to(epoch.instance, &key("a"), token(6));
    two.tell(vec![owner]);
    tokio::time::sleep(LOSS).await;
    assert!(!store.rows().instances.contains_key(&id) && waits(&two, "a", 6));
    tokio::time::sleep(TERM).await;
    assert!(settled(&store, id));
    drop(two.admit("a", 6).await);
    // It is too late for itself.
    assert!(store.rows().join(id, &Terms::default()).is_err());
}

/// A failed look does not tell which instances are dead. So the look before it ends none.
#[tokio::test(start_paused = true)]
async fn nobody_settles_while_the_instances_cannot_be_read() {
    let (store, one, two) = one_in_front().await;
    leave(&store, &one).await;
    two.run();
    tokio::time::sleep(DEATH.saturating_sub(2 * TERM)).await;
    for _ in 0..1000 {
        store.plan("instances", CallPlan::Fail(broken()));
    }
    tokio::time::sleep(4 * TERM).await;
    assert_eq!(store.calls("settle"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_recorded_keeps_nobody_else_alive() {
    let (store, one, two) = one_in_front().await;
    leave(&store, &one).await;
    for _ in 0..1000 {
        store.plan("settle", CallPlan::Fail(broken()));
    }
    two.run();
    tokio::time::sleep(DEATH + 2 * TERM).await;
    assert!(store.calls("settle") > 1 && two.lease.valid());
    // One that joins only now, and never renews.
    let three = rig(&store, 3).await;
    tokio::time::sleep(3 * TERM).await;
    assert!(row(&store, three.instance()).dead);
}

#[tokio::test(start_paused = true)]
async fn the_ends_of_many_do_not_cost_the_lease() {
    let (store, one) = alone().await;
    for id in 2..8 {
        let dead = rig(&store, id).await;
        assert!(dead.open("a", 5).await.is_ok());
        permit(&dead, "a", 5);
        leave(&store, &dead).await;
        // A store that takes its time, and still answers.
        let go = Arc::new(Notify::new());
        store.plan("settle", CallPlan::Hold(Arc::clone(&go)));
        let (store, calls) = (Arc::clone(&store), usize::try_from(id - 1).expect("few"));
        tokio::spawn(async move {
            store.arrived("settle", calls).await;
            tokio::time::sleep(TERM * 2 / 5).await;
            go.notify_one();
        });
    }
    one.run();
    let end = Instant::now() + DEATH + 10 * TERM;
    while Instant::now() < end {
        assert!(
            one.lease.valid(),
            "lapsed over {} ends",
            store.calls("settle")
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(store.open(&key("a")).is_empty(), "all have settled");
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_another_has_found_an_instance_dead() {
    let (store, one, two) = one_in_front().await;
    let membership = two.membership();
    membership.round().await.expect("a round");
    let waits = two.spawn_admit("a", 6);
    while two.waiting(&key("a")) < 2 {
        tokio::task::yield_now().await;
    }
    leave(&store, &one).await;
    membership.round().await.expect("a round");
    let refused = tokio::time::timeout(MOMENT, waits).await;
    assert!(refused.expect("woken").is_err());
}

/// Another session may have locked its row. The lease is renewed, and the others are watched.
#[tokio::test(start_paused = true)]
async fn a_round_goes_on_where_an_end_cannot_be_recorded() {
    let store = Arc::new(Double::alone());
    let (first, second) = (rig(&store, 1).await, rig(&store, 2).await);
    store.plan("declare_dead", CallPlan::Fail(broken()));
    for dead in [false, true] {
        second.membership().round().await.expect("a round");
        assert_eq!(row(&store, first.instance()).dead, dead);
    }
}

/// A file has one process at a time: every other instance on record is dead.
#[tokio::test(start_paused = true)]
async fn after_a_crash_only_older_work_is_waited_for() {
    let store = Arc::new(Double::alone());
    // a: 5 has a permit, 6 waits. b: 6 alone has a permit.
    let first = rig(&store, 1).await;
    assert!(first.open("a", 5).await.is_ok());
    permit(&first, "a", 5);
    assert!(first.open("a", 6).await.is_ok());
    assert!(waits(&first, "a", 6));
    assert!(first.open("b", 6).await.is_ok());
    permit(&first, "b", 6);

    let second = rig(&store, 2).await;
    let stale = second.open("a", 5).await;
    assert_eq!(stale, Err(Refused::stale(token(6), DecidedBy::Store)));
    assert!(second.open("a", 6).await.is_ok());
    assert!(second.open("b", 6).await.is_ok());
    assert!(second.passes("b", 6), "nobody older is waited for");
    assert!(matches!(
        second.enter("a", 6),
        Ok(Entered::Wait { known_left: None })
    ));
    let membership = second.membership();
    membership.round().await.expect("a round");
    assert!(matches!(
        second.enter("a", 6),
        Ok(Entered::Wait { known_left: Some(left) }) if left == SETTLE
    ));
    tokio::time::sleep(SETTLE.saturating_sub(MOMENT)).await;
    membership.round().await.expect("a round");
    assert_eq!(store.calls("settle"), 0);
    second.run();
    let began = Instant::now();
    drop(second.admit("a", 6).await);
    assert!(
        began.elapsed() <= TERM / 3 + LOOK_AGAIN,
        "{:?}",
        began.elapsed()
    );
}
