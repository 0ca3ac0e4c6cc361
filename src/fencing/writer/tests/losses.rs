//! Marks, epochs and repairs after the store has lost something.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_lost_mark_is_seen_quarantined_and_written_back() {
    let (store, rig) = alone().await;
    assert!(
        ask(&rig, "a", 10, Want::Raise)
            .await
            .expect("no panic")
            .is_ok()
    );
    store.state().marks.insert(key("a"), (token(3), None, 0));
    let error = open(&rig, "a", 10).await.expect_err("lost");
    assert_eq!(error.kind(), "lost");
    assert_eq!(rig.metrics.store().series.mark_regressions.get(), 1);
    assert_repairing(look(&rig, "a", 10));
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.mark_of(&key("a")), Some(10));
    assert!(
        store.open(&key("a")).is_empty(),
        "no instance claims that opening"
    );
    assert_eq!(
        look(&rig, "a", 3),
        Err(Refused::stale(token(10), DecidedBy::Memory))
    );
}

/// A failover loses thousands at once. They are found part by part of what is known here, and those
/// of one part are repaired together.
#[tokio::test(start_paused = true)]
async fn very_many_losses_are_repaired_in_a_few_statements() {
    let (store, rig) = alone().await;
    let keys: Vec<String> = (0..2000).map(|number| format!("r{number:04}")).collect();
    for key in &keys {
        assert!(open(&rig, key, 5).await.is_ok());
    }
    let calls = |store: &Double| store.calls("advance") + store.calls("reopen");
    store.state().marks.clear();
    store.state().epochs.clear();
    // One that is locked keeps none of the others waiting.
    store.lock_row(&key("r0007"));
    let before = calls(&store);
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK * 4).await;
    for text in &keys {
        let mark = Some(5).filter(|_| text != "r0007");
        assert_eq!(store.mark_of(&key(text)), mark, "{text}");
        assert_eq!(store.open(&key(text)).len(), 1, "{text}");
        assert_repairing(look(&rig, text, 5));
    }
    let calls = calls(&store) - before;
    assert!(calls < 3 * rig.epoch_table.shards(), "{calls}");
}

/// A row that the store refuses, and a batch that it has no time for, keep the others from nothing.
#[tokio::test(start_paused = true)]
async fn a_batch_of_repairs_that_fails_is_made_smaller() {
    let (store, rig) = alone().await;
    let keys: Vec<String> = (0..300).map(|number| format!("r{number:04}")).collect();
    for key in &keys {
        assert!(open(&rig, key, 5).await.is_ok());
    }
    store.state().marks.clear();
    store.state().epochs.clear();
    store.refuse_row(&key("r0007"));
    store.has_time_for(20);
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK * 200).await;
    for text in &keys {
        let mark = Some(5).filter(|_| text != "r0007");
        assert_eq!(store.mark_of(&key(text)), mark, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_own_epoch_that_is_missing_is_a_loss_and_not_the_end_of_others() {
    let (store, one, two) = pair().await;
    assert!(open(&one, "a", 5).await.is_ok());
    assert!(open(&two, "a", 6).await.is_ok());
    assert!(two.epoch_table.waits_for_others(&key("a")));
    // A failover to a replica that was behind.
    store.state().epochs.clear();
    two.writer.reread(key("a"));
    store.until("epochs", 3).await;
    tokio::task::yield_now().await;
    assert!(
        two.epoch_table.waits_for_others(&key("a")),
        "what is lost has not ended"
    );
    assert_repairing(look(&two, "a", 6));
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(1, 6)], "recorded again");
    // The same between the two statements of one batch.
    let go = Arc::new(Notify::new());
    store.plan("epochs", CallPlan::Hold(Arc::clone(&go)));
    let asked = ask(&one, "b", 1, Want::Open);
    store.until("epochs", 4).await;
    store.state().epochs.clear();
    go.notify_one();
    assert_eq!(
        asked.await.expect("no panic").expect_err("lost").kind(),
        "lost"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_let_in_behind_a_lost_mark_is_waited_for_after_the_repair() {
    let (store, one, two) = pair().await;
    assert!(open(&two, "a", 7).await.is_ok());
    // A failover to a replica that was behind.
    store.state().marks.clear();
    store.state().epochs.clear();
    assert!(open(&one, "a", 6).await.is_ok());
    two.writer.reconcile();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.mark_of(&key("a")), Some(7));
    assert_repairing(look(&two, "a", 7));
    tokio::time::sleep(LOSS).await;
    assert_eq!(
        look(&two, "a", 7),
        Ok(Recalled::AskStore),
        "the epoch from before knows nothing of 6"
    );
    assert_eq!(open(&two, "a", 7).await, Ok(false));
    assert!(two.epoch_table.waits_for_others(&key("a")));
}
