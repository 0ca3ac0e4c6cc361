//! Instances join, renew, publish which of their epochs are over, are declared dead, settle, leave.

use fencepost::store::{
    Epoch, InstanceRow, MarkStore, Opening, Override, Publication, Renewal, Terms,
};

use super::{
    Home, Must, advance, advance_as, ask, epoch, epochs_of, instance, join, key, leave, opening,
    publication, publish, signed, terms, token,
};

fn row(of: u64, renewals: i64, dead: bool) -> InstanceRow {
    InstanceRow {
        id: instance(of),
        terms: Terms {
            renewals,
            ..terms()
        },
        dead,
        ended: true,
    }
}

async fn rows(store: &dyn MarkStore) -> Vec<InstanceRow> {
    let mut rows = store.instances().must().await;
    rows.sort_by_key(|row| row.id);
    rows
}

async fn renew(store: &dyn MarkStore, of: u64, renewals: i64) -> Renewal {
    publish(store, of, renewals, Publication::default()).await
}

/// Opens the epochs `1..=last` of an instance at `a`, of token 5.
async fn open_all(store: &dyn MarkStore, of: u64, last: Opening) {
    for opened in 1..=last {
        advance_as(store, of, 0, opening("a", 5, opened)).await;
    }
}

/// The epochs of an instance that [`open_all`] opens, but only these.
fn only(of: u64, opened: impl IntoIterator<Item = Opening>) -> Vec<Epoch> {
    let epoch = |opened| epoch(of, opened, 5);
    opened.into_iter().map(epoch).collect()
}

pub async fn an_instance_joins_and_renews(home: Home) {
    let store = home.open().await;
    assert_eq!(rows(&*store).await, []);
    join(&*store, 1).await;
    join(&*store, 2).await;
    // One that is late, with a number from before, moves nothing, and nothing back.
    for (number, counter) in [(1, 1), (7, 7), (3, 7)] {
        assert_eq!(renew(&*store, 1, number).await, Renewal::Alive(0));
        let counted = [row(1, counter, false), row(2, 0, false)];
        assert_eq!(rows(&*store).await, counted);
    }
    // The era of an override travels with the next renewal, and with the next join.
    advance(&*store, ask("a", 5)).await;
    store
        .override_mark(&key("a"), token(1), &signed("a test", "me"))
        .must()
        .await;
    assert_eq!(renew(&*store, 2, 1).await, Renewal::Alive(1));
    let era = store.join(instance(3), &terms()).await;
    assert_eq!(era.expect("an answer"), 1);
}

/// What one says is true for ever; half of one beside half of another is not.
pub async fn a_publication_is_written_as_one(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    open_all(&*store, 1, 12).await;
    assert_eq!(epochs_of(&*store, "a").await, only(1, 1..=12));
    publish(&*store, 1, 1, publication(1, &[])).await;
    assert_eq!(epochs_of(&*store, "a").await, only(1, 1..=12));
    publish(&*store, 1, 7, publication(10, &[3, 99])).await;
    let newer = only(1, [3, 10, 11, 12]);
    assert_eq!(epochs_of(&*store, "a").await, newer);
    // A late one may stand for it, but as a whole.
    publish(&*store, 1, 3, publication(5, &[1, 2])).await;
    let late = only(1, [1, 2].into_iter().chain(5..=12));
    let found = epochs_of(&*store, "a").await;
    assert!(found == newer || found == late, "{found:?}");
    assert_eq!(rows(&*store).await, [row(1, 7, false)]);
    let store = home.reopen(store).await;
    assert_eq!(epochs_of(&*store, "a").await, found);
    publish(&*store, 1, 8, publication(13, &[])).await;
    assert_eq!(epochs_of(&*store, "a").await, []);
}

pub async fn nothing_is_written_for_the_dead(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    open_all(&*store, 1, 4).await;
    publish(&*store, 1, 1, publication(3, &[1])).await;
    assert!(store.declare_dead(instance(1), 1).must().await);
    for (of, says) in [(1, Renewal::Dead), (9, Renewal::Unknown)] {
        let said = publish(&*store, of, 5, publication(9, &[])).await;
        assert_eq!(said, says);
        leave(&*store, of, publication(9, &[])).await;
    }
    assert_eq!(rows(&*store).await, [row(1, 1, true)]);
    assert_eq!(epochs_of(&*store, "a").await, only(1, [1, 3, 4]));
    // Nor once it has settled.
    assert!(store.settle(instance(1)).must().await);
    assert_eq!(renew(&*store, 1, 6).await, Renewal::Dead);
    leave(&*store, 1, publication(1, &[4])).await;
    assert_eq!(rows(&*store).await, []);
    assert_eq!(epochs_of(&*store, "a").await, []);
}

pub async fn an_instance_says_which_routes_it_serves(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    join(&*store, 2).await;
    let others = Terms {
        renewals: 1,
        routes: "others".to_owned(),
        ..terms()
    };
    let none = Publication::default();
    let renewed = store.renew(instance(2), &others, &none).must().await;
    assert_eq!(renewed, Renewal::Alive(0));
    let other = InstanceRow {
        terms: others,
        ..row(2, 1, false)
    };
    assert_eq!(rows(&*store).await, [row(1, 0, false), other]);
}

