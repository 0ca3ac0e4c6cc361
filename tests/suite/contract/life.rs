//! Instances are born, renew, are declared dead, and are buried.

use std::time::Duration;

use fencepost::marks::{EpochRow, InstanceRow, MarkStore, Override, Renewal, Terms};

use super::{Home, advance, advance_as, ask, epochs_of, instance, key, opening, token};

const LEASE: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(30);
const UNDELIVERED: Duration = Duration::from_secs(10);

fn terms() -> Terms {
    Terms {
        renewals: 0,
        lease: LEASE,
        settle: SETTLE,
        undelivered: UNDELIVERED,
        routes: "of a test".to_owned(),
    }
}

async fn join(store: &dyn MarkStore, of: u128) {
    let era = store
        .join(&instance(of), &terms())
        .await
        .expect("an answer");
    assert_eq!(era, 0);
}

fn row(of: u128, renewals: i64, dead: bool) -> InstanceRow {
    InstanceRow {
        id: instance(of),
        renewals,
        lease: LEASE,
        settle: SETTLE,
        undelivered: UNDELIVERED,
        routes: "of a test".to_owned(),
        dead,
    }
}

async fn rows(store: &dyn MarkStore) -> Vec<InstanceRow> {
    let mut rows = store.instances().await.expect("an answer");
    rows.sort_by(|one, other| one.id.cmp(&other.id));
    rows
}

pub async fn an_instance_joins_and_renews(home: Home) {
    let store = home.open().await;
    assert_eq!(rows(&*store).await, []);
    join(&*store, 1).await;
    join(&*store, 2).await;
    // One that is late, with a number from before, moves nothing, and nothing back.
    for (number, counter) in [(1, 1), (7, 7), (3, 7)] {
        let renewed = store.renew(&instance(1), number).await.expect("an answer");
        assert_eq!(renewed, Renewal::Alive(0));
        let counted = [row(1, counter, false), row(2, 0, false)];
        assert_eq!(rows(&*store).await, counted);
    }
    // The era of an override travels with the next renewal, and with the next join.
    advance(&*store, ask("a", 5)).await;
    store
        .override_mark(&key("a"), token(1), "a test", "me")
        .await
        .expect("an answer");
    let renewed = store.renew(&instance(2), 1).await.expect("an answer");
    assert_eq!(renewed, Renewal::Alive(1));
    let era = store.join(&instance(3), &terms()).await;
    assert_eq!(era.expect("an answer"), 1);
}

pub async fn an_instance_says_which_routes_it_serves(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    join(&*store, 2).await;
    for id in [2, 3] {
        let told = store.set_routes(&instance(id), "others").await;
        told.expect("an answer");
    }
    let other = InstanceRow {
        routes: "others".to_owned(),
        ..row(2, 0, false)
    };
    assert_eq!(rows(&*store).await, [row(1, 0, false), other]);
}

pub async fn an_era_is_raised_and_never_lowered(home: Home) {
    let store = home.open().await;
    // Before anything has joined, too: an old backup may have nothing of the namespace.
    for (known, era) in [(3, 3), (2, 3), (5, 5)] {
        store.raise_era(known).await.expect("an answer");
        let newcomer = instance(u128::from(known.unsigned_abs()));
        let terms = terms();
        let joined = store.join(&newcomer, &terms);
        assert_eq!(joined.await.expect("an answer"), era);
    }
    let renewed = store.renew(&instance(3), 1).await.expect("an answer");
    assert_eq!(renewed, Renewal::Alive(5));
    advance_as(&*store, 3, 5, ask("a", 9)).await;
    let done = store
        .override_mark(&key("a"), token(1), "a test", "me")
        .await;
    assert!(
        matches!(done, Ok(Override::Done { era: 6, .. })),
        "{done:?}"
    );
}

pub async fn the_dead_do_not_renew(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    assert!(
        store
            .declare_dead(&instance(1), 0)
            .await
            .expect("an answer")
    );
    for (id, says) in [(1, Renewal::Dead), (9, Renewal::Unknown)] {
        let renewed = store.renew(&instance(id), 1).await.expect("an answer");
        assert_eq!(renewed, says);
    }
    assert_eq!(rows(&*store).await, [row(1, 0, true)]);
}

