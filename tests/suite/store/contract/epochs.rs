//! Epochs open under the mark's lock, in the row of their resource, and leave it once they are out
//! of use or over.

use fencepost::store::{Batch, Epoch, Found, MarkStore, Opening, Repair, StoreError};

use super::{
    Home, Must, advance, advance_all, advance_as, advance_one, ask, batch, epoch, epochs_of,
    instance, join, key, leave, mark_of, opening, publication, publish, row_of, signed, token,
};

pub async fn an_epoch_opens_unless_the_mark_is_above(home: Home) {
    let store = home.open().await;
    advance(&*store, opening("a", 5, 1)).await;
    assert_eq!(epochs_of(&*store, "a").await, [epoch(1, 1, 5)]);
    // An equal token, of another instance.
    advance_as(&*store, 2, 0, opening("a", 5, 1)).await;
    // A lower one opens nothing; a higher one opens, and closes nothing.
    advance(&*store, opening("a", 4, 2)).await;
    advance(&*store, opening("a", 6, 3)).await;
    // Without an opening nothing opens.
    advance(&*store, ask("a", 7)).await;
    let open = [epoch(1, 1, 5), epoch(1, 3, 6), epoch(2, 1, 5)];
    assert_eq!(epochs_of(&*store, "a").await, open);
    assert_eq!(epochs_of(&*store, "b").await, []);
    let store = home.reopen(store).await;
    assert_eq!(epochs_of(&*store, "a").await, open);
}

pub async fn an_answer_has_all_that_is_open(home: Home) {
    let store = home.open().await;
    let first = advance(&*store, opening("a", 5, 1)).await;
    assert_eq!((first.before, first.open), (None, vec![epoch(1, 1, 5)]));
    let second = advance_as(&*store, 2, 0, opening("a", 6, 1)).await;
    let both = vec![epoch(1, 1, 5), epoch(2, 1, 6)];
    assert_eq!((second.before, second.open), (Some(token(5)), both.clone()));
    // One that is too late is told of them, too; so is one that opens nothing.
    for late in [opening("a", 5, 2), ask("a", 6)] {
        let found = advance(&*store, late).await;
        assert_eq!((found.before, found.open), (Some(token(6)), both.clone()));
    }
    assert_eq!(advance(&*store, ask("b", 5)).await.open, []);
}

/// An advance of instance 1 to `number`, with these openings in use, and from `next` on none given
/// out. Returns what is open after it.
async fn visit(
    store: &dyn MarkStore,
    number: i64,
    opened: Option<Opening>,
    used: &[Opening],
    next: Opening,
) -> Vec<Epoch> {
    let mut asks = [ask("a", number)];
    asks[0].opening = opened;
    let batch = Batch {
        used,
        next,
        ..batch(&asks)
    };
    advance_one(store, batch).await.open
}

pub async fn own_epochs_out_of_use_are_dropped(home: Home) {
    let store = home.open().await;
    let store = &*store;
    // The only one is replaced.
    assert_eq!(visit(store, 1, Some(1), &[], 1).await, [epoch(1, 1, 1)]);
    assert_eq!(visit(store, 2, Some(2), &[], 2).await, [epoch(1, 2, 2)]);
    // One that is in use stays, as does one that was not given out when the batch was composed.
    let (two, three) = (epoch(1, 2, 2), epoch(1, 3, 3));
    assert_eq!(visit(store, 3, Some(3), &[2], 3).await, [two, three]);
    assert_eq!(visit(store, 3, None, &[2, 7], 3).await, [two, three]);
    assert_eq!(visit(store, 3, None, &[3], 9).await, [three]);
    assert_eq!(visit(store, 3, None, &[], 3).await, [three]);
    // Those of others are none of its business.
    advance_as(store, 2, 0, opening("a", 3, 1)).await;
    let other = epoch(2, 1, 3);
    let four = epoch(1, 4, 4);
    assert_eq!(
        visit(store, 4, Some(4), &[3], 4).await,
        [three, four, other]
    );
    // A statement drops, too, where its token is too low, and where it opens nothing.
    assert_eq!(visit(store, 1, Some(5), &[4], 5).await, [four, other]);
    assert_eq!(visit(store, 4, None, &[], 5).await, [other]);
    assert_eq!(epochs_of(store, "a").await, [other]);
    let nine = epoch(1, 9, 4);
    assert_eq!(visit(store, 4, Some(9), &[], 9).await, [nine, other]);
}

