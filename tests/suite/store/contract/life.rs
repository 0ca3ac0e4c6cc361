//! Instances are born, renew, are declared dead, and are buried.

use std::time::Duration;

use fencepost::store::{EpochRow, InstanceRow, MarkStore, Override, Renewal, Terms};

use super::{
    Home, Must, advance, advance_as, ask, buried, epochs_of, instance, key, opening, own, token,
};

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

async fn join(store: &dyn MarkStore, of: u64) {
    let era = store.join(&instance(of), &terms()).must().await;
    assert_eq!(era, 0);
}

fn row(of: u64, renewals: i64, dead: bool) -> InstanceRow {
    InstanceRow {
        id: instance(of),
        renewals,
        lease: LEASE,
        settle: SETTLE,
        undelivered: UNDELIVERED,
        routes: "of a test".to_owned(),
        dead,
        elsewhere: false,
    }
}

async fn rows(store: &dyn MarkStore) -> Vec<InstanceRow> {
    let mut rows = store.instances().must().await;
    rows.sort_by(|one, other| one.id.cmp(&other.id));
    let mut recorded = store.recorded().must().await;
    recorded.sort_by(|one, other| one.id.cmp(&other.id));
    recorded.retain(|row| !row.is_orphan());
    let all = rows.iter().filter(|row| !row.is_orphan());
    assert_eq!(recorded, all.cloned().collect::<Vec<_>>());
    rows
}

pub async fn an_instance_joins_and_renews(home: Home) {
    let store = home.open().await;
    assert_eq!(rows(&*store).await, []);
    join(&*store, 1).await;
    join(&*store, 2).await;
    // One that is late, with a number from before, moves nothing, and nothing back.
    for (number, counter) in [(1, 1), (7, 7), (3, 7)] {
        let renewed = store.renew(&instance(1), number).must().await;
        assert_eq!(renewed, Renewal::Alive(0));
        let counted = [row(1, counter, false), row(2, 0, false)];
        assert_eq!(rows(&*store).await, counted);
    }
    // The era of an override travels with the next renewal, and with the next join.
    advance(&*store, ask("a", 5)).await;
    store
        .override_mark(&key("a"), token(1), "a test", "me")
        .must()
        .await;
    let renewed = store.renew(&instance(2), 1).must().await;
    assert_eq!(renewed, Renewal::Alive(1));
    let era = store.join(&instance(3), &terms()).await;
    assert_eq!(era.expect("an answer"), 1);
}

pub async fn an_instance_says_which_routes_it_serves(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    join(&*store, 2).await;
    for id in [2, 3] {
        store.set_routes(&instance(id), "others").must().await;
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
        store.raise_era(known).must().await;
        let newcomer = instance(known.unsigned_abs());
        let terms = terms();
        let joined = store.join(&newcomer, &terms);
        assert_eq!(joined.must().await, era);
    }
    let renewed = store.renew(&instance(3), 1).must().await;
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
    assert!(store.declare_dead(&instance(1), 0).must().await);
    for (id, says) in [(1, Renewal::Dead), (9, Renewal::Unknown)] {
        let renewed = store.renew(&instance(id), 1).must().await;
        assert_eq!(renewed, says);
    }
    assert_eq!(rows(&*store).await, [row(1, 0, true)]);
}

pub async fn death_is_declared_by_the_counter(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    store.renew(&instance(1), 1).must().await;
    assert!(!store.declare_dead(&instance(1), 0).must().await);
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
    assert!(store.declare_dead(&instance(1), 1).must().await);
    // Dead is dead, whatever the counter; so is what nobody knows.
    assert!(store.declare_dead(&instance(1), 7).must().await);
    assert!(store.declare_dead(&instance(9), 0).must().await);
    assert_eq!(rows(&*store).await, [row(1, 1, true)]);
}

