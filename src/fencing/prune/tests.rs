//! Prunes beside another instance, and beside what is open here.

use std::sync::Arc;

use super::*;
use crate::fencing::tests::{Double, Rig, TERM, clock, key, signed, token};
use crate::routing::Needs;

fn step() -> PruneStep {
    PruneStep {
        prefix: String::new(),
        after: None,
        unchanged: Duration::ZERO,
        dry_run: false,
        by: signed("a test", "me"),
    }
}

async fn raise(rig: &Rig, on: &str, number: i64) {
    let raised = rig
        .raise(Some(Needs::default()), &key(on), token(number))
        .await;
    raised.expect("raised");
}

/// The store's clock goes on.
fn later(store: &Double) {
    store.rows().now_ms += 1;
}

fn announced(pruning: &Pruning) -> Duration {
    match pruning {
        Pruning::Announced(wait) => *wait,
        Pruning::Done(done) => panic!("{done:?}"),
    }
}

fn done(pruning: Pruning) -> Pruned {
    match pruning {
        Pruning::Done(done) => done,
        Pruning::Announced(wait) => panic!("{wait:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_prune_waits_until_every_other_instance_has_forgotten() {
    let (store, clock) = (Arc::new(Double::default()), clock());
    let one = Rig::new(store.clone(), 1, clock.clone()).await;
    let two = Rig::new(store.clone(), 2, clock).await;
    raise(&one, "a", 5).await;
    raise(&two, "a", 6).await;
    later(&store);
    assert_eq!(two.known("a"), Some(6));

    let wait = announced(&one.prune(&step()).await.expect("an answer"));
    assert!(wait > TERM, "{wait:?}");
    assert_eq!(one.known("a"), None, "this one has");
    assert!(store.mark_of(&key("a")).is_some(), "nothing is deleted yet");
    tokio::time::sleep(wait / 2).await;
    let rest = announced(&one.prune(&step()).await.expect("an answer"));
    assert!(rest < wait, "it is the same announcement: {rest:?}");
    // The other one renews within its lease, as its membership task would.
    two.epoch_table.adopt(store.rows().era);
    tokio::time::sleep(rest).await;
    let pruned = done(one.prune(&step()).await.expect("an answer"));
    assert_eq!((pruned.deleted, pruned.open), (1, 0));
    assert_eq!(store.mark_of(&key("a")), None);

    // To the other instance no mark is lost, and a lower token is as good as a first one.
    raise(&two, "a", 3).await;
    assert_eq!(store.mark_of(&key("a")), Some(3));
    assert_eq!(two.metrics().series.mark_regressions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_open_stays() {
    let store = Arc::new(Double::alone());
    let rig = Rig::new(store.clone(), 1, clock()).await;
    raise(&rig, "a", 5).await;
    let permit = rig.admit("b", 5).await;
    later(&store);
    let pruned = done(rig.prune(&step()).await.expect("an answer"));
    assert_eq!((pruned.deleted, pruned.open), (1, 1));
    assert_eq!(store.mark_of(&key("b")), Some(5));
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing_and_waits_for_nobody() {
    let (store, clock) = (Arc::new(Double::default()), clock());
    let one = Rig::new(store.clone(), 1, clock.clone()).await;
    let _two = Rig::new(store.clone(), 2, clock).await;
    raise(&one, "a", 5).await;
    later(&store);
    let dry = PruneStep {
        dry_run: true,
        ..step()
    };
    assert_eq!(done(one.prune(&dry).await.expect("an answer")).deleted, 1);
    assert_eq!(store.mark_of(&key("a")), Some(5));
    assert_eq!(store.rows().era, 0);
    assert_eq!(one.known("a"), Some(5));
}