/// A statement whose answer was lost commits after newer ones.
pub async fn a_late_statement_drops_and_opens_nothing_newer(home: Home) {
    let store = home.open().await;
    let store = &*store;
    visit(store, 5, Some(3), &[], 3).await;
    visit(store, 6, Some(8), &[], 8).await;
    let newer = [epoch(1, 8, 6)];
    assert_eq!(visit(store, 5, Some(2), &[], 2).await, newer);
    assert_eq!(visit(store, 6, None, &[1], 4).await, newer);
    // It may open one of the newest token, which nobody uses, and which the next one drops.
    let stray = epoch(1, 4, 6);
    assert_eq!(visit(store, 6, Some(4), &[], 4).await, [stray, newer[0]]);
    assert_eq!(visit(store, 6, None, &[8], 9).await, newer);
    assert_eq!(mark_of(store, "a").await, Some(6));
}

/// Instances 2 to 6 are on record, each with the epochs 1 to 4 open at `a`, of token 1. Instance 2
/// has published; 3 is dead and has settled; 4 has left with nothing in flight, and 5 with
/// something; 6 was declared dead after it had published. Returns what is not over.
async fn some_are_over(store: &dyn MarkStore) -> Vec<Epoch> {
    for of in 2..=6 {
        join(store, of).await;
        for opened in 1..=4 {
            advance_as(store, of, 0, opening("a", 1, opened)).await;
        }
    }
    publish(store, 2, 0, publication(4, &[2, 17])).await;
    assert!(store.declare_dead(instance(3), 0).must().await);
    assert!(store.settle(instance(3)).must().await);
    leave(store, 4, publication(5, &[])).await;
    leave(store, 5, publication(5, &[1])).await;
    publish(store, 6, 0, publication(3, &[])).await;
    assert!(store.declare_dead(instance(6), 0).must().await);
    [(2, 2), (2, 4), (5, 1), (6, 3), (6, 4)]
        .map(|(of, opened)| epoch(of, opened, 1))
        .to_vec()
}

pub async fn epochs_that_are_over_are_dropped(home: Home) {
    let store = home.open().await;
    let mut open = some_are_over(&*store).await;
    let found = advance(&*store, ask("a", 1)).await;
    assert_eq!(found.open, open);
    open.insert(0, epoch(1, 9, 2));
    let found = advance(&*store, opening("a", 2, 9)).await;
    assert_eq!(found.open, open);
}

pub async fn epochs_that_are_over_are_left_out(home: Home) {
    let store = home.open().await;
    let open = some_are_over(&*store).await;
    assert_eq!(epochs_of(&*store, "a").await, open);
    let mut rows = store.look(&[key("a")]).must().await;
    let (row, mut found) = rows.pop().expect("a row");
    found.open.sort();
    assert_eq!((row, found.open), (row_of(&*store, "a").await, open));
    assert_eq!(store.look(&[key("b")]).must().await, []);
    // What was over when a row was made is over, too: openings are given out before.
    advance_as(&*store, 3, 0, opening("b", 1, 5)).await;
    assert_eq!(epochs_of(&*store, "b").await, []);
}

/// A failover may have lost the row of its instance.
pub async fn epochs_of_an_id_that_is_not_on_record_are_kept(home: Home) {
    let store = home.open().await;
    let both = [epoch(8, 1, 5), epoch(9, i64::MAX, 5)];
    for one in both {
        let of = if one.opening == 1 { 8 } else { 9 };
        advance_as(&*store, of, 0, opening("a", 5, one.opening)).await;
    }
    assert_eq!(epochs_of(&*store, "a").await, both);
    assert_eq!(advance(&*store, ask("a", 5)).await.open, both);
    assert!(store.settle(instance(8)).must().await);
    assert_eq!(epochs_of(&*store, "a").await, both[1..]);
    assert_eq!(advance(&*store, ask("a", 5)).await.open, both[1..]);
}

