//! Own rows, read beside the writer and judged on it.

use super::*;
use crate::fencing::epochs::Entered;
use crate::store::Opening;

/// An epoch of this instance's that it knows nothing of.
fn stray(rig: &Rig, on: &str, opening: Opening, number: i64) -> EpochRow {
    EpochRow {
        resource: key(on),
        instance: rig.lease.identity().instance,
        opening,
        token: token(number),
    }
}

/// Read while its statement had no answer, and judged when it has one.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_read_unanswered_and_judged_when_answered_stays() {
    let (store, rig) = alone().await;
    let (answer, page) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    store.plan("epochs", CallPlan::HoldAnswer(Arc::clone(&answer)));
    let asked = ask(&rig, "a", 5, Want::Open);
    store.until("epochs", 1).await;
    store.plan("own", CallPlan::HoldAnswer(Arc::clone(&page)));
    rig.writer.poll();
    store.arrived("own", 1).await;
    assert_eq!(store.open(&key("a")), [(1, 5)], "the page has it");
    answer.notify_one();
    assert!(asked.await.expect("no panic").is_ok());
    let entered = rig.epoch_table.enter(&key("a"), token(5), 0, |_| None);
    assert!(matches!(entered, Ok(Entered::Permit(_))));
    page.notify_one();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(1, 5)], "it is in use");
    assert_eq!(store.calls("close"), 0);
}

/// Read when it was open, and judged when it is closed. Its opening closes it once more, which does
/// no harm.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_read_open_and_judged_when_closed_closes_nothing_else() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    let page = Arc::new(Notify::new());
    store.plan("own", CallPlan::HoldAnswer(Arc::clone(&page)));
    rig.writer.poll();
    store.arrived("own", 1).await;
    assert!(open(&rig, "a", 6).await.is_ok());
    store.arrived("close", 1).await;
    page.notify_one();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(2, 6)]);
    assert_eq!(look(&rig, "a", 6), Ok(Recalled::Open));
}

/// Missing when it was read, and closed by this instance itself before that is judged: nothing was
/// lost.
#[tokio::test(start_paused = true)]
async fn a_row_that_was_closed_meanwhile_is_not_lost() {
    let (store, rig) = alone().await;
    assert!(open(&rig, "a", 5).await.is_ok());
    let found = Arc::new(Notify::new());
    store.plan("own_of", CallPlan::Hold(Arc::clone(&found)));
    rig.writer.reconcile();
    store.arrived("own_of", 1).await;
    assert!(open(&rig, "a", 6).await.is_ok());
    store.arrived("close", 1).await;
    found.notify_one();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(look(&rig, "a", 6), Ok(Recalled::Open), "not quarantined");
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_looked_into_at_its_own_resource_and_nowhere_else() {
    let (store, rig, other) = pair().await;
    for n in 0..50 {
        assert!(open(&rig, &format!("r{n}"), 5).await.is_ok());
    }
    let (lost, kept) = (stray(&rig, "a", 777, 5), stray(&rig, "b", 778, 5));
    store.state().epochs.extend([lost, kept]);
    assert!(open(&other, "a", 6).await.is_ok());
    rig.writer.hint(key("a"));
    store.arrived("close", 1).await;
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(1, 6)]);
    assert_eq!(store.open(&key("b")).len(), 1);
    assert_eq!(store.order(&["own", "own_of"]), [("own_of", 1)]);
}

