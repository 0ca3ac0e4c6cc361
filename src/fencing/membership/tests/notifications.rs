//! Notifications: lost, forged, in floods; and epochs that are ceded.

use super::*;

fn hint(on: &str, waits: Option<i64>) -> Heard {
    Heard::Notification(Notification {
        resource: key(on),
        waits: waits.map(|number| Token::new(number).expect("a token")),
        to: None,
    })
}

/// Both run, and the first has an epoch of 5.
async fn handing_over() -> (Arc<Double>, Rig, Rig) {
    let (store, one, two) = pair().await;
    assert!(one.open("a", 5).await.is_ok());
    one.run();
    two.run();
    tokio::time::sleep(MOMENT).await;
    (store, one, two)
}

#[tokio::test(start_paused = true)]
async fn an_idle_epoch_is_handed_over_at_once() {
    let (store, one, two) = handing_over().await;
    let began = Instant::now();
    drop(two.admit("a", 6).await);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(store.open(&key("a")), [6]);
    let calls = ["advance", "notify", "cede", "look"].map(|call| store.calls(call));
    assert_eq!(calls, [2, 1, 1, 1], "the second advance is of 6");
    assert_ne!(recall(&one, "a", 5), Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_lost_notification_costs_a_poll_and_nothing_else() {
    let (store, one, two) = handing_over().await;
    store.deafen();
    let held = permit(&one, "a", 5);
    let waits = two.spawn_admit("a", 6);
    // Its equal tokens go on for a while, and then its row is read again.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(recall(&one, "a", 5), Ok(true));
    end(&one, "a", &permit(&one, "a", 5));
    tokio::time::sleep(LOOK_AGAIN + MOMENT).await;
    assert_eq!(
        recall(&one, "a", 5),
        Err(Refused::stale(token(6), DecidedBy::Memory))
    );
    assert!(held.superseded.is_cancelled() && !waits.is_finished());
    end(&one, "a", &held);
    let passed = tokio::time::timeout(LOOK_AGAIN + MOMENT, waits).await;
    drop(passed.expect("it polls").expect("a permit"));
}

/// Then it is unknown if the row is free. The epoch gives no permit any more, and is over with the
/// next heartbeat.
#[tokio::test(start_paused = true)]
async fn an_epoch_whose_ceding_is_in_doubt_is_over_all_the_same() {
    for plan in [CallPlan::Lose, CallPlan::Fail(broken())] {
        let (store, one, two) = handing_over().await;
        store.plan("cede", plan);
        let began = Instant::now();
        drop(two.admit("a", 6).await);
        assert!(
            began.elapsed() <= Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        assert_ne!(recall(&one, "a", 5), Ok(true));
    }
}

/// Any login of the database can notify.
#[tokio::test(start_paused = true)]
async fn a_forged_notification_changes_nothing() {
    let (store, rig) = alone().await;
    rig.run();
    assert!(rig.open("a", 5).await.is_ok());
    let held = permit(&rig, "a", 5);
    let go = Arc::new(Notify::new());
    store.plan("look", CallPlan::Hold(Arc::clone(&go)));
    for _ in 0..1000 {
        for (on, waits) in [
            ("a", Some(i64::MAX)),
            ("b", Some(i64::MAX)),
            ("a", None),
            ("b", None),
        ] {
            store.tell(&hint(on, waits));
        }
        tokio::time::sleep(MOMENT).await;
    }
    assert_eq!(store.calls("look"), 1, "all of them wait for one");
    go.notify_one();
    tokio::time::sleep(MOMENT).await;
    assert_eq!(store.calls("look"), 2);
    assert_eq!(recall(&rig, "a", 5), Ok(true));
    assert!(rig.passes("a", 5) && !held.superseded.is_cancelled());
    assert_eq!(rig.known("b"), None, "nothing is remembered of it");
    assert_eq!((store.calls("advance"), store.calls("cede")), (1, 0));
}

/// The owner may be notified, cede and say so before the answer has come that says that it is waited
/// for.
#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_ceded_before_the_answer_costs_a_poll() {
    let (store, _one, two) = handing_over().await;
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::HoldAnswer(Arc::clone(&go)));
    let waits = two.spawn_admit("a", 6);
    store.until("advance", 2).await;
    store.tell(&hint("a", Some(6)));
    store.until("cede", 1).await;
    tokio::time::sleep(MOMENT).await;
    assert_eq!(store.open(&key("a")), [6]);
    go.notify_one();
    let passed = tokio::time::timeout(LOOK_AGAIN + MOMENT, waits).await;
    drop(passed.expect("it polls").expect("a permit"));
}

#[tokio::test(start_paused = true)]
async fn a_notification_for_another_instance_is_not_heard() {
    let (store, one, two) = handing_over().await;
    let Heard::Notification(hint) = hint("a", Some(6)) else {
        unreachable!("it is one")
    };
    let to = |to| Heard::Notification(Notification { to, ..hint.clone() });
    store.tell(&to(Some(two.instance())));
    tokio::time::sleep(MOMENT).await;
    assert_eq!(recall(&one, "a", 5), Ok(true));
    store.tell(&to(Some(one.instance())));
    tokio::time::sleep(MOMENT).await;
    assert_eq!(recall(&one, "a", 5), Ok(false));
}

#[tokio::test(start_paused = true)]
async fn a_failover_between_two_rounds_is_noticed_all_the_same() {
    let (store, rig) = alone().await;
    rig.run();
    let behind = store.rows().clone();
    assert!(rig.open("a", 5).await.is_ok());
    let _held = permit(&rig, "a", 5);
    // To a replica that was behind, and so fast that every call is answered; only the subscription
    // has broken.
    *store.rows() = behind;
    store.tell(&Heard::Resumed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_repairing(recall(&rig, "a", 5));
    assert_eq!(store.open(&key("a")), [5], "recorded again");
}