pub async fn the_named_epochs_are_ceded_and_no_others(home: Home) {
    let store = home.open().await;
    for opened in 1..=3 {
        advance(&*store, opening("a", 5, opened)).await;
        advance_as(&*store, 2, 0, opening("a", 5, opened)).await;
        advance(&*store, opening("b", 5, opened)).await;
    }
    let ceded = [
        (key("a"), epoch(1, 1, 5)),
        (key("a"), epoch(2, 3, 5)),
        (key("a"), epoch(1, 9, 5)),
        (key("b"), epoch(1, 2, 5)),
        (key("nowhere"), epoch(1, 3, 5)),
    ];
    for _ in 0..2 {
        let mut written = store.cede(&ceded).must().await;
        written.sort();
        written.dedup();
        assert_eq!(written, [key("a"), key("b")]);
        let open = [
            epoch(1, 2, 5),
            epoch(1, 3, 5),
            epoch(2, 1, 5),
            epoch(2, 2, 5),
        ];
        assert_eq!(epochs_of(&*store, "a").await, open);
        let open = [epoch(1, 1, 5), epoch(1, 3, 5)];
        assert_eq!(epochs_of(&*store, "b").await, open);
    }
    assert_eq!(store.cede(&[]).must().await, []);
    assert_eq!(mark_of(&*store, "a").await, Some(5));
    assert_eq!(mark_of(&*store, "nowhere").await, None);
}

fn repair(resource: &str, number: i64, era: i64, open: &[Epoch]) -> Repair {
    Repair {
        resource: key(resource),
        token: token(number),
        era,
        spend: None,
        open: open.to_vec(),
    }
}

async fn repaired(store: &dyn MarkStore, repairs: &[Repair]) -> Result<Vec<Found>, StoreError> {
    let mut found = store.repair(repairs).await?;
    for found in &mut found {
        found.open.sort();
    }
    Ok(found)
}

pub async fn lost_epochs_are_added(home: Home) {
    let store = home.open().await;
    let (lost, kept, other) = (epoch(1, 1, 3), epoch(1, 2, 5), epoch(2, 1, 4));
    advance_as(&*store, 2, 0, opening("a", 4, 1)).await;
    advance(&*store, opening("a", 5, 2)).await;
    // In no order, one row is missing, and one has nothing to be added.
    let repairs = [
        repair("c", 7, 0, &[epoch(1, 3, 7), epoch(1, 4, 6)]),
        repair("a", 5, 0, &[kept, lost]),
        repair("b", 2, 0, &[]),
    ];
    for before in [[None, Some(5), None], [Some(7), Some(5), Some(2)]] {
        let found = repaired(&*store, &repairs).must().await;
        let was: Vec<_> = found.iter().map(|found| found.before).collect();
        assert_eq!(was, before.map(|before| before.map(token)));
        assert_eq!(found[0].open, [epoch(1, 3, 7), epoch(1, 4, 6)]);
        assert_eq!(found[1].open, [lost, kept, other]);
        assert_eq!(found[2].open, []);
    }
    assert_eq!(epochs_of(&*store, "a").await, [lost, kept, other]);
    assert_eq!(mark_of(&*store, "b").await, Some(2));
    assert_eq!(mark_of(&*store, "c").await, Some(7));
    // Into a row that has none.
    advance(&*store, ask("b", 5)).await;
    let one = [repair("b", 2, 0, &[epoch(1, 8, 2)])];
    let found = repaired(&*store, &one).must().await;
    assert_eq!((found[0].before, found[0].open.len()), (Some(token(5)), 1));
    assert_eq!(mark_of(&*store, "b").await, Some(5));
    assert_eq!(store.count_marks(None).must().await, (3, None));
    assert_eq!(store.repair(&[]).must().await, []);
}

