//! The epoch table by itself: the entries that may be forgotten, and those that may not.

use std::time::Duration;

use super::*;
use crate::fencing::tests::{ROOM, SETTLE, key, token};
use crate::metrics::Metrics;
use crate::store::{EpochRow, Opening};

const IDLE: Duration = Duration::from_mins(1);

fn epoch_table(capacity: usize) -> (Arc<EpochTable>, mpsc::UnboundedReceiver<Drained>) {
    let (tx, drained) = mpsc::unbounded_channel();
    let metrics = Arc::clone(Metrics::new(&[]).store());
    let epoch_table = EpochTable::new(capacity, SETTLE, SETTLE, tx, metrics);
    (Arc::new(epoch_table), drained)
}

fn row(on: &str, opening: Opening, number: i64) -> EpochRow {
    EpochRow {
        resource: key(on),
        instance: InstanceId::from_bits(1),
        opening,
        token: token(number),
    }
}

fn permit(epoch_table: &EpochTable, on: &str, number: i64, incarnation: u64) -> Ticket {
    match epoch_table.enter(&key(on), token(number), incarnation, |_| None) {
        Ok(Entered::Permit(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_is_asked_for_again_and_no_more_is_kept_than_allowed() {
    let (epoch_table, _drained) = epoch_table(SHARDS);
    for n in 0..10_000 {
        epoch_table.learn(&key(&format!("r{n}")), token(7), 0, false);
    }
    assert_eq!(epoch_table.active(), 0);
    let known = (0..10_000).filter(|n| epoch_table.known(&key(&format!("r{n}"))).is_some());
    assert!(known.count() <= SHARDS);
    assert_eq!(
        epoch_table.recall(&key("r0"), token(1), 0),
        Ok(Recalled::AskStore)
    );
    assert_eq!(
        epoch_table.recall(&key("r9999"), token(6), 0),
        Err(Refused::stale(token(7), DecidedBy::Memory)),
        "the latest is among those that are kept"
    );
}

#[tokio::test(start_paused = true)]
async fn an_epoch_with_a_permit_is_never_forgotten() {
    let (epoch_table, mut drained) = epoch_table(0);
    assert!(epoch_table.opened(row("a", 1, 5), (0, 0), Vec::new()));
    let ticket = permit(&epoch_table, "a", 5, 0);
    tokio::time::sleep(2 * IDLE).await;
    epoch_table.sweep(IDLE, 1).await;
    epoch_table.release(&key("a"));
    epoch_table.learn(&key("a"), token(6), 0, true);
    assert!(epoch_table.holds(&row("a", 1, 5)));
    assert!(drained.try_recv().is_err());
    assert!(ticket.superseded.is_cancelled());
    epoch_table.end(&key("a"), &ticket, Ending::Settled);
    let gone = drained.try_recv().expect("drained");
    assert_eq!(gone.row, row("a", 1, 5));
    assert!(gone.wanted);
    assert_eq!(epoch_table.active(), 0);
}

/// More are open than are to be remembered: those too many go, the longest unused first.
#[tokio::test(start_paused = true)]
async fn a_crowd_is_thinned_out_and_not_cleared() {
    const ROOM: usize = 4 * SHARDS;
    let (epoch_table, mut drained) = epoch_table(ROOM);
    let opened = |n: usize| {
        let opening = i64::try_from(n).expect("few");
        assert!(epoch_table.opened(row(&format!("r{n}"), opening, 5), (0, 0), Vec::new()));
    };
    (0..ROOM).for_each(opened);
    tokio::time::sleep(CROWDED_IDLE).await;
    epoch_table.sweep(IDLE, 1).await;
    assert!(drained.try_recv().is_err(), "there is room");
    tokio::time::sleep(CROWDED_IDLE).await;
    (ROOM..2 * ROOM).for_each(opened);
    epoch_table.sweep(IDLE, 1).await;
    assert!(epoch_table.active() >= ROOM && epoch_table.active() < 2 * ROOM);
    while let Ok(gone) = drained.try_recv() {
        assert!(gone.row.opening < i64::try_from(ROOM).expect("few"));
    }
    tokio::time::sleep(CROWDED_IDLE).await;
    epoch_table.sweep(IDLE, 1).await;
    assert!(epoch_table.active() <= ROOM, "{}", epoch_table.active());
    assert!(epoch_table.active() > ROOM / 2, "{}", epoch_table.active());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_its_turns_and_leaves_nothing_out() {
    let (epoch_table, mut drained) = epoch_table(100_000);
    for n in 0..10_000 {
        assert!(epoch_table.opened(row(&format!("r{n}"), n, 5), (0, 0), Vec::new()));
    }
    tokio::time::sleep(IDLE).await;
    let mut left = epoch_table.active();
    for _ in 0..50 {
        epoch_table.sweep(IDLE, 50).await;
        assert!(left - epoch_table.active() < 400, "a part at a time");
        left = epoch_table.active();
    }
    assert_eq!(left, 0);
    let gone = std::iter::from_fn(|| drained.try_recv().ok());
    assert_eq!(gone.count(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_others_is_found_as_long_as_it_waits() {
    let (epoch_table, _drained) = epoch_table(10);
    let foreign = |id| EpochRow {
        instance: InstanceId::from_bits(id),
        ..row("a", 7, 4)
    };
    assert!(epoch_table.opened(row("a", 1, 5), (0, 0), vec![foreign(2), foreign(3)]));
    assert_eq!(epoch_table.waiting_for_others(), [], "nobody waits");
    for _ in 0..2 {
        epoch_table
            .queue(&key("a"), token(5), ROOM)
            .expect("a place");
    }
    epoch_table
        .queue(&key("b"), token(5), ROOM)
        .expect("a place");
    for _ in 0..2 {
        assert_eq!(epoch_table.waiting_for_others(), [key("a")]);
        assert_eq!(
            epoch_table.waiting_for(&InstanceId::from_bits(3)),
            [key("a")]
        );
        assert_eq!(epoch_table.waiting_for(&InstanceId::from_bits(4)), []);
        assert_eq!(epoch_table.refused_for(&InstanceId::from_bits(3), 9), []);
        epoch_table.unqueue(&key("a"), token(5));
    }
    assert_eq!(epoch_table.waiting_for_others(), []);
    assert_eq!(epoch_table.waiting_for(&InstanceId::from_bits(3)), []);
    assert_eq!(
        epoch_table.refused_for(&InstanceId::from_bits(3), 9),
        [key("a")]
    );
    assert_eq!(epoch_table.refused_for(&InstanceId::from_bits(3), 0), []);
    assert_eq!(epoch_table.refused_for(&InstanceId::from_bits(4), 9), []);
    epoch_table.unqueue(&key("b"), token(5));
    assert_eq!(epoch_table.active(), 1);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_what_is_busy_is_named_and_nothing_gives_a_permit() {
    let (epoch_table, mut drained) = epoch_table(10);
    for (on, opening) in [("idle", 1), ("busy", 2), ("settling", 3)] {
        assert!(epoch_table.opened(row(on, opening, 5), (0, 0), Vec::new()));
    }
    let held = permit(&epoch_table, "busy", 5, 0);
    let unknown = permit(&epoch_table, "settling", 5, 0);
    epoch_table.end(&key("settling"), &unknown, Ending::Unknown);
    let mut busy = epoch_table.finish();
    busy.sort_unstable();
    assert_eq!(busy, [2, 3]);
    assert!(drained.try_recv().is_err(), "not row by row");
    for on in ["idle", "busy", "settling"] {
        let entered = epoch_table.enter(&key(on), token(5), 0, |_| None);
        assert!(matches!(entered, Ok(Entered::NotOpen)), "{on}");
    }
    epoch_table.end(&key("busy"), &held, Ending::Settled);
    assert_eq!(drained.try_recv().expect("drained").row, row("busy", 2, 5));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_was_asked_to_close_gives_no_permit_even_after_a_new_era() {
    let (epoch_table, _drained) = epoch_table(10);
    assert!(epoch_table.opened(row("a", 1, 5), (0, 0), Vec::new()));
    let _held = permit(&epoch_table, "a", 5, 0);
    epoch_table.learn(&key("a"), token(6), 0, false);
    epoch_table.retire_before(1);
    epoch_table.adopt(1);
    epoch_table.forget();
    assert!(matches!(
        epoch_table.enter(&key("a"), token(5), 0, |_| None),
        Ok(Entered::NotOpen)
    ));
    assert!(matches!(
        epoch_table.enter(&key("a"), token(5), 1, |_| None),
        Ok(Entered::NotOpen)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_new_era_forgets_refusals_but_not_where_an_epoch_is_open() {
    let (epoch_table, _drained) = epoch_table(10);
    epoch_table.learn(&key("idle"), token(10), 0, false);
    assert!(epoch_table.opened(row("held", 1, 10), (0, 0), Vec::new()));
    epoch_table.adopt(1);
    assert_eq!(epoch_table.known(&key("idle")), None);
    assert_eq!(epoch_table.known(&key("held")), Some(token(10)));
    epoch_table.learn(&key("idle"), token(10), 0, false);
    assert_eq!(
        epoch_table.known(&key("idle")),
        None,
        "read under the era before"
    );
    epoch_table.adopt(0);
    assert_eq!(epoch_table.era(), 1, "an era never goes back");
}

#[tokio::test(start_paused = true)]
async fn a_rejoin_retires_what_is_idle_at_once_and_the_rest_when_it_ends() {
    let (epoch_table, mut drained) = epoch_table(10);
    assert!(epoch_table.opened(row("idle", 1, 1), (0, 0), Vec::new()));
    assert!(epoch_table.opened(row("busy", 2, 1), (0, 0), Vec::new()));
    let ticket = permit(&epoch_table, "busy", 1, 0);
    epoch_table.retire_before(1);
    assert_eq!(drained.try_recv().expect("drained").row, row("idle", 1, 1));
    assert!(drained.try_recv().is_err());
    assert_eq!(
        epoch_table.recall(&key("busy"), token(1), 1),
        Ok(Recalled::AskStore)
    );
    assert!(epoch_table.opened(row("busy", 3, 2), (1, 0), Vec::new()));
    assert!(matches!(
        epoch_table.enter(&key("busy"), token(2), 1, |_| None),
        Ok(Entered::Wait { known_left: None })
    ));
    epoch_table.end(&key("busy"), &ticket, Ending::Unknown);
    assert!(matches!(
        epoch_table.enter(&key("busy"), token(2), 1, |_| None),
        Ok(Entered::Wait { known_left: Some(left) }) if left == SETTLE
    ));
    tokio::time::sleep(SETTLE + Duration::from_millis(1)).await;
    assert_eq!(drained.try_recv().expect("drained").row, row("busy", 2, 1));
    drop(permit(&epoch_table, "busy", 2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_opens_nothing_behind_a_newer_mark() {
    let (epoch_table, mut drained) = epoch_table(10);
    assert!(epoch_table.opened(row("a", 2, 6), (0, 0), Vec::new()));
    assert!(epoch_table.opened(row("a", 1, 5), (0, 0), Vec::new()));
    assert_eq!(drained.try_recv().expect("drained").row, row("a", 1, 5));
    assert!(matches!(
        epoch_table.enter(&key("a"), token(5), 0, |_| None),
        Err(Refused::Stale { mark, .. }) if mark == token(6)
    ));
}

#[tokio::test(start_paused = true)]
async fn an_operator_resolves_one_unknown_outcome_by_its_number() {
    let (epoch_table, _drained) = epoch_table(10);
    assert!(epoch_table.opened(row("a", 1, 5), (0, 0), Vec::new()));
    for _ in 0..2 {
        let ticket = permit(&epoch_table, "a", 5, 0);
        epoch_table.end(&key("a"), &ticket, Ending::Unknown);
    }
    assert!(epoch_table.opened(row("a", 2, 6), (0, 0), Vec::new()));
    let unknown = epoch_table.activity(&key("a")).unknown;
    assert_eq!(unknown.len(), 2);
    assert!(epoch_table.settled(&key("a"), unknown[0].number));
    assert!(!epoch_table.settled(&key("a"), unknown[0].number));
    assert!(matches!(
        epoch_table.enter(&key("a"), token(6), 0, |_| None),
        Ok(Entered::Wait { .. })
    ));
    assert!(epoch_table.settled(&key("a"), unknown[1].number));
    drop(permit(&epoch_table, "a", 6, 0));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_of_before_a_rejoin_teaches_nothing_after_it() {
    let (epoch_table, mut drained) = epoch_table(10);
    // Declared dead, reaped, the mark overridden: and only now the answer of before is entered.
    epoch_table.retire_before(1);
    epoch_table.adopt(1);
    epoch_table.forget();
    assert!(!epoch_table.opened(row("a", 1, 42), (0, 0), Vec::new()));
    assert_eq!(epoch_table.known(&key("a")), None);
    assert_eq!(
        epoch_table.recall(&key("a"), token(10), 1),
        Ok(Recalled::AskStore)
    );
    assert_eq!(epoch_table.active(), 0);
    assert!(epoch_table.opened(row("a", 2, 10), (1, 0), Vec::new()));
    assert_eq!(
        epoch_table.recall(&key("a"), token(10), 1),
        Ok(Recalled::Open)
    );
    assert!(drained.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_epoch_of_before_a_rejoin_keeps_no_memory_from_a_new_era() {
    let (epoch_table, _drained) = epoch_table(10);
    assert!(epoch_table.opened(row("a", 1, 42), (0, 0), Vec::new()));
    let _held = permit(&epoch_table, "a", 42, 0);
    epoch_table.retire_before(1);
    epoch_table.forget();
    // Learned again, and then overridden elsewhere: the epoch of before did not hold that back.
    epoch_table.learn(&key("a"), token(50), 0, false);
    assert_eq!(epoch_table.known(&key("a")), Some(token(50)));
    epoch_table.adopt(1);
    assert_eq!(epoch_table.known(&key("a")), None);
}

#[test]
fn no_statement_carries_an_era_before_memory_is_of_it() {
    let (epoch_table, _drained) = epoch_table(1_000_000);
    let keys: Vec<ResourceKey> = (0..100_000).map(|n| key(&format!("r{n}"))).collect();
    for key in &keys {
        epoch_table.learn(key, token(42), 0, false);
    }
    let started = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            started.wait();
            while epoch_table.era() == 0 {}
            // In the order in which a statement is made: the era, then what is known.
            keys.iter()
                .filter(|key| epoch_table.known(key).is_some())
                .count()
        });
        started.wait();
        epoch_table.adopt(1);
        assert_eq!(writer.join().expect("no panic"), 0);
    });
}

/// The store deletes the row of an unused epoch if the mark is above it. Meanwhile the epoch gives
/// no permit, no other call deletes the row, and none takes it for lost.
#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_being_ceded_gives_no_permit() {
    for fate in [Ceded::Deleted, Ceded::Kept, Ceded::Unknown] {
        let (epoch_table, mut drained) = epoch_table(0);
        let (a, epoch) = (key("a"), row("a", 1, 5));
        assert!(epoch_table.opened(epoch.clone(), (0, 0), Vec::new()));
        let ticket = permit(&epoch_table, "a", 5, 0);
        assert_eq!(epoch_table.cede(&a, token(6)), [], "it is in use");
        epoch_table.end(&a, &ticket, Ending::Settled);
        assert_eq!(epoch_table.cede(&a, token(5)), [], "it is not older");
        assert_eq!(epoch_table.cede(&a, token(6)), std::slice::from_ref(&epoch));
        assert_eq!(epoch_table.cede(&a, token(6)), [], "once");
        assert_eq!(epoch_table.recall(&a, token(5), 0), Ok(Recalled::AskStore));
        let entered = epoch_table.enter(&a, token(5), 0, |_| None);
        assert!(matches!(entered, Ok(Entered::NotOpen)), "{entered:?}");
        assert!(epoch_table.holds(&epoch) && !epoch_table.keeps(&epoch));
        assert!((0..epoch_table.shards()).all(|shard| epoch_table.open_rows(shard, 0).is_empty()));
        assert_eq!(epoch_table.reread(&a, &[], 0), Reread::Left(Vec::new()));
        // Known to be closed meanwhile, it is not deleted twice.
        epoch_table.release(&a);
        assert!(drained.try_recv().is_err());
        epoch_table.ceded(&epoch, fate);
        let closed = drained
            .try_recv()
            .map(|drained| (drained.row, drained.wanted));
        match fate {
            Ceded::Deleted => assert!(closed.is_err()),
            Ceded::Kept => assert_eq!(closed, Ok((epoch.clone(), false))),
            Ceded::Unknown => assert_eq!(closed, Ok((epoch.clone(), true))),
        }
        assert!(!epoch_table.holds(&epoch));
    }
    let (epoch_table, mut drained) = epoch_table(0);
    let epoch = row("a", 1, 5);
    assert!(epoch_table.opened(epoch.clone(), (0, 0), Vec::new()));
    assert_eq!(
        epoch_table.cede(&key("a"), token(6)),
        std::slice::from_ref(&epoch)
    );
    epoch_table.ceded(&epoch, Ceded::Kept);
    permit(&epoch_table, "a", 5, 0);
    assert!(drained.try_recv().is_err());
}