/// An endless flood of hints is asked about in bounded statements. The hints beyond the bound are
/// covered by one walk.
#[tokio::test(start_paused = true)]
async fn a_flood_of_hints_costs_bounded_statements() {
    let (store, rig) = alone().await;
    for n in 0..20_000 {
        rig.writer.hint(key(&format!("r{n}")));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = store.order(&["own_of", "own"]);
    assert_eq!(asked.len(), 9, "{asked:?}");
    assert!(asked.iter().all(|(_, rows)| *rows == 1024), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn the_walk_goes_page_by_page_and_finds_what_was_superseded_unheard() {
    let (store, rig) = alone().await;
    let asked: Vec<_> = (0..3000)
        .map(|n| ask(&rig, &format!("r{n:04}"), 5, Want::Open))
        .collect();
    for asked in asked {
        assert!(asked.await.expect("no panic").is_ok());
    }
    {
        let mut state = store.state();
        for on in ["r0000", "r1023", "r1024", "r2999"] {
            state.marks.insert(key(on), (token(6), None, 0));
        }
        let stray = stray(&rig, "r1500", 9_999, 5);
        state.epochs.push(stray);
    }
    rig.writer.poll();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.order(&["own"]), [("own", 1024); 3]);
    assert_eq!(store.state().epochs.len(), 2996);
    assert_eq!(store.open(&key("r1500")).len(), 1);
    assert_eq!(
        look(&rig, "r2999", 5),
        Err(Refused::stale(token(6), DecidedBy::Memory))
    );
    assert_eq!(look(&rig, "r2998", 5), Ok(Recalled::Open));
}

#[tokio::test(start_paused = true)]
async fn a_regular_walk_begins_every_five_seconds_and_another_when_asked() {
    let (store, rig) = alone().await;
    let minute = Duration::from_mins(1);
    tokio::time::sleep(minute).await;
    assert_eq!(store.calls("own"), 0, "nobody listens");
    rig.writer.begin_walks();
    tokio::time::sleep(minute).await;
    let regular = store.calls("own");
    assert!((11..=13).contains(&regular), "{regular}");
    rig.writer.poll();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.calls("own"), regular + 1, "at once");
}

/// No other instance can raise a mark there.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_not_shared_is_walked_for_a_check_only() {
    let store = Arc::new(Double::alone());
    let rig = rig(&store, 1).await;
    assert!(open(&rig, "a", 5).await.is_ok());
    rig.writer.poll();
    rig.writer.hint(key("a"));
    rig.writer.begin_walks();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(store.calls("own"), 0);
    let stray = stray(&rig, "a", 99, 5);
    store.state().epochs.push(stray);
    rig.writer.reconcile();
    tokio::time::sleep(A_TICK).await;
    assert_eq!(store.open(&key("a")), [(1, 5)]);
}

#[tokio::test(start_paused = true)]
async fn a_walk_that_fails_goes_on_where_it_was_and_holds_nobody_up() {
    let (store, rig) = alone().await;
    store.plan("own", CallPlan::Fail(broken()));
    store.plan("own", CallPlan::Lose);
    let never = Arc::new(Notify::new());
    let stray = stray(&rig, "a", 99, 5);
    store.state().epochs.push(stray);
    rig.writer.poll();
    store.arrived("own", 3).await;
    tokio::time::sleep(A_TICK).await;
    assert!(store.open(&key("a")).is_empty());
    store.plan("own", CallPlan::Hold(never));
    rig.writer.poll();
    store.arrived("own", 4).await;
    assert!(open(&rig, "b", 5).await.is_ok());
    assert!(open(&rig, "b", 6).await.is_ok());
}

/// A new connection each second, say: a check that begins again each time would never come to the
/// end.
#[tokio::test(start_paused = true)]
async fn a_check_that_is_asked_for_again_and_again_comes_to_its_end() {
    let (store, rig) = alone().await;
    for n in 0..20 {
        assert!(open(&rig, &format!("r{n}"), 5).await.is_ok());
    }
    store.state().epochs.clear();
    let parts = 0..rig.epoch_table.shards();
    let parts = parts.filter(|shard| !rig.epoch_table.open_rows(*shard, 0).is_empty());
    for asked in 1..=parts.count() {
        let go = Arc::new(Notify::new());
        store.plan("own_of", CallPlan::Hold(Arc::clone(&go)));
        rig.writer.reconcile();
        store.arrived("own_of", asked).await;
        go.notify_one();
    }
    tokio::task::yield_now().await;
    store.plan("own_of", CallPlan::Hold(Arc::new(Notify::new())));
    for n in 0..20 {
        let quarantined = look(&rig, &format!("r{n}"), 5);
        assert!(
            matches!(
                quarantined,
                Err(Refused::Unavailable {
                    why: Undecided::Repairing,
                    ..
                })
            ),
            "r{n}: {quarantined:?}"
        );
    }
}