pub async fn a_lost_mark_is_raised_in_its_era(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    let spent = Repair {
        spend: Some("x".to_owned()),
        ..repair("a", 9, 0, &[])
    };
    let found = repaired(&*store, std::slice::from_ref(&spent)).must().await;
    assert_eq!(found[0].before, Some(token(5)));
    assert_eq!(found[0].spent_by.as_deref(), Some("x"));
    assert!(row_of(&*store, "a").await.spent);
    assert_eq!(mark_of(&*store, "a").await, Some(9));
    // It is not spent again, and no mark is lowered.
    let again = Repair {
        spend: Some("y".to_owned()),
        ..spent.clone()
    };
    let found = repaired(&*store, &[again]).must().await;
    assert_eq!(found[0].spent_by.as_deref(), Some("x"));
    let found = repaired(&*store, &[repair("a", 7, 0, &[])]).must().await;
    assert_eq!(found[0].before, Some(token(9)));
    assert_eq!(mark_of(&*store, "a").await, Some(9));
    // After an override the mark is another's, but the epochs are still in use.
    store
        .override_mark(&key("a"), token(2), &signed("a test", "me"))
        .must()
        .await;
    let late = repair("a", 9, 0, &[epoch(1, 1, 9)]);
    let found = repaired(&*store, &[late]).must().await;
    assert_eq!((found[0].before, found[0].era), (Some(token(2)), 1));
    assert_eq!(found[0].open, [epoch(1, 1, 9)]);
    assert_eq!(found[0].spent_by, None);
    let both = [epoch(1, 1, 9), epoch(1, 2, 8)];
    let found = repaired(&*store, &[repair("a", 9, 0, &both)]).must().await;
    assert_eq!(found[0].open, both);
    assert_eq!(mark_of(&*store, "a").await, Some(2));
    let found = repaired(&*store, &[repair("a", 3, 1, &[])]).must().await;
    assert_eq!((found[0].before, found[0].era), (Some(token(2)), 1));
    assert_eq!(mark_of(&*store, "a").await, Some(3));
}

pub async fn no_epoch_opens_in_an_older_era(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    store
        .override_mark(&key("a"), token(2), &signed("a test", "me"))
        .must()
        .await;
    for number in [2, 5, 9] {
        advance_as(&*store, 1, 0, opening("a", number, number)).await;
    }
    assert_eq!(epochs_of(&*store, "a").await, []);
    advance_as(&*store, 1, 1, opening("a", 2, 20)).await;
    assert_eq!(epochs_of(&*store, "a").await, [epoch(1, 20, 2)]);
    // But what is out of use is dropped.
    assert_eq!(visit(&*store, 9, Some(21), &[20], 21).await.len(), 1);
    assert_eq!(visit(&*store, 9, Some(22), &[], 22).await, []);
    assert_eq!(mark_of(&*store, "a").await, Some(2));
}

/// As many rows as a batch has at most, and as many instances as a resource may ever have met.
pub async fn many_rows_of_many_epochs_are_written(home: Home) {
    const ROWS: i64 = 1024;
    const INSTANCES: u64 = 80;
    let store = home.open().await;
    let asks = |number: i64, from: Opening| {
        let ask = move |at| opening(&format!("k{at:04}"), number, from + at);
        (0..ROWS).map(ask).collect::<Vec<_>>()
    };
    let (first, second) = (asks(1, 0), asks(2, ROWS));
    advance_all(&*store, batch(&first)).await;
    let next = Batch {
        used: &[3],
        next: ROWS,
        ..batch(&second)
    };
    let found = advance_all(&*store, next).await;
    for (at, found) in (0..).zip(&found) {
        assert_eq!(found.before, Some(token(1)));
        let open = [epoch(1, at, 1), epoch(1, ROWS + at, 2)];
        assert_eq!(found.open, open[usize::from(at != 3)..]);
    }
    let keys: Vec<_> = first.iter().map(|ask| ask.resource.clone()).collect();
    let looked = store.look(&keys).must().await;
    assert_eq!(looked.len(), keys.len());
    assert!(looked.iter().all(|(row, _)| row.token == token(2)));
    for of in 0..INSTANCES {
        for opened in [1, i64::MAX - 1] {
            advance_as(&*store, of, 0, opening("a", 5, opened)).await;
        }
    }
    let all: Vec<Epoch> = (0..INSTANCES)
        .flat_map(|of| [epoch(of, 1, 5), epoch(of, i64::MAX - 1, 5)])
        .collect();
    assert_eq!(epochs_of(&*store, "a").await, all);
    assert_eq!(advance(&*store, ask("a", 5)).await.open, all);
    for of in 0..INSTANCES / 2 {
        assert!(store.settle(instance(of)).must().await);
    }
    let left = all.split_at(all.len() / 2).1;
    assert_eq!(epochs_of(&*store, "a").await, left);
    assert_eq!(
        advance_as(&*store, INSTANCES, 0, ask("a", 6)).await.open,
        left
    );
}