pub async fn an_era_is_raised_and_never_lowered(home: Home) {
    let store = home.open().await;
    // Before anything has joined, too: an old backup may have nothing of the namespace.
    for (known, era) in [(3, 3), (2, 3), (5, 5)] {
        store.raise_era(known).must().await;
        let newcomer = instance(known.unsigned_abs());
        let terms = terms();
        let joined = store.join(newcomer, &terms);
        assert_eq!(joined.must().await, era);
    }
    assert_eq!(renew(&*store, 3, 1).await, Renewal::Alive(5));
    advance_as(&*store, 3, 5, ask("a", 9)).await;
    let done = store
        .override_mark(&key("a"), token(1), &signed("a test", "me"))
        .await;
    assert!(
        matches!(done, Ok(Override::Done { era: 6, .. })),
        "{done:?}"
    );
}

pub async fn death_is_declared_by_the_counter(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    renew(&*store, 1, 1).await;
    assert!(!store.declare_dead(instance(1), 0).must().await);
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
    assert!(store.declare_dead(instance(1), 1).must().await);
    // Dead is dead, whatever the counter; so is what nobody knows, and what has settled.
    assert!(store.declare_dead(instance(1), 7).must().await);
    assert!(store.declare_dead(instance(9), 0).must().await);
    assert_eq!(rows(&*store).await, [row(1, 1, true)]);
    assert!(store.settle(instance(1)).must().await);
    assert!(store.declare_dead(instance(1), 1).must().await);
    assert_eq!(rows(&*store).await, []);
}

pub async fn the_dead_settle_and_the_living_do_not(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    open_all(&*store, 1, 3).await;
    publish(&*store, 1, 1, publication(2, &[1])).await;
    assert!(!store.settle(instance(1)).must().await);
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
    assert_eq!(epochs_of(&*store, "a").await, only(1, 1..=3));
    assert!(store.declare_dead(instance(1), 1).must().await);
    assert_eq!(epochs_of(&*store, "a").await, only(1, 1..=3));
    for _ in 0..2 {
        assert!(store.settle(instance(1)).must().await);
        assert_eq!(rows(&*store).await, []);
        assert_eq!(epochs_of(&*store, "a").await, []);
    }
    // Its row stays: nobody gets that id.
    let again = store.join(instance(1), &terms()).await;
    assert!(again.is_err(), "{again:?}");
}

/// A watcher that has waited it out and an owner whose row was lost: one of the two comes first.
pub async fn an_id_that_is_not_on_record_settles(home: Home) {
    let store = home.open().await;
    open_all(&*store, 1, 2).await;
    open_all(&*store, 2, 1).await;
    assert_eq!(rows(&*store).await, []);
    assert!(store.settle(instance(1)).must().await);
    assert_eq!(epochs_of(&*store, "a").await, only(2, [1]));
    let late = store.join(instance(1), &terms()).await;
    assert!(late.is_err(), "{late:?}");
    assert_eq!(renew(&*store, 1, 1).await, Renewal::Dead);
    join(&*store, 2).await;
    assert!(!store.settle(instance(2)).must().await);
    assert_eq!(epochs_of(&*store, "a").await, only(2, [1]));
    assert_eq!(rows(&*store).await, [row(2, 0, false)]);
}

pub async fn leaving_ends_all_but_what_is_left(home: Home) {
    let store = home.open().await;
    for of in [1, 2] {
        join(&*store, of).await;
        open_all(&*store, of, 3).await;
    }
    leave(&*store, 1, publication(4, &[2])).await;
    // Whatever it says: nothing of it is left.
    leave(&*store, 2, publication(2, &[])).await;
    leave(&*store, 9, publication(4, &[])).await;
    assert_eq!(rows(&*store).await, [row(1, 0, true)]);
    assert_eq!(epochs_of(&*store, "a").await, only(1, [2]));
    for of in [1, 2] {
        assert_eq!(renew(&*store, of, 1).await, Renewal::Dead);
    }
    assert!(store.settle(instance(1)).must().await);
    assert_eq!(rows(&*store).await, []);
    assert_eq!(epochs_of(&*store, "a").await, []);
    join(&*store, 9).await;
}

/// An instance that the store has lost goes on with its counter, not from 0.
pub async fn a_counter_starts_where_its_owner_says(home: Home) {
    let store = home.open().await;
    let again = Terms {
        renewals: 40,
        ..terms()
    };
    let joined = store.join(instance(1), &again).await;
    assert_eq!(joined.expect("an answer"), 0);
    assert_eq!(rows(&*store).await, [row(1, 40, false)]);
}

pub async fn ids_are_taken_once(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    renew(&*store, 1, 1).await;
    let again = store.join(instance(1), &terms()).await;
    assert!(again.is_err(), "{again:?}");
    // The connection that had the error is gone; the store goes on.
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
}
