//! Prunes: marks that have not changed for long are deleted where nothing is open.

use std::time::Duration;

use fencepost::store::{PruneStep, Pruned, Terms};

use super::operators::names;
use super::{
    Home, Must, advance, advance_all, ask, batch, instance, key, opening, signed, spending,
};

fn prune(prefix: &str, unchanged: Duration) -> PruneStep {
    PruneStep {
        prefix: prefix.to_owned(),
        after: None,
        unchanged,
        dry_run: false,
        by: signed("a test", "me"),
    }
}

/// Longer than a clock needs to show another millisecond.
const A_MOMENT: Duration = Duration::from_millis(20);

pub async fn a_prune_deletes_what_is_old_and_has_nothing_open(home: Home) {
    let store = home.open().await;
    for (resource, number) in [("a:1", 1), ("a:2", 2), ("a:3", 3), ("b", 4)] {
        advance(&*store, ask(resource, number)).await;
    }
    advance(&*store, spending("a:4", 5, "x")).await;
    advance(&*store, opening("a:2", 2, 1)).await;
    tokio::time::sleep(A_MOMENT).await;
    let hour = prune("a:", Duration::from_hours(1));
    let none = store.prune(&hour).must().await;
    assert_eq!(
        none,
        Pruned::default(),
        "they are young, and no era is used up"
    );

    let old = prune("a:", Duration::from_millis(1));
    let dry = PruneStep {
        dry_run: true,
        ..old.clone()
    };
    let found = Pruned {
        deleted: 3,
        open: 1,
        ..Pruned::default()
    };
    assert_eq!(store.prune(&dry).must().await, found);
    assert_eq!(names(&*store, "", None, 9).await.len(), 5);

    let done = store.prune(&old).must().await;
    assert_eq!(
        done,
        Pruned {
            era: Some(1),
            ..found
        }
    );
    assert_eq!(names(&*store, "", None, 9).await, ["a:2", "b"]);
    assert_eq!(store.count_marks(None).must().await, (2, None));
    let store = home.reopen(store).await;
    assert_eq!(names(&*store, "", None, 9).await, ["a:2", "b"]);
    let audit = store.audit(&key("a:*"), 9).must().await;
    let [entry] = &audit[..] else {
        panic!("{audit:?}");
    };
    assert_eq!((&*entry.action, &*entry.actor), ("prune", "me"));
    assert_eq!(entry.reason, "3 marks, unchanged for 1ms: a test");
    // What was forgotten is as new: an older token passes, and a spent one is spent no more.
    let again = advance(&*store, spending("a:4", 5, "y")).await;
    assert_eq!((again.before, again.spent_by.as_deref()), (None, Some("y")));

    // Once all that it has open is over, that mark goes too.
    assert!(store.settle(instance(1)).must().await);
    tokio::time::sleep(A_MOMENT).await;
    let done = store.prune(&old).must().await;
    assert_eq!((done.deleted, done.open, done.era), (2, 0, Some(2)));
}

pub async fn a_prune_goes_step_by_step(home: Home) {
    let store = home.open().await;
    let asks: Vec<_> = (0..2300).map(|at| ask(&format!("k{at:04}"), at)).collect();
    for asks in asks.chunks(500) {
        advance_all(&*store, batch(asks)).await;
    }
    tokio::time::sleep(A_MOMENT).await;
    let mut step = prune("k", Duration::from_millis(1));
    let mut deleted = Vec::new();
    loop {
        let done = store.prune(&step).must().await;
        deleted.push(done.deleted);
        step.after = done.next;
        if step.after.is_none() {
            break;
        }
    }
    assert_eq!(deleted, [1000, 1000, 300]);
    assert_eq!(names(&*store, "", None, 9).await, [""; 0]);
}

pub async fn a_prune_is_announced_with_an_era(home: Home) {
    let store = home.open().await;
    let me = instance(1);
    let terms = Terms {
        lease: Duration::from_secs(7),
        ..Terms::default()
    };
    store.join(me, &terms).must().await;
    let (era, longest) = store.announce_prune(me).must().await;
    assert_eq!((era, longest), (1, Duration::ZERO), "nobody else is there");
    assert_eq!(store.join(instance(2), &terms).must().await, 1);
    let (era, longest) = store.announce_prune(me).must().await;
    let others = if store.shared() { 7 } else { 0 };
    assert_eq!((era, longest), (2, Duration::from_secs(others)));
}
