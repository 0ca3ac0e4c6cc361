//! Deletions come bit by bit, and the end of a run leaves nothing but what is unknown.

use super::*;
use crate::fencing::writer::closes::Closes;
use crate::store::Opening;
use tokio::time::Instant;

fn row(on: &str, opening: Opening) -> EpochRow {
    EpochRow {
        resource: key(on),
        instance: InstanceId::from_bits(1),
        opening,
        token: token(5),
    }
}

/// Opens an epoch that no request uses for each of `count` resources.
async fn many(rig: &Rig, count: usize) {
    let asked: Vec<_> = (0..count)
        .map(|n| ask(rig, &format!("r{n:05}"), 5, Want::Open))
        .collect();
    for asked in asked {
        assert!(asked.await.expect("no panic").is_ok());
    }
}

/// The store's calls until nothing was open any more.
async fn until_closed(store: &Double) -> Vec<(&'static str, usize)> {
    while !store.state().epochs.is_empty() {
        tokio::time::sleep(A_TICK).await;
    }
    store.order(&["close", "announce"])
}

#[tokio::test(start_paused = true)]
async fn a_wave_of_deletions_lets_requests_through_after_each_chunk() {
    let (store, rig) = alone().await;
    many(&rig, 10_000).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    rig.lease.renewed(rig.lease.clock().now());
    let holds: Vec<_> = (0..5).map(|_| Arc::new(Notify::new())).collect();
    for hold in &holds {
        store.plan("close", CallPlan::HoldAnswer(Arc::clone(hold)));
    }
    rig.epoch_table.sweep(Duration::from_mins(1), 1).await;
    for (at, hold) in (1..).zip(&holds) {
        store.arrived("close", at).await;
        let asked = ask(&rig, &format!("x{at}"), 1, Want::Open);
        tokio::task::yield_now().await;
        hold.notify_one();
        assert!(asked.await.expect("no panic").is_ok());
        assert_eq!(store.calls("close"), at, "the request went first");
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(store.state().epochs.len(), holds.len());
    let closes = store.order(&["close"]);
    let most = closes.iter().map(|(_, rows)| *rows).max();
    assert_eq!(most, Some(256), "{closes:?}");
}

#[tokio::test(start_paused = true)]
async fn what_somebody_waits_for_goes_before_the_wave() {
    let (store, rig) = alone().await;
    many(&rig, 3000).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    rig.lease.renewed(rig.lease.clock().now());
    assert!(open(&rig, "r99999", 5).await.is_ok());
    let hold = Arc::new(Notify::new());
    store.plan("close", CallPlan::HoldAnswer(Arc::clone(&hold)));
    rig.epoch_table.sweep(Duration::from_mins(1), 1).await;
    store.arrived("close", 1).await;
    assert!(rig.epoch_table.learn(&key("r99999"), token(6), 0, true));
    hold.notify_one();
    let closes = until_closed(&store).await;
    let told = closes.iter().position(|(call, _)| *call == "announce");
    assert!(told.is_some_and(|at| at < 5), "{closes:?}");
    assert!(closes.len() > 10, "{closes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_waits_for_its_deletion_goes_at_once_when_it_is_hinted_at() {
    let (store, rig) = alone().await;
    many(&rig, 3000).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    rig.lease.renewed(rig.lease.clock().now());
    let hold = Arc::new(Notify::new());
    store.plan("close", CallPlan::HoldAnswer(Arc::clone(&hold)));
    rig.epoch_table.sweep(Duration::from_mins(1), 1).await;
    store.arrived("close", 1).await;
    assert_eq!(store.open(&key("r02999")).len(), 1);
    rig.writer.hint(key("r02999"));
    store.arrived("own_of", 1).await;
    hold.notify_one();
    let closes = until_closed(&store).await;
    assert_eq!(closes[1..3], [("close", 1), ("announce", 1)], "{closes:?}");
    assert!(closes.len() > 10, "{closes:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_deletes_range_by_range_and_not_by_name() {
    let (store, rig) = alone().await;
    many(&rig, 5000).await;
    assert!(open(&rig, "busy", 1).await.is_ok());
    let entered = rig.epoch_table.enter(&key("busy"), token(1), 0, |_| None);
    assert!(matches!(
        entered,
        Ok(crate::fencing::epochs::Entered::Permit(_))
    ));
    // One whose answer was lost.
    let lost = EpochRow {
        instance: rig.lease.identity().instance,
        ..row("lost", 77_777)
    };
    store.state().epochs.push(lost);
    rig.writer.stop().await;
    let left: Vec<_> = store
        .state()
        .epochs
        .iter()
        .map(|row| row.resource.clone())
        .collect();
    assert_eq!(left, [key("busy")]);
    assert_eq!(store.calls("close"), 0);
    assert_eq!(store.calls("close_own"), 1);
}

/// Ten thousand rows while a request comes every millisecond, and a chunk takes five.
#[test]
fn deletions_have_a_fifth_of_a_busy_writers_time_and_all_of_an_idle_ones() {
    let ms = Duration::from_millis(1);
    let began = Instant::now();
    let mut now = began;
    let mut closes = Closes::new(now);
    for opening in 0..10_000 {
        closes.push(row(&format!("r{opening}"), opening), false, now);
    }
    let (mut spent, mut last) = (Duration::ZERO, None);
    while now - began < Duration::from_millis(500) {
        closes.asked(now);
        now += ms;
        if let Some(chunk) = closes.chunk(1, now) {
            assert_eq!(chunk.rows.len(), 256);
            // In the order of their keys, so that a chunk is of neighbours.
            assert!(last < chunk.rows.first().cloned());
            last = chunk.rows.last().cloned();
            now += 5 * ms;
            spent += 5 * ms;
            closes.gone(&chunk, 5 * ms, now);
        }
    }
    assert!(spent > 70 * ms && spent <= 105 * ms, "{spent:?}");
    now += 20 * ms;
    let mut chunks = 0;
    while let Some(chunk) = closes.chunk(1, now) {
        now += 5 * ms;
        closes.gone(&chunk, 5 * ms, now);
        chunks += 1;
    }
    assert!(chunks > 10, "one after the other: {chunks}");
    assert_eq!(closes.due(), None);
}

/// As many rows as the batch has requests go with each turn, so that they never become ever more.
#[test]
fn rows_do_not_come_faster_than_they_go() {
    let mut now = Instant::now();
    let mut closes = Closes::new(now);
    let (mut opening, mut most) = (0, 0);
    for _ in 0..200 {
        for _ in 0..1000 {
            opening += 1;
            closes.push(row(&format!("r{opening}"), opening), false, now);
        }
        closes.asked(now);
        now += Duration::from_millis(10);
        if let Some(chunk) = closes.chunk(1000, now) {
            now += Duration::from_millis(10);
            closes.gone(&chunk, Duration::from_millis(10), now);
        }
        most = most.max(closes.waiting());
    }
    assert!(most < 20_000, "{most}");
}

#[test]
fn a_failed_deletion_is_not_tried_again_at_once_and_wanted_rows_do_not_starve_the_others() {
    let mut now = Instant::now();
    let mut closes = Closes::new(now);
    closes.push(row("a", 1), true, now);
    assert!(closes.chunk(1, now).is_some());
    closes.failed(now);
    assert!(closes.chunk(1, now).is_none());
    now += Duration::from_millis(250);
    closes.push(row("z", 9), false, now);
    now += Duration::from_millis(50);
    let mut went = Vec::new();
    for opening in 10..14 {
        closes.push(row("a", opening), true, now);
        let chunk = closes.chunk(1, now).expect("due");
        went.push(chunk.wanted);
        closes.gone(&chunk, Duration::from_millis(1), now);
    }
    assert_eq!(went, [true, false, true, true]);
}

/// An outage leaves a doubt per request, and the memory for them is bounded.
#[test]
fn no_more_doubtful_rows_are_kept_than_allowed() {
    let now = Instant::now();
    let mut closes = Closes::new(now);
    for opening in 0..20_000 {
        closes.push_doubtful(row(&format!("r{opening}"), opening));
    }
    assert_eq!(closes.waiting(), 8192);
    while let Some(chunk) = closes.chunk(1, now + Duration::from_secs(1)) {
        closes.gone(&chunk, Duration::ZERO, now);
    }
    closes.push_doubtful(row("later", 99_999));
    assert_eq!(closes.waiting(), 1);
}