pub async fn only_the_dead_are_buried(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    advance(&*store, opening("b", 5, 1)).await;
    advance(&*store, opening("a", 5, 2)).await;
    advance(&*store, opening("a", 6, 3)).await;
    assert_eq!(buried(&*store, 1).await, [0]);
    assert_eq!(epochs_of(&*store, "a").await.len(), 2);
    assert_eq!(rows(&*store).await, [row(1, 0, false)]);
    assert!(store.declare_dead(&instance(1), 0).must().await);
    let burial = store.bury(&instance(1), &[], None).await;
    assert_eq!(burial.expect("an answer").freed, [key("a"), key("b")]);
    assert_eq!(epochs_of(&*store, "a").await, []);
    assert_eq!(rows(&*store).await, []);
    assert_eq!(buried(&*store, 1).await, [0]);
}

/// So many that no burial deletes them in one go, on either store.
const MANY: i64 = 10_500;

async fn many_of_the_dead(store: &dyn MarkStore) {
    join(store, 1).await;
    for from in (0..MANY).step_by(2_100) {
        let open: Vec<EpochRow> = (from..from + 2_100)
            .map(|number| EpochRow {
                resource: key(&format!("r{number:05}")),
                instance: instance(1),
                opening: number,
                token: token(5),
            })
            .collect();
        store.reopen(&open).must().await;
    }
    let dead = store.declare_dead(&instance(1), 0).await;
    assert!(dead.expect("an answer"));
}

/// More than one step deletes: the next one goes on, and nothing is left for ever.
pub async fn however_many_epochs_the_dead_had_all_go(home: Home) {
    let store = home.open().await;
    many_of_the_dead(&*store).await;
    let steps = buried(&*store, 1).await;
    assert!(steps.len() > 2, "{steps:?}");
    let (last, full) = steps.split_last().expect("one at least");
    assert!(full.iter().all(|freed| *freed == full[0] && freed >= last));
    assert_eq!(i64::try_from(steps.iter().sum::<usize>()), Ok(MANY));
    assert_eq!(rows(&*store).await, []);
}

pub async fn what_is_waited_for_is_buried_first(home: Home) {
    let store = home.open().await;
    many_of_the_dead(&*store).await;
    let first = [key("r10499"), key("r00000"), key("r09000"), key("nowhere")];
    let step = store.bury(&instance(1), &first, None).must().await;
    for resource in ["r10499", "r09000", "r00000"] {
        assert!(step.freed.contains(&key(resource)), "{resource}");
        assert_eq!(epochs_of(&*store, resource).await, []);
    }
    let (last, _) = step.next.expect("there is more");
    assert!(last < key("r09000"), "{last}: it goes on where it was");
    // From the start again: what is gone is no hindrance.
    assert!(buried(&*store, 1).await.len() > 1);
    assert_eq!(own(&*store, 1).await, []);
}

/// Its row says when it was declared dead and what its own terms were: what is left must not become
/// what nobody knows.
pub async fn an_instance_is_on_record_until_its_last_epoch_is_buried(home: Home) {
    let store = home.open().await;
    many_of_the_dead(&*store).await;
    let mut after = None;
    loop {
        let step = store.bury(&instance(1), &[], after.as_ref()).await;
        after = step.expect("an answer").next;
        if after.is_none() {
            break;
        }
        assert_eq!(rows(&*store).await, [row(1, 0, true)]);
    }
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
        elsewhere: false,
    };
    assert_eq!(rows(&*store).await, [unknown, row(2, 0, false)]);
    assert_eq!(buried(&*store, 1).await, [1]);
    assert_eq!(rows(&*store).await, [row(2, 0, false)]);
}

pub async fn leaving_keeps_what_is_unknown(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    join(&*store, 2).await;
    advance(&*store, opening("a", 5, 1)).await;
    store.leave(&instance(1)).must().await;
    store.leave(&instance(2)).must().await;
    store.leave(&instance(9)).must().await;
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
    store.renew(&instance(1), 1).must().await;
    let again = store.join(&instance(1), &terms()).await;
    assert!(again.is_err(), "{again:?}");
    // The connection that had the error is gone; the store goes on.
    assert_eq!(rows(&*store).await, [row(1, 1, false)]);
}