pub async fn death_is_declared_by_the_counter(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    store.renew(&instance(1), 1).await.expect("an answer");
    assert!(
        !store
            .declare_dead(&instance(1), 0)
            .await
            .expect("an answer")
    );
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
    assert!(
        store
            .declare_dead(&instance(1), 1)
            .await
            .expect("an answer")
    );
    // Dead is dead, whatever the counter; so is what nobody knows.
    assert!(
        store
            .declare_dead(&instance(1), 7)
            .await
            .expect("an answer")
    );
    assert!(
        store
            .declare_dead(&instance(9), 0)
            .await
            .expect("an answer")
    );
    assert_eq!(rows(&*store).await, [row(1, 1, true)]);
}

pub async fn only_the_dead_are_buried(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    advance(&*store, opening("b", 5, 1)).await;
    advance(&*store, opening("a", 5, 2)).await;
    advance(&*store, opening("a", 6, 3)).await;
    assert_eq!(store.bury(&instance(1)).await.expect("an answer"), []);
    assert_eq!(epochs_of(&*store, "a").await.len(), 2);
    assert_eq!(rows(&*store).await, [row(1, 0, false)]);
    assert!(
        store
            .declare_dead(&instance(1), 0)
            .await
            .expect("an answer")
    );
    assert_eq!(
        store.bury(&instance(1)).await.expect("an answer"),
        [key("a"), key("b")]
    );
    assert_eq!(epochs_of(&*store, "a").await, []);
    assert_eq!(rows(&*store).await, []);
    assert_eq!(store.bury(&instance(1)).await.expect("an answer"), []);
}

/// More than one burial deletes: what is left is buried by the next, and nothing is left for ever.
pub async fn however_many_epochs_the_dead_had_all_go(home: Home) {
    const EPOCHS: i64 = 10_500;
    let store = home.open().await;
    join(&*store, 1).await;
    let rows_of = |from: i64| from..(from + 2_100).min(EPOCHS);
    for from in (0..EPOCHS).step_by(2_100) {
        let open: Vec<EpochRow> = rows_of(from)
            .map(|number| EpochRow {
                resource: key(&format!("r{number:05}")),
                instance: instance(1),
                opening: number,
                token: token(5),
            })
            .collect();
        store.reopen(&open).await.expect("an answer");
    }
    assert!(
        store
            .declare_dead(&instance(1), 0)
            .await
            .expect("an answer")
    );
    let mut gone = 0;
    loop {
        let freed = store.bury(&instance(1)).await.expect("an answer").len();
        if freed == 0 {
            break;
        }
        gone += freed;
        let left = rows(&*store).await;
        assert!(left.iter().all(|row| row.dead), "{left:?}");
    }
    assert_eq!(i64::try_from(gone), Ok(EPOCHS));
    assert_eq!(rows(&*store).await, []);
}

pub async fn an_id_known_from_epochs_alone_counts_as_dead(home: Home) {
    let store = home.open().await;
    join(&*store, 2).await;
    for number in 1..=3 {
        advance(&*store, opening("a", 5, number)).await;
    }
    let unknown = InstanceRow {
        id: instance(1),
        renewals: 0,
        lease: Duration::ZERO,
        settle: Duration::ZERO,
        undelivered: Duration::ZERO,
        routes: String::new(),
        dead: true,
    };
    assert_eq!(rows(&*store).await, [unknown, row(2, 0, false)]);
    assert_eq!(
        store.bury(&instance(1)).await.expect("an answer"),
        [key("a")]
    );
    assert_eq!(rows(&*store).await, [row(2, 0, false)]);
}

pub async fn leaving_keeps_what_is_unknown(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    join(&*store, 2).await;
    advance(&*store, opening("a", 5, 1)).await;
    store.leave(&instance(1)).await.expect("an answer");
    store.leave(&instance(2)).await.expect("an answer");
    store.leave(&instance(9)).await.expect("an answer");
    assert_eq!(rows(&*store).await, [row(1, 0, true)]);
    assert_eq!(epochs_of(&*store, "a").await.len(), 1);
}

/// An instance that the store has lost goes on with its counter, not from 0.
pub async fn a_counter_starts_where_its_owner_says(home: Home) {
    let store = home.open().await;
    let again = Terms {
        renewals: 40,
        ..terms()
    };
    let joined = store.join(&instance(1), &again).await;
    assert_eq!(joined.expect("an answer"), 0);
    assert_eq!(rows(&*store).await, [row(1, 40, false)]);
}

pub async fn ids_are_taken_once(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    store.renew(&instance(1), 1).await.expect("an answer");
    let again = store.join(&instance(1), &terms()).await;
    assert!(again.is_err(), "{again:?}");
    // The connection that had the error is gone; the store goes on.
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
}
