//! Dead instances: declared, settled, reaped; and a start over the file of a run that was killed.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_silent_instance_is_declared_dead_settles_and_is_buried() {
    let (store, one, two) = pair().await;
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
    // A failed read restarts the watch.
    store.plan("instances", CallPlan::Fail(broken()));
    assert!(membership.round().await.is_err());
    two.detector.interrupted();
    step(&membership).await;
    assert!(!dead(&store));
    tokio::time::sleep(SILENCE).await;
    step(&membership).await;
    assert!(dead(&store));
    assert!(matches!(
        enter(&two, &a, token(6)),
        Ok(Entered::Wait { known_left: Some(left) }) if left == DEATH
    ));
    tokio::time::sleep(DEATH.saturating_sub(MOMENT)).await;
    step(&membership).await;
    assert_eq!(store.open(&a).len(), 2, "not settled yet");
    tokio::time::sleep(Duration::from_millis(1)).await;
    step(&membership).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.open(&a), [(1, 6)]);
    assert!(matches!(enter(&two, &a, token(6)), Ok(Entered::Permit(_))));
    // Its counter moves no more.
    assert_eq!(one.membership().round().await.ok(), Some(()));
    assert_eq!(one.lease.incarnation(), 1);
}

/// Its epochs are many times what one step deletes.
#[tokio::test(start_paused = true)]
async fn a_burial_goes_on_within_its_round_with_what_is_waited_for_first() {
    let (store, one, two) = pair().await;
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
    store.plan("bury", CallPlan::HoldAnswer(Arc::clone(&go)));
    membership.round().await.expect("a round");
    let reaping = tokio::spawn(async move { step_reaping(&membership).await });
    store.arrived("bury", 1).await;
    assert_eq!(store.open(&waited).len(), 1, "the first step has freed it");
    go.notify_one();
    reaping.await.expect("no panic");
    assert_eq!(store.state().epochs.len(), 1);
    let steps = store.order(&["bury"]);
    assert_eq!(steps.len(), 10, "{steps:?}");
    assert_eq!(steps[0], ("bury", 1));
    assert!(matches!(
        enter(&two, &waited, token(6)),
        Ok(Entered::Permit(_))
    ));
    assert_eq!(store.calls("instances"), 2);
}

/// A failed look does not tell which instances are dead. So the look before it reaps none.
#[tokio::test(start_paused = true)]
async fn nobody_is_buried_while_the_instances_cannot_be_read() {
    let (store, one, two) = pair().await;
    assert!(open(&one, &key("a"), 5).await.is_ok());
    let me = one.lease.identity().instance;
    store.leave(&me).await.expect("left");
    for _ in 0..1000 {
        store.plan("bury", CallPlan::Fail(broken()));
    }
    two.run();
    tokio::time::sleep(DEATH + TERM).await;
    assert!(store.calls("bury") > 1);
    for _ in 0..1000 {
        store.plan("instances", CallPlan::Fail(broken()));
    }
    tokio::time::sleep(TERM).await;
    let tried = store.calls("bury");
    tokio::time::sleep(TERM).await;
    assert_eq!(store.calls("bury"), tried);
}

#[tokio::test(start_paused = true)]
async fn a_burial_that_fails_keeps_nobody_else_alive() {
    let (store, one, two) = pair().await;
    store
        .leave(&one.lease.identity().instance)
        .await
        .expect("left");
    assert!(
        open(&one, &key("a"), 5).await.is_ok(),
        "an epoch of an unknown id"
    );
    for _ in 0..1000 {
        store.plan("bury", CallPlan::Fail(broken()));
    }
    two.run();
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
}

#[tokio::test(start_paused = true)]
async fn the_burials_of_many_do_not_cost_the_lease() {
    let (store, rig) = alone().await;
    for id in 2..8 {
        let dead = Rig::new(Arc::clone(&store) as _, id, clock()).await;
        assert!(open(&dead, &key("a"), 5).await.is_ok());
        let dead = dead.lease.identity().instance;
        store.leave(&dead).await.expect("left");
        // A store that takes its time, and still answers.
        let go = Arc::new(tokio::sync::Notify::new());
        store.plan("bury", CallPlan::Hold(Arc::clone(&go)));
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store
                .arrived("bury", usize::try_from(id - 1).expect("few"))
                .await;
            tokio::time::sleep(TERM * 2 / 5).await;
            go.notify_one();
        });
    }
    rig.run();
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
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_another_has_found_an_instance_dead() {
    let (store, one, two) = pair().await;
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
    async fn start(path: &std::path::Path, id: u64) -> Self {
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

    /// Leaves the file as a kill -9 does: nothing is drained, and no instance leaves.
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

    // a: 5 has a permit, 6 waits. b: 6 alone has a permit.
    let first = Run::start(&path, 1).await;
    open(&first.rig, &a, 5).await.expect("granted");
    let five = enter(&first.rig, &a, token(5));
    assert!(matches!(five, Ok(Entered::Permit(_))));
    open(&first.rig, &a, 6).await.expect("granted");
    assert!(matches!(
        enter(&first.rig, &a, token(6)),
        Ok(Entered::Wait { .. })
    ));
    open(&first.rig, &b, 6).await.expect("granted");
    assert!(matches!(
        enter(&first.rig, &b, token(6)),
        Ok(Entered::Permit(_))
    ));
    first.kill().await;

    let second = Run::start(&path, 2).await;
    assert_eq!(
        open(&second.rig, &a, 5).await,
        Err(Refused::stale(token(6), DecidedBy::Store))
    );
    open(&second.rig, &a, 6).await.expect("granted");
    open(&second.rig, &b, 6).await.expect("granted");
    assert!(
        matches!(enter(&second.rig, &b, token(6)), Ok(Entered::Permit(_))),
        "alone, so nobody older is waited for"
    );
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Ok(Entered::Wait { known_left: None })
    ));
    step(&second.membership).await;
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Ok(Entered::Wait { known_left: Some(left) }) if left == SETTLE
    ));
    second.pass(SETTLE.saturating_sub(MOMENT));
    step(&second.membership).await;
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Ok(Entered::Wait { .. })
    ));
    second.pass(Duration::from_millis(1));
    step(&second.membership).await;
    // The look goes through the writer: once it has answered something later, it is done.
    open(&second.rig, &key("c"), 1).await.expect("granted");
    assert!(matches!(
        enter(&second.rig, &a, token(6)),
        Ok(Entered::Permit(_))
    ));
    second.kill().await;
}

#[tokio::test]
async fn nothing_is_valid_before_the_join_whatever_the_store() {
    let lease = Lease::new(clock(), None, InstanceId::from_bits(1));
    assert!(!lease.valid() && !lease.begun());
}
