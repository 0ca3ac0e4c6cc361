//! Notifications: lost, forged, in floods; and epochs that are ceded.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_lost_notification_costs_a_poll_and_nothing_else() {
    let (store, one, two) = pair().await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    store.plan("announce", CallPlan::Fail(broken()));
    assert!(open(&two, &a, 6).await.is_ok());
    one.run();
    two.run();
    assert!(matches!(
        enter(&two, &a, token(6)),
        Ok(Entered::Wait { .. })
    ));
    assert_eq!(one.epoch_table.recall(&a, token(5), 0), Ok(Recalled::Open));
    let _place = two.epoch_table.queue(&a, token(6), ROOM).expect("a place");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(
        one.epoch_table.recall(&a, token(5), 0),
        Err(Refused::stale(token(6), DecidedBy::Memory))
    );
    assert!(matches!(enter(&two, &a, token(6)), Ok(Entered::Permit(_))));
}

/// Any login of the database can notify.
#[tokio::test(start_paused = true)]
async fn a_forged_notification_changes_nothing() {
    let (store, rig) = alone().await;
    let (a, b) = (key("a"), key("b"));
    assert!(open(&rig, &a, 5).await.is_ok());
    rig.run();
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
    assert_eq!(rig.epoch_table.recall(&a, token(5), 0), Ok(Recalled::Open));
    assert_eq!(
        rig.epoch_table.recall(&b, token(5), 0),
        Ok(Recalled::AskStore)
    );
    assert!(matches!(enter(&rig, &a, token(5)), Ok(Entered::Permit(_))));
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
    let reads = store.calls("marks");
    assert!(reads as u128 <= most, "{reads}");
}

/// Each such hint names a resource at which an older epoch is in the way.
#[tokio::test(start_paused = true)]
async fn hints_that_something_was_closed_share_a_look() {
    let (store, one, two) = pair().await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    assert!(open(&two, &a, 6).await.is_ok());
    two.run();
    tokio::time::sleep(MOMENT).await;
    let looks = store.calls("epochs");
    let closed = Notification::Closed {
        resource: a.clone(),
    };
    for _ in 0..50 {
        for _ in 0..20 {
            store.notify(&closed);
        }
        tokio::time::sleep(MOMENT).await;
    }
    let looks = store.calls("epochs") - looks;
    assert!((50..=150).contains(&looks), "{looks} looks");
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
}

/// The owner may be told, close and tell of it before the answer that says that it is waited for
/// has come.
#[tokio::test(start_paused = true)]
async fn a_close_that_is_told_of_before_the_answer_is_looked_into_at_once() {
    let (store, one, two) = pair().await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    two.run();
    tokio::time::sleep(MOMENT).await;
    let began = Instant::now();
    let go = Arc::new(Notify::new());
    store.plan("epochs", CallPlan::HoldAnswer(Arc::clone(&go)));
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
}

#[tokio::test(start_paused = true)]
async fn a_notification_costs_one_read_and_then_the_epoch_closes() {
    let (store, one, two) = pair().await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    one.run();
    tokio::time::sleep(MOMENT).await;
    let began = Instant::now();
    assert!(open(&two, &a, 6).await.is_ok());
    store.until("close", 1).await;
    assert_eq!(store.open(&a), [(1, 6)]);
    assert_eq!((store.calls("marks"), began.elapsed()), (1, Duration::ZERO));
    assert_eq!(
        one.epoch_table.recall(&a, token(5), 0),
        Err(Refused::stale(token(6), DecidedBy::Memory))
    );
}

/// A hint waits for the read of an earlier one. By then the older epoch is closed, and this instance has opened a
/// newer one, of which the hint says nothing.
#[tokio::test(start_paused = true)]
async fn a_hint_that_was_answered_meanwhile_does_not_reach_the_next_epoch() {
    let (store, one, two) = pair().await;
    let (a, b) = (key("a"), key("b"));
    assert!(open(&one, &a, 5).await.is_ok());
    assert!(open(&one, &b, 5).await.is_ok());
    one.run();
    tokio::time::sleep(MOMENT).await;
    // The hint whose read takes long is forged.
    let go = Arc::new(Notify::new());
    store.plan("marks", CallPlan::Hold(Arc::clone(&go)));
    store.notify(&Notification::Newer {
        resource: b.clone(),
        token: Token::MAX,
        era: 0,
        owner: None,
    });
    tokio::time::sleep(MOMENT).await;
    assert_eq!(store.calls("marks"), 1);
    assert!(open(&two, &a, 6).await.is_ok());
    tokio::time::sleep(MOMENT).await;
    assert!(one.epoch_table.learn(&a, token(6), 0, true), "the walk");
    store.until("close", 1).await;
    assert!(open(&one, &a, 7).await.is_ok());
    go.notify_one();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(store.calls("marks"), 1, "it is not older than the hint's");
    assert_eq!(one.epoch_table.recall(&a, token(7), 0), Ok(Recalled::Open));
}

#[tokio::test(start_paused = true)]
async fn a_failover_between_two_rounds_is_noticed_all_the_same() {
    let (store, one) = alone().await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    one.run();
    tokio::time::sleep(MOMENT).await;
    // To a replica that was behind, and so fast that every call is answered; only the subscription
    // has broken.
    store.state().epochs.clear();
    store.resubscribe();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_repairing(one.epoch_table.recall(&a, token(5), 0));
    assert_eq!(store.open(&a), [(1, 5)], "recorded again");
}

/// Then it is unknown if the row is gone. The epoch gives no permit any more, and is closed.
#[tokio::test(start_paused = true)]
async fn an_epoch_whose_ceding_is_in_doubt_is_closed() {
    let (store, one, two) = pair().await;
    let a = key("a");
    assert!(open(&one, &a, 5).await.is_ok());
    one.run();
    tokio::time::sleep(MOMENT).await;
    store.plan("close", CallPlan::Lose);
    assert!(open(&two, &a, 6).await.is_ok());
    store.until("close", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.open(&a), [(1, 6)]);
    assert_ne!(one.epoch_table.recall(&a, token(5), 0), Ok(Recalled::Open));
}
