//! Epochs open under the mark's lock and close by their opening.

use super::{
    Home, advance, advance_as, ask, epoch, epochs_of, instance, key, mark_of, opening, token,
};

pub async fn an_epoch_opens_unless_the_mark_is_above(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    assert_eq!(epochs_of(&*store, "a").await, [epoch("a", 1, 1, 5)]);
    // An equal token, of another instance.
    advance_as(&*store, 2, 0, opening("a", 5, 1)).await;
    // A lower one opens nothing; a higher one opens, and closes nothing.
    advance(&*store, opening("a", 4, 2)).await;
    advance(&*store, opening("a", 6, 3)).await;
    // Without an opening nothing opens.
    advance(&*store, ask("a", 7)).await;
    assert_eq!(
        epochs_of(&*store, "a").await,
        [
            epoch("a", 1, 1, 5),
            epoch("a", 1, 3, 6),
            epoch("a", 2, 1, 5)
        ]
    );
    assert_eq!(epochs_of(&*store, "b").await, []);
}

pub async fn an_epoch_is_closed_by_its_opening_only(home: Home) {
    let store = home.open().await;
    for number in 1..=3 {
        advance(&*store, opening("a", 5, number)).await;
        advance_as(&*store, 2, 0, opening("a", 5, number)).await;
    }
    store
        .close(&[
            epoch("a", 1, 1, 5),
            epoch("a", 2, 3, 5),
            epoch("a", 1, 9, 5),
            epoch("b", 1, 2, 5),
        ])
        .await
        .expect("an answer");
    assert_eq!(
        epochs_of(&*store, "a").await,
        [
            epoch("a", 1, 2, 5),
            epoch("a", 1, 3, 5),
            epoch("a", 2, 1, 5),
            epoch("a", 2, 2, 5)
        ]
    );
    store.close(&[]).await.expect("an answer");
    assert_eq!(epochs_of(&*store, "a").await.len(), 4);
    assert_eq!(mark_of(&*store, "a").await, Some(5));
}

/// A statement whose answer was lost commits after its epoch was closed and a newer one opened.
pub async fn a_late_duplicate_opens_and_closes_nothing_else(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    advance(&*store, opening("a", 5, 2)).await;
    store
        .close(&[epoch("a", 1, 1, 5)])
        .await
        .expect("an answer");
    advance_as(&*store, 2, 0, opening("a", 6, 1)).await;
    let late = advance(&*store, opening("a", 5, 3)).await;
    assert_eq!(late.before, Some(token(6)));
    assert_eq!(
        epochs_of(&*store, "a").await,
        [epoch("a", 1, 2, 5), epoch("a", 2, 1, 6)]
    );
    assert_eq!(mark_of(&*store, "a").await, Some(6));
}

pub async fn superseded_epochs_are_those_below_the_mark(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    advance(&*store, opening("b", 5, 2)).await;
    advance_as(&*store, 2, 0, opening("a", 5, 1)).await;
    assert_eq!(store.superseded(&instance(1)).await.expect("an answer"), []);
    advance_as(&*store, 2, 0, opening("a", 8, 2)).await;
    assert_eq!(
        store.superseded(&instance(1)).await.expect("an answer"),
        [(epoch("a", 1, 1, 5), token(8))]
    );
    assert_eq!(
        store.superseded(&instance(2)).await.expect("an answer"),
        [(epoch("a", 2, 1, 5), token(8))]
    );
    let mut own = store.own(&instance(1)).await.expect("an answer");
    own.sort();
    assert_eq!(own, [epoch("a", 1, 1, 5), epoch("b", 1, 2, 5)]);
    assert_eq!(store.own(&instance(3)).await.expect("an answer"), []);
}

pub async fn epochs_are_read_for_the_resources_named(home: Home) {
    let store = home.open().await;
    for (at, resource) in (0..).zip(["a", "b", "c", "A", "a%"]) {
        advance(&*store, opening(resource, 5, at)).await;
    }
    let mut rows = store
        .epochs(&[key("c"), key("a"), key("nowhere")])
        .await
        .expect("an answer");
    rows.sort();
    assert_eq!(rows, [epoch("a", 1, 0, 5), epoch("c", 1, 2, 5)]);
    assert_eq!(store.epochs(&[]).await.expect("an answer"), []);
}

pub async fn lost_epochs_are_opened_again(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    let kept = [epoch("a", 1, 1, 5), epoch("b", 1, 2, 7)];
    for _ in 0..2 {
        store.reopen(&kept).await.expect("an answer");
        let mut own = store.own(&instance(1)).await.expect("an answer");
        own.sort();
        assert_eq!(own, kept);
    }
    // No mark is looked at, or made.
    assert_eq!(mark_of(&*store, "b").await, None);
}

pub async fn no_epoch_opens_in_an_older_era(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    store
        .override_mark(&key("a"), token(2), "a test", "me")
        .await
        .expect("an answer");
    for number in [2, 5, 9] {
        advance_as(&*store, 1, 0, opening("a", number, number)).await;
    }
    assert_eq!(epochs_of(&*store, "a").await, []);
    advance_as(&*store, 1, 1, opening("a", 2, 20)).await;
    assert_eq!(epochs_of(&*store, "a").await, [epoch("a", 1, 20, 2)]);
}
