//! A lost row, a new id, the cutoff, and the checks after an outage.

use super::*;

/// An old backup, say. This instance's knowledge tells what else was lost, so it must not be
/// forgotten.
#[tokio::test(start_paused = true)]
async fn an_instance_that_the_store_has_lost_is_recorded_again_and_forgets_nothing() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let me = rig.instance();
    assert!(rig.open("a", 5).await.is_ok());
    assert!(rig.raise(None, &key("b"), token(9)).await.is_ok());
    store.rows().instances.clear();
    membership.round().await.expect("a round");
    assert_eq!(rig.instance(), me);
    assert_eq!(rig.lease.incarnation(), 0);
    assert!(store.rows().instances.contains_key(&me));
    assert_eq!(rig.known("b"), Some(9));
    // Its epochs may be lost as well: each is opened again.
    assert_eq!(recall(&rig, "a", 5), Ok(false));
    assert_eq!(
        recall(&rig, "a", 4),
        Err(Refused::stale(token(5), DecidedBy::Memory))
    );
}

/// It may have been declared dead and have settled; then its epochs protect nothing any more.
#[tokio::test(start_paused = true)]
async fn an_instance_that_may_have_settled_goes_on_under_a_new_id() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let me = rig.instance();
    assert!(rig.raise(None, &key("b"), token(9)).await.is_ok());
    store.rows().instances.clear();
    tokio::time::advance(TERM + SETTLE).await;
    membership.round().await.expect("a round");
    assert_ne!(rig.instance(), me);
    assert_eq!(rig.known("b"), None);
}

/// The renewal was sent in time, and waited; only the time of its answer counts.
#[tokio::test(start_paused = true)]
async fn an_instance_that_settles_while_it_renews_goes_on_under_a_new_id() {
    let (store, rig) = alone().await;
    let me = rig.instance();
    tokio::time::advance((TERM + SETTLE).saturating_sub(MOMENT)).await;
    let go = Arc::new(Notify::new());
    store.plan("renew", CallPlan::Hold(Arc::clone(&go)));
    let membership = rig.membership();
    let round = tokio::spawn(async move { membership.round().await });
    store.until("renew", 1).await;
    store.rows().instances.clear();
    tokio::time::advance(2 * MOMENT).await;
    go.notify_one();
    round.await.expect("no panic").expect("a round");
    assert_ne!(rig.instance(), me);
    assert_eq!(rig.lease.incarnation(), 1);
}

/// Its counter stood at 3 when a watcher read it, and never does again: the watcher would take it
/// for dead.
#[tokio::test(start_paused = true)]
async fn a_renewal_number_never_comes_back() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let me = rig.instance();
    let counter = |store: &Double| row(store, me).terms.renewals;
    let mut seen = vec![counter(&store)];
    for _ in 0..3 {
        membership.round().await.expect("a round");
        seen.push(counter(&store));
    }
    // This one may still be committed, by whatever server has it.
    let late = Terms {
        renewals: rig.lease.next_renewal(),
        ..Terms::default()
    };
    store.rows().instances.clear();
    for _ in 0..5 {
        membership.round().await.expect("a round");
        seen.push(counter(&store));
    }
    store.rows().renew(me, &late, &Publication::default());
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
    let renewals = |rows: &mut Rows| {
        rows.instances
            .get_mut(&me)
            .expect("a row")
            .row
            .terms
            .renewals = 2;
    };
    renewals(&mut store.rows());
    membership.round().await.expect("a round");
    assert!(counter(&store) > lost);
}

/// It goes on under a lease that holds, and others would no longer wait for what it has in flight.
#[tokio::test(start_paused = true)]
async fn an_instance_whose_row_is_lost_ends_nothing_that_is_in_flight() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    membership.round().await.expect("a round");
    assert!(rig.open("a", 5).await.is_ok());
    let held = permit(&rig, "a", 5);
    let epoch = store.rows().marks[&key("a")].open[0];
    store.rows().instances.clear();
    // The routes cannot be compared: before the join, and behind it.
    for call in ["routes", "join"] {
        store.plan(call, CallPlan::Fail(broken()));
        let _ = membership.round().await;
        assert!(!store.rows().is_over(&epoch), "{call}");
    }
    membership.round().await.expect("a round");
    assert!(!store.rows().is_over(&epoch));
    assert_eq!(rig.lease.incarnation(), 0, "it is the same id");
    assert!(!rig.passes("a", 5), "each epoch is opened again");
    end(&rig, "a", &held);
}

/// No read has failed, but it is another server that answers.
#[tokio::test(start_paused = true)]
async fn the_watch_begins_again_over_another_connection() {
    let (store, _one, two) = pair().await;
    let membership = two.membership();
    let dead = |store: &Double| row(store, InstanceId::from_bits(1)).dead;
    membership.round().await.expect("a round");
    tokio::time::sleep(SILENCE).await;
    store
        .instances_over
        .store(1, std::sync::atomic::Ordering::SeqCst);
    membership.round().await.expect("a round");
    assert!(!dead(&store), "its counter may only be behind there");
    tokio::time::sleep(SILENCE).await;
    membership.round().await.expect("a round");
    assert!(dead(&store));
}

/// Not at the next look at the clock.
#[tokio::test(start_paused = true)]
async fn the_cutoff_comes_when_it_is_due() {
    let (store, rig) = alone().await;
    let joined = Instant::now();
    for _ in 0..1000 {
        store.plan("renew", CallPlan::Fail(broken()));
    }
    rig.run();
    rig.lease.identity().cutoff.cancelled().await;
    let after = joined.elapsed();
    let due = TERM + UNDELIVERED;
    assert!(due <= after && after <= due + 2 * MOMENT, "{after:?}");
}

