//! Epochs open under the mark's lock and close by their opening.

use fencepost::store::EpochRow;

use super::{
    Home, Must, advance, advance_as, ask, epoch, epochs_of, instance, key, mark_of, opening, own,
    token,
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
        .must()
        .await;
    assert_eq!(
        epochs_of(&*store, "a").await,
        [
            epoch("a", 1, 2, 5),
            epoch("a", 1, 3, 5),
            epoch("a", 2, 1, 5),
            epoch("a", 2, 2, 5)
        ]
    );
    store.close(&[]).must().await;
    assert_eq!(epochs_of(&*store, "a").await.len(), 4);
    assert_eq!(mark_of(&*store, "a").await, Some(5));
}

pub async fn an_epoch_is_ceded_only_below_its_mark(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    advance(&*store, opening("a", 6, 2)).await;
    advance_as(&*store, 2, 0, opening("a", 6, 3)).await;
    advance(&*store, opening("b", 5, 4)).await;
    let mut marks = store
        .cede(&[
            epoch("a", 1, 1, 5),
            epoch("a", 1, 2, 6),
            epoch("b", 1, 4, 5),
            epoch("c", 1, 5, 5),
        ])
        .must()
        .await;
    marks.sort_by(|one, other| one.resource.cmp(&other.resource));
    marks.dedup_by(|one, other| one.resource == other.resource);
    let marks: Vec<_> = marks
        .iter()
        .map(|mark| (&mark.resource, mark.token))
        .collect();
    assert_eq!(marks, [(&key("a"), token(6)), (&key("b"), token(5))]);
    assert_eq!(
        epochs_of(&*store, "a").await,
        [epoch("a", 1, 2, 6), epoch("a", 2, 3, 6)]
    );
    assert_eq!(epochs_of(&*store, "b").await, [epoch("b", 1, 4, 5)]);
}

/// A statement whose answer was lost commits after its epoch was closed and a newer one opened.
pub async fn a_late_duplicate_opens_and_closes_nothing_else(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    advance(&*store, opening("a", 5, 2)).await;
    store.close(&[epoch("a", 1, 1, 5)]).must().await;
    advance_as(&*store, 2, 0, opening("a", 6, 1)).await;
    let late = advance(&*store, opening("a", 5, 3)).await;
    assert_eq!(late.before, Some(token(6)));
    assert_eq!(
        epochs_of(&*store, "a").await,
        [epoch("a", 1, 2, 5), epoch("a", 2, 1, 6)]
    );
    assert_eq!(mark_of(&*store, "a").await, Some(6));
}

pub async fn own_epochs_are_read_in_pages_with_their_marks(home: Home) {
    let store = home.open().await;
    let me = instance(1);
    assert_eq!(store.own(&me, None, 10).must().await, []);
    for (resource, opened) in [("b", 2), ("a", 4), ("B", 3), ("a", 1)] {
        advance(&*store, opening(resource, 5, opened)).await;
    }
    advance_as(&*store, 2, 0, opening("a", 8, 2)).await;
    store.reopen(&[epoch("ä", 1, 9, 5)]).must().await;
    let all = [
        (epoch("B", 1, 3, 5), Some(token(5))),
        (epoch("a", 1, 1, 5), Some(token(8))),
        (epoch("a", 1, 4, 5), Some(token(8))),
        (epoch("b", 1, 2, 5), Some(token(5))),
        (epoch("ä", 1, 9, 5), None),
    ];
    for limit in 1..=6 {
        let mut read = Vec::new();
        loop {
            let last = read
                .last()
                .map(|(row, _): &(EpochRow, _)| (row.resource.clone(), row.opening));
            let page = store.own(&me, last.as_ref(), limit).must().await;
            let full = u32::try_from(page.len()) == Ok(limit);
            read.extend(page);
            if !full {
                break;
            }
        }
        assert_eq!(read, all, "{limit} at a time");
    }
    assert_eq!(
        store.own(&instance(2), None, 10).must().await,
        [(epoch("a", 2, 2, 8), Some(token(8)))]
    );
}

pub async fn own_epochs_are_read_for_the_resources_named(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    advance(&*store, opening("b", 5, 2)).await;
    advance_as(&*store, 2, 0, opening("a", 8, 1)).await;
    let own_of = async |of: u64, resources: &[&str]| {
        let resources: Vec<_> = resources.iter().map(|resource| key(resource)).collect();
        let rows = store.own_of(&instance(of), &resources).await;
        rows.expect("an answer")
    };
    let row = (epoch("a", 1, 1, 5), Some(token(8)));
    assert_eq!(own_of(1, &["a", "nowhere"]).await, [row]);
    assert_eq!(own_of(2, &["b"]).await, []);
    assert_eq!(own_of(1, &[]).await, []);
}

/// A row that is kept is unknown: in flight or settling. Others' rows do not concern this run.
pub async fn at_the_end_of_a_run_its_own_epochs_go_but_those_named(home: Home) {
    let store = home.open().await;
    for limit in [1, 2, 3, 100] {
        for number in 1..=7 {
            let resource = format!("r{}", number % 3);
            advance(&*store, opening(&resource, 5, number)).await;
            advance_as(&*store, 2, 0, opening(&resource, 5, number)).await;
        }
        let (me, mut after, mut calls) = (instance(1), None, 0);
        loop {
            let next = store.close_own(&me, after.as_ref(), limit, &[2, 7, 99]);
            after = next.must().await;
            calls += 1;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(calls, 7 / limit + 1, "{limit} at a time");
        let kept = [epoch("r1", 1, 7, 5), epoch("r2", 1, 2, 5)];
        assert_eq!(own(&*store, 1).await, kept);
        assert_eq!(own(&*store, 2).await.len(), 7);
        store.close(&kept).must().await;
        store.close(&own(&*store, 2).await).must().await;
    }
}

pub async fn epochs_are_read_for_the_resources_named(home: Home) {
    let store = home.open().await;
    for (at, resource) in (0..).zip(["a", "b", "c", "A", "a%"]) {
        advance(&*store, opening(resource, 5, at)).await;
    }
    let mut rows = store
        .epochs(&[key("c"), key("a"), key("nowhere")])
        .must()
        .await;
    rows.sort();
    assert_eq!(rows, [epoch("a", 1, 0, 5), epoch("c", 1, 2, 5)]);
    assert_eq!(store.epochs(&[]).must().await, []);
}

pub async fn lost_epochs_are_opened_again(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    let kept = [epoch("a", 1, 1, 5), epoch("b", 1, 2, 7)];
    for _ in 0..2 {
        store.reopen(&kept).must().await;
        assert_eq!(own(&*store, 1).await, kept);
    }
    // No mark is looked at, or made.
    assert_eq!(mark_of(&*store, "b").await, None);
}

pub async fn no_epoch_opens_in_an_older_era(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    store
        .override_mark(&key("a"), token(2), "a test", "me")
        .must()
        .await;
    for number in [2, 5, 9] {
        advance_as(&*store, 1, 0, opening("a", number, number)).await;
    }
    assert_eq!(epochs_of(&*store, "a").await, []);
    advance_as(&*store, 1, 1, opening("a", 2, 20)).await;
    assert_eq!(epochs_of(&*store, "a").await, [epoch("a", 1, 20, 2)]);
}
