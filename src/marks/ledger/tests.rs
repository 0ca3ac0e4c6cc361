//! The ledger by itself: what may be forgotten, and what may not.

use std::time::Duration;

use super::*;
use crate::marks::double::{ROOM, SETTLE, key, token};

const IDLE: Duration = Duration::from_mins(1);

fn ledger(capacity: usize) -> (Arc<Ledger>, mpsc::UnboundedReceiver<Drained>) {
    let gauge = |name| IntGauge::new(name, "of a test").expect("good options");
    let (tx, drained) = mpsc::unbounded_channel();
    let ledger = Ledger::new(
        capacity,
        SETTLE,
        SETTLE,
        tx,
        gauge("open"),
        gauge("unknown"),
    );
    (Arc::new(ledger), drained)
}

fn row(on: &str, opening: Opening, number: i64) -> EpochRow {
    EpochRow {
        resource: key(on),
        instance: InstanceId::from_bits(1),
        opening,
        token: token(number),
    }
}

fn permit(ledger: &Ledger, on: &str, number: i64, generation: u64) -> Ticket {
    match ledger.enter(&key(on), token(number), generation, |_| None) {
        Entered::Permit(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_is_asked_for_again_and_no_more_is_kept_than_allowed() {
    let (ledger, _drained) = ledger(SHARDS);
    for n in 0..10_000 {
        ledger.learn(&key(&format!("r{n}")), token(7), 0, false);
    }
    assert_eq!(ledger.active(), 0);
    let known = (0..10_000).filter(|n| ledger.known(&key(&format!("r{n}"))).is_some());
    assert!(known.count() <= SHARDS);
    assert_eq!(ledger.look(&key("r0"), token(1), 0), Look::Ask);
    assert_eq!(
        ledger.look(&key("r9999"), token(6), 0),
        Look::Stale(token(7)),
        "the latest is among those that are kept"
    );
}

#[tokio::test(start_paused = true)]
async fn an_epoch_with_a_permit_is_never_forgotten() {
    let (ledger, mut drained) = ledger(0);
    assert!(ledger.opened(row("a", 1, 5), (0, 0), Vec::new()));
    let ticket = permit(&ledger, "a", 5, 0);
    tokio::time::sleep(2 * IDLE).await;
    ledger.sweep(IDLE, 1).await;
    ledger.release(&key("a"));
    ledger.learn(&key("a"), token(6), 0, true);
    assert!(ledger.holds(&row("a", 1, 5)));
    assert!(drained.try_recv().is_err());
    assert!(ticket.superseded.is_cancelled());
    ledger.end(&key("a"), &ticket, Ending::Settled);
    let gone = drained.try_recv().expect("drained");
    assert_eq!(gone.row, row("a", 1, 5));
    assert!(gone.wanted);
    assert_eq!(ledger.active(), 0);
}

/// More are open than are to be remembered: those too many go, the longest unused first.
#[tokio::test(start_paused = true)]
async fn a_crowd_is_thinned_out_and_not_cleared() {
    const ROOM: usize = 4 * SHARDS;
    let (ledger, mut drained) = ledger(ROOM);
    let opened = |n: usize| {
        let opening = i64::try_from(n).expect("few");
        assert!(ledger.opened(row(&format!("r{n}"), opening, 5), (0, 0), Vec::new()));
    };
    (0..ROOM).for_each(opened);
    tokio::time::sleep(CROWDED_IDLE).await;
    ledger.sweep(IDLE, 1).await;
    assert!(drained.try_recv().is_err(), "there is room");
    tokio::time::sleep(CROWDED_IDLE).await;
    (ROOM..2 * ROOM).for_each(opened);
    ledger.sweep(IDLE, 1).await;
    assert!(ledger.active() >= ROOM && ledger.active() < 2 * ROOM);
    while let Ok(gone) = drained.try_recv() {
        assert!(gone.row.opening < i64::try_from(ROOM).expect("few"));
    }
    tokio::time::sleep(CROWDED_IDLE).await;
    ledger.sweep(IDLE, 1).await;
    assert!(ledger.active() <= ROOM, "{}", ledger.active());
    assert!(ledger.active() > ROOM / 2, "{}", ledger.active());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_its_turns_and_leaves_nothing_out() {
    let (ledger, mut drained) = ledger(100_000);
    for n in 0..10_000 {
        assert!(ledger.opened(row(&format!("r{n}"), n, 5), (0, 0), Vec::new()));
    }
    tokio::time::sleep(IDLE).await;
    let mut left = ledger.active();
    for _ in 0..50 {
        ledger.sweep(IDLE, 50).await;
        assert!(left - ledger.active() < 400, "a part at a time");
        left = ledger.active();
    }
    assert_eq!(left, 0);
    let gone = std::iter::from_fn(|| drained.try_recv().ok());
    assert_eq!(gone.count(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_others_is_found_as_long_as_it_waits() {
    let (ledger, _drained) = ledger(10);
    let foreign = |id| EpochRow {
        instance: InstanceId::from_bits(id),
        ..row("a", 7, 4)
    };
    assert!(ledger.opened(row("a", 1, 5), (0, 0), vec![foreign(2), foreign(3)]));
    assert_eq!(ledger.waiting_for_others(), [], "nobody waits");
    for _ in 0..2 {
        ledger.queue(&key("a"), token(5), ROOM).expect("a place");
    }
    ledger.queue(&key("b"), token(5), ROOM).expect("a place");
    for _ in 0..2 {
        assert_eq!(ledger.waiting_for_others(), [key("a")]);
        assert_eq!(ledger.waiting_for(&InstanceId::from_bits(3)), [key("a")]);
        assert_eq!(ledger.waiting_for(&InstanceId::from_bits(4)), []);
        assert_eq!(ledger.refused_for(&InstanceId::from_bits(3), 9), []);
        ledger.unqueue(&key("a"), token(5));
    }
    assert_eq!(ledger.waiting_for_others(), []);
    assert_eq!(ledger.waiting_for(&InstanceId::from_bits(3)), []);
    assert_eq!(ledger.refused_for(&InstanceId::from_bits(3), 9), [key("a")]);
    assert_eq!(ledger.refused_for(&InstanceId::from_bits(3), 0), []);
    assert_eq!(ledger.refused_for(&InstanceId::from_bits(4), 9), []);
    ledger.unqueue(&key("b"), token(5));
    assert_eq!(ledger.active(), 1);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_what_is_busy_is_named_and_nothing_gives_a_permit() {
    let (ledger, mut drained) = ledger(10);
    for (on, opening) in [("idle", 1), ("busy", 2), ("settling", 3)] {
        assert!(ledger.opened(row(on, opening, 5), (0, 0), Vec::new()));
    }
    let held = permit(&ledger, "busy", 5, 0);
    let unknown = permit(&ledger, "settling", 5, 0);
    ledger.end(&key("settling"), &unknown, Ending::Unknown);
    let mut busy = ledger.finish();
    busy.sort_unstable();
    assert_eq!(busy, [2, 3]);
    assert!(drained.try_recv().is_err(), "not row by row");
    for on in ["idle", "busy", "settling"] {
        let entered = ledger.enter(&key(on), token(5), 0, |_| None);
        assert!(matches!(entered, Entered::NotOpen), "{on}");
    }
    ledger.end(&key("busy"), &held, Ending::Settled);
    assert_eq!(drained.try_recv().expect("drained").row, row("busy", 2, 5));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_was_asked_to_close_gives_no_permit_even_after_a_new_era() {
    let (ledger, _drained) = ledger(10);
    assert!(ledger.opened(row("a", 1, 5), (0, 0), Vec::new()));
    let _held = permit(&ledger, "a", 5, 0);
    ledger.learn(&key("a"), token(6), 0, false);
    ledger.retire_before(1);
    ledger.adopt(1);
    ledger.forget();
    assert!(matches!(
        ledger.enter(&key("a"), token(5), 0, |_| None),
        Entered::NotOpen
    ));
    assert!(matches!(
        ledger.enter(&key("a"), token(5), 1, |_| None),
        Entered::NotOpen
    ));
}

#[tokio::test(start_paused = true)]
async fn a_new_era_forgets_refusals_but_not_where_an_epoch_is_open() {
    let (ledger, _drained) = ledger(10);
    ledger.learn(&key("idle"), token(10), 0, false);
    assert!(ledger.opened(row("held", 1, 10), (0, 0), Vec::new()));
    ledger.adopt(1);
    assert_eq!(ledger.known(&key("idle")), None);
    assert_eq!(ledger.known(&key("held")), Some(token(10)));
    ledger.learn(&key("idle"), token(10), 0, false);
    assert_eq!(
        ledger.known(&key("idle")),
        None,
        "read under the era before"
    );
    ledger.adopt(0);
    assert_eq!(ledger.era(), 1, "an era never goes back");
}

#[tokio::test(start_paused = true)]
async fn a_rejoin_retires_what_is_idle_at_once_and_the_rest_when_it_ends() {
    let (ledger, mut drained) = ledger(10);
    assert!(ledger.opened(row("idle", 1, 1), (0, 0), Vec::new()));
    assert!(ledger.opened(row("busy", 2, 1), (0, 0), Vec::new()));
    let ticket = permit(&ledger, "busy", 1, 0);
    ledger.retire_before(1);
    assert_eq!(drained.try_recv().expect("drained").row, row("idle", 1, 1));
    assert!(drained.try_recv().is_err());
    assert_eq!(ledger.look(&key("busy"), token(1), 1), Look::Ask);
    assert!(ledger.opened(row("busy", 3, 2), (1, 0), Vec::new()));
    assert!(matches!(
        ledger.enter(&key("busy"), token(2), 1, |_| None),
        Entered::Wait { known_left: None }
    ));
    ledger.end(&key("busy"), &ticket, Ending::Unknown);
    assert!(matches!(
        ledger.enter(&key("busy"), token(2), 1, |_| None),
        Entered::Wait { known_left: Some(left) } if left == SETTLE
    ));
    tokio::time::sleep(SETTLE + Duration::from_millis(1)).await;
    assert_eq!(drained.try_recv().expect("drained").row, row("busy", 2, 1));
    drop(permit(&ledger, "busy", 2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_opens_nothing_behind_a_newer_mark() {
    let (ledger, mut drained) = ledger(10);
    assert!(ledger.opened(row("a", 2, 6), (0, 0), Vec::new()));
    assert!(ledger.opened(row("a", 1, 5), (0, 0), Vec::new()));
    assert_eq!(drained.try_recv().expect("drained").row, row("a", 1, 5));
    assert!(matches!(
        ledger.enter(&key("a"), token(5), 0, |_| None),
        Entered::Superseded(mark) if mark == token(6)
    ));
}

#[tokio::test(start_paused = true)]
async fn an_operator_resolves_one_unknown_outcome_by_its_number() {
    let (ledger, _drained) = ledger(10);
    assert!(ledger.opened(row("a", 1, 5), (0, 0), Vec::new()));
    for _ in 0..2 {
        let ticket = permit(&ledger, "a", 5, 0);
        ledger.end(&key("a"), &ticket, Ending::Unknown);
    }
    assert!(ledger.opened(row("a", 2, 6), (0, 0), Vec::new()));
    let unknown = ledger.activity(&key("a")).unknown;
    assert_eq!(unknown.len(), 2);
    assert!(ledger.settled(&key("a"), unknown[0].number));
    assert!(!ledger.settled(&key("a"), unknown[0].number));
    assert!(matches!(
        ledger.enter(&key("a"), token(6), 0, |_| None),
        Entered::Wait { .. }
    ));
    assert!(ledger.settled(&key("a"), unknown[1].number));
    drop(permit(&ledger, "a", 6, 0));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_of_before_a_rejoin_teaches_nothing_after_it() {
    let (ledger, mut drained) = ledger(10);
    // Declared dead, buried, the mark overridden: and only now the answer of before is entered.
    ledger.retire_before(1);
    ledger.adopt(1);
    ledger.forget();
    assert!(!ledger.opened(row("a", 1, 42), (0, 0), Vec::new()));
    assert_eq!(ledger.known(&key("a")), None);
    assert_eq!(ledger.look(&key("a"), token(10), 1), Look::Ask);
    assert_eq!(ledger.active(), 0);
    assert!(ledger.opened(row("a", 2, 10), (1, 0), Vec::new()));
    assert_eq!(ledger.look(&key("a"), token(10), 1), Look::Open);
    assert!(drained.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_epoch_of_before_a_rejoin_keeps_no_memory_from_a_new_era() {
    let (ledger, _drained) = ledger(10);
    assert!(ledger.opened(row("a", 1, 42), (0, 0), Vec::new()));
    let _held = permit(&ledger, "a", 42, 0);
    ledger.retire_before(1);
    ledger.forget();
    // Learned again, and then overridden elsewhere: the epoch of before did not hold that back.
    ledger.learn(&key("a"), token(50), 0, false);
    assert_eq!(ledger.known(&key("a")), Some(token(50)));
    ledger.adopt(1);
    assert_eq!(ledger.known(&key("a")), None);
}

#[test]
fn no_statement_carries_an_era_before_memory_is_of_it() {
    let (ledger, _drained) = ledger(1_000_000);
    let keys: Vec<ResourceKey> = (0..100_000).map(|n| key(&format!("r{n}"))).collect();
    for key in &keys {
        ledger.learn(key, token(42), 0, false);
    }
    let started = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| {
            started.wait();
            while ledger.era() == 0 {}
            // In the order in which a statement is made: the era, then what is known.
            keys.iter()
                .filter(|key| ledger.known(key).is_some())
                .count()
        });
        started.wait();
        ledger.adopt(1);
        assert_eq!(lane.join().expect("no panic"), 0);
    });
}

/// While the store deletes the row of an epoch that nobody uses, if the mark is above it, the epoch gives no permit,
/// nobody deletes its row besides, and nobody takes it for lost.
#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_being_ceded_gives_no_permit() {
    for fate in [Ceded::Deleted, Ceded::Kept, Ceded::Unknown] {
        let (ledger, mut drained) = ledger(0);
        let (a, epoch) = (key("a"), row("a", 1, 5));
        assert!(ledger.opened(epoch.clone(), (0, 0), Vec::new()));
        let ticket = permit(&ledger, "a", 5, 0);
        assert_eq!(ledger.cede(&a), [], "it is in use");
        ledger.end(&a, &ticket, Ending::Settled);
        assert_eq!(ledger.cede(&a), std::slice::from_ref(&epoch));
        assert_eq!(ledger.cede(&a), [], "once");
        assert_eq!(ledger.look(&a, token(5), 0), Look::Ask);
        let entered = ledger.enter(&a, token(5), 0, |_| None);
        assert!(matches!(entered, Entered::NotOpen), "{entered:?}");
        assert!(ledger.holds(&epoch) && !ledger.keeps(&epoch));
        assert!((0..ledger.shards()).all(|shard| ledger.open_rows(shard, 0).is_empty()));
        assert_eq!(ledger.looked(&a, &[], 0), Looked::Left(Vec::new()));
        // Known to be closed meanwhile, it is not deleted twice.
        ledger.release(&a);
        assert!(drained.try_recv().is_err());
        ledger.ceded(&epoch, fate);
        let closed = drained
            .try_recv()
            .map(|drained| (drained.row, drained.wanted));
        match fate {
            Ceded::Deleted => assert!(closed.is_err()),
            Ceded::Kept => assert_eq!(closed, Ok((epoch.clone(), false))),
            Ceded::Unknown => assert_eq!(closed, Ok((epoch.clone(), true))),
        }
        assert!(!ledger.holds(&epoch));
    }
    let (ledger, mut drained) = ledger(0);
    let epoch = row("a", 1, 5);
    assert!(ledger.opened(epoch.clone(), (0, 0), Vec::new()));
    assert_eq!(ledger.cede(&key("a")), std::slice::from_ref(&epoch));
    ledger.ceded(&epoch, Ceded::Kept);
    permit(&ledger, "a", 5, 0);
    assert!(drained.try_recv().is_err());
}