/// Every socket of the incarnation before is dead to writes. A request that still waits for an
/// answer has the rest of its time.
#[tokio::test(start_paused = true)]
async fn after_a_rejoin_the_cutoff_of_before_comes_when_it_is_due() {
    let (store, rig) = alone().await;
    let joined = Instant::now();
    let before = rig.lease.identity();
    tokio::time::sleep(TERM + UNDELIVERED / 2).await;
    store
        .declare_dead(before.instance, 0)
        .await
        .expect("declared");
    rig.run();
    before.cutoff.cancelled().await;
    assert_eq!(rig.lease.incarnation(), 1);
    let after = joined.elapsed();
    let due = TERM + UNDELIVERED;
    assert!(due <= after && after <= due + 2 * MOMENT, "{after:?}");
}

/// A failover that is over between two renewals fails none of them.
#[tokio::test(start_paused = true)]
async fn epochs_are_looked_for_after_every_new_connection() {
    let (store, rig) = alone().await;
    rig.run();
    let behind = store.rows().clone();
    assert!(rig.open("a", 5).await.is_ok());
    let _held = permit(&rig, "a", 5);
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("look"), 0);
    store.fail_over(behind);
    tokio::time::sleep(TERM).await;
    assert_eq!((store.calls("look"), store.calls("repair")), (1, 1));
    assert_eq!(store.open(&key("a")), [5], "recorded again");
    assert_repairing(rig.enter("a", 5));
}

/// The failover has lost only that. The token would pass at any other proxy, and no client asks
/// this one.
#[tokio::test(start_paused = true)]
async fn what_is_spent_is_looked_for_after_every_new_connection() {
    let (store, rig) = alone().await;
    rig.run();
    let mut permits = Vec::new();
    for on in ["a", "b"] {
        let permit = rig.admit(on, 5).await;
        assert!(rig.spend(&permit.key, permit.token, "x").await.is_ok());
        permits.push(permit);
    }
    assert!(rig.give_back(&key("b"), token(5), "x".into()).await);
    let mut behind = store.rows().clone();
    behind.marks.get_mut(&key("a")).expect("a mark").spent_by = None;
    store.fail_over(behind);
    tokio::time::sleep(TERM).await;
    assert_eq!(store.rows().marks[&key("a")].spent_by.as_deref(), Some("x"));
    assert_eq!(rig.metrics.series.mark_regressions.get(), 1);
    assert_repairing(rig.enter("a", 5));
    assert!(rig.passes("b", 5));
}

/// Many are lost at once. Those of one statement are repaired together, and one that the store does
/// not take keeps the others from nothing.
#[tokio::test(start_paused = true)]
async fn very_many_losses_are_repaired_in_a_few_statements() {
    let (store, rig) = alone().await;
    rig.run();
    let behind = store.rows().clone();
    let keys: Vec<String> = (0..1000).map(|number| format!("r{number:04}")).collect();
    let mut held = Vec::new();
    for on in &keys {
        assert!(rig.open(on, 5).await.is_ok());
        held.push(permit(&rig, on, 5));
    }
    for _ in 0..2 {
        let refused = StoreError::Statement("refused by the test".to_owned());
        store.plan("repair", CallPlan::Fail(refused));
    }
    store.plan("repair", CallPlan::Fail(broken()));
    store.fail_over(behind);
    tokio::time::sleep(TERM).await;
    for on in &keys {
        assert_eq!(store.open(&key(on)), [5], "{on}");
        assert_repairing(recall(&rig, on, 5));
    }
    assert!(store.calls("repair") < 20, "{}", store.calls("repair"));
}

/// An instance that was declared dead may have missed an override of what it would write back.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_back_without_a_lease() {
    let (store, rig) = alone().await;
    assert!(rig.open("a", 42).await.is_ok());
    let _held = permit(&rig, "a", 42);
    rig.epoch_table.errands.repairs.must([key("a")]);
    tokio::time::sleep(TERM + SETTLE).await;
    for _ in 0..100 {
        store.plan("renew", CallPlan::Fail(broken()));
    }
    rig.run();
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("repair"), 0);
    tokio::time::sleep(TERM * 5).await;
    assert_eq!(store.calls("repair"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_everybody_ends_with_the_same_id_and_no_cut() {
    let (store, rig) = alone().await;
    rig.run();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rig.lease.valid());
    for _ in 0..400 {
        store.plan("renew", CallPlan::Fail(broken()));
    }
    let before = rig.lease.identity();
    tokio::time::sleep(TERM + SETTLE + Duration::from_secs(1)).await;
    assert!(!rig.lease.valid());
    assert!(before.cutoff.is_cancelled(), "exchanges were cut");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(rig.lease.valid());
    let after = rig.lease.identity();
    assert_eq!((after.instance, after.incarnation), (before.instance, 0));
    assert!(!after.cutoff.is_cancelled());
}

/// Its place tells that a process before this one has ended, and nothing of an earlier id of this
/// one: what has begun under that id goes on until it is cut.
#[tokio::test(start_paused = true)]
async fn an_earlier_id_of_the_same_process_has_not_ended() {
    let store = Arc::new(Double::alone());
    let rig = rig(&store, 1).await;
    let earlier = rig.instance();
    let at = row(&store, earlier).terms.renewals;
    assert!(store.rows().declare_dead(earlier, at));
    rig.membership().round().await.expect("a round");
    assert_eq!(rig.lease.incarnation(), 1);
    let left = rig.detector.settles_in(earlier, rig.lease.clock().now());
    assert!(left > Some(SETTLE), "{left:?}");
}
