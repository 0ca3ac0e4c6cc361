//! Prunes: marks that have not changed for long are deleted where nothing is open.

use std::time::Duration;

use fencepost::store::{PruneStep, Terms};

use super::operators::names;
use super::{Home, Must, advance_all, ask, batch, instance, signed};

contract! {
    { a_prune_goes_step_by_step, a_prune_is_announced_with_an_era }

    a_prune_deletes_what_is_old_and_has_nothing_open: "
        advance a:1 1; a:2 2; a:3 3; a:4 5 !x; b 4
        advance a:2 2 #1
        // They are young, and no era is used up.
        prune a: 1h = Pruned { deleted: 0, open: 0, next: None, era: None }
        prune a: 1ms dry = Pruned { deleted: 3, open: 1, next: None, era: None }
        names = a:1 a:2 a:3 a:4 b
        prune a: 1ms = Pruned { deleted: 3, open: 1, next: None, era: Some(1) }
        names = a:2 b
        count = (2, None)
        reopen
        names = a:2 b
        audit a:* = prune none>none by me: 3 marks, unchanged for 1ms: a test
        // A mark that was forgotten is as new: an older token passes, a spent one is spent no more.
        advance a:4 5 !y = none spent y
        // Once all that it has open is over, that mark goes too.
        settle = true
        prune a: 1ms = Pruned { deleted: 2, open: 0, next: None, era: Some(2) }
    "
}

async fn a_prune_goes_step_by_step(home: Home) {
    let store = home.open().await;
    let asks: Vec<_> = (0..2300).map(|at| ask(&format!("k{at:04}"), at)).collect();
    for asks in asks.chunks(500) {
        advance_all(&*store, batch(asks)).await;
    }
    // Longer than a clock needs to show another millisecond.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut step = PruneStep {
        prefix: "k".to_owned(),
        after: None,
        unchanged: Duration::from_millis(1),
        dry_run: false,
        by: signed("a test", "me"),
    };
    for deleted in [1000, 1000, 300] {
        let done = store.prune(&step).must().await;
        assert_eq!(done.deleted, deleted);
        step.after = done.next;
    }
    assert_eq!(step.after, None);
    assert_eq!(names(&*store, "", None, 9).await, [""; 0]);
}

async fn a_prune_is_announced_with_an_era(home: Home) {
    let store = home.open().await;
    let me = instance(1);
    let terms = Terms {
        lease: Duration::from_secs(7),
        ..Terms::default()
    };
    store.join(me, &terms).must().await;
    let announced = store.announce_prune(me).must().await;
    assert_eq!(announced, (1, Duration::ZERO), "nobody else is there");
    assert_eq!(store.join(instance(2), &terms).must().await, 1);
    let others = Duration::from_secs(if store.shared() { 7 } else { 0 });
    assert_eq!(store.announce_prune(me).must().await, (2, others));
}
