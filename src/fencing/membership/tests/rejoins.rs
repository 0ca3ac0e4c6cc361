//! A lost row, a new id, the cutoff, and the checks after an outage.

use super::*;

/// An old backup, say. This instance's knowledge tells what else was lost, so it must not be
/// forgotten.
#[tokio::test(start_paused = true)]
async fn an_instance_that_the_store_has_lost_is_recorded_again_and_forgets_nothing() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let (a, me) = (key("a"), rig.lease.identity().instance);
    assert!(open(&rig, &a, 5).await.is_ok());
    rig.epoch_table.learn(&key("b"), token(9), 0, false);
    store.state().instances.clear();
    membership.round().await.expect("a round");
    assert_eq!(rig.lease.identity().instance, me);
    assert_eq!(rig.lease.incarnation(), 0);
    assert!(store.state().instances.contains_key(&me));
    assert_eq!(rig.epoch_table.known(&a), Some(token(5)));
    assert_eq!(rig.epoch_table.known(&key("b")), Some(token(9)));
}

/// It may have been declared dead and reaped; then its epochs protect nothing any more.
#[tokio::test(start_paused = true)]
async fn an_instance_that_may_have_been_buried_goes_on_under_a_new_id() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let me = rig.lease.identity().instance;
    rig.epoch_table.learn(&key("b"), token(9), 0, false);
    store.state().instances.clear();
    tokio::time::advance(TERM + SETTLE).await;
    membership.round().await.expect("a round");
    assert_ne!(rig.lease.identity().instance, me);
    assert_eq!(rig.epoch_table.known(&key("b")), None);
}

/// The renewal was sent in time, and waited; only the time of its answer counts.
#[tokio::test(start_paused = true)]
async fn an_instance_that_is_buried_while_it_renews_goes_on_under_a_new_id() {
    let (store, rig) = alone().await;
    let me = rig.lease.identity().instance;
    tokio::time::advance((TERM + SETTLE).saturating_sub(MOMENT)).await;
    let go = Arc::new(Notify::new());
    store.plan("renew", CallPlan::Hold(Arc::clone(&go)));
    let membership = rig.membership();
    let round = tokio::spawn(async move { membership.round().await });
    store.until("renew", 1).await;
    store.state().instances.clear();
    tokio::time::advance(2 * MOMENT).await;
    go.notify_one();
    round.await.expect("no panic").expect("a round");
    assert_ne!(rig.lease.identity().instance, me);
    assert_eq!(rig.lease.incarnation(), 1);
}

/// Its counter stood at 3 when a watcher read it, and never does again: the watcher would take it
/// for dead.
#[tokio::test(start_paused = true)]
async fn a_renewal_number_never_comes_back() {
    let (store, rig) = alone().await;
    let membership = rig.membership();
    let me = rig.lease.identity().instance;
    let counter = |store: &Double| store.state().instances[&me].renewals;
    let mut seen = vec![counter(&store)];
    for _ in 0..3 {
        membership.round().await.expect("a round");
        seen.push(counter(&store));
    }
    // This one may still be committed, by whatever server has it.
    store.plan("renew", CallPlan::Late);
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
    let (store, _one, two) = pair().await;
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
        .declare_dead(&before.instance, 0)
        .await
        .expect("declared");
    rig.run();
    before.cutoff.cancelled().await;
    assert_eq!(rig.lease.incarnation(), 1);
    let after = joined.elapsed();
    let due = TERM + UNDELIVERED;
    assert!(due <= after && after <= due + 2 * MOMENT, "{after:?}");
}

/// The failover has lost its epoch, so that nothing stood in the way; and the era is known here
/// before the loss is.
#[tokio::test(start_paused = true)]
async fn an_override_of_what_a_failover_has_laid_open_is_not_undone() {
    let (store, rig) = alone().await;
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
    assert_repairing(enter(&rig, &a, token(50)));
    tokio::time::sleep(LOSS).await;
    rig.lease.renewed(rig.lease.clock().now());
    assert!(open(&rig, &a, 11).await.is_ok());
    assert_eq!(store.mark_of(&a), Some(11));
}

/// A failover that is over between two renewals fails none of them.
#[tokio::test(start_paused = true)]
async fn epochs_are_looked_for_after_every_new_connection() {
    let (store, rig) = alone().await;
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
    assert_repairing(enter(&rig, &a, token(5)));
    stop.cancel();
    running.await.expect("ended");
}

/// The failover has lost only that. The token would pass at any other proxy, and no client asks
/// this one.
#[tokio::test(start_paused = true)]
async fn what_is_spent_is_looked_for_after_every_new_connection() {
    let (store, rig) = alone().await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(rig.membership().run(stop.clone()));
    for on in ["a", "b"] {
        let on = key(on);
        assert!(open(&rig, &on, 5).await.is_ok());
        let spent = rig.writer.append(&on, token(5), Want::Spend("x".into()));
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
    assert_eq!(rig.metrics.store().series.mark_regressions.get(), 1);
    assert_repairing(enter(&rig, &key("a"), token(5)));
    assert!(matches!(
        enter(&rig, &key("b"), token(5)),
        Ok(Entered::Permit(_))
    ));
    stop.cancel();
    running.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_everybody_ends_with_the_same_id_and_no_cut() {
    let (store, rig) = alone().await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(rig.membership().run(stop.clone()));
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
    stop.cancel();
    running.await.expect("ended");
}
