//! Conditions of an ask on the mark, checked under the row's lock.

use fencepost::routing::{Needs, Token};
use fencepost::store::{Ask, MarkStore};

use super::{
    Home, advance, advance_all, ask, batch, epochs_of, mark_of, opening, row_of, spending, token,
};

fn needing(ask: Ask, least: Option<i64>, present: bool) -> Ask {
    Ask {
        needs: Needs {
            least: least.map(token),
            present,
        },
        ..ask
    }
}

async fn open_epochs(store: &dyn MarkStore, resource: &str) -> Vec<i64> {
    let open = epochs_of(store, resource).await;
    open.iter().map(|epoch| epoch.token.get()).collect()
}

pub async fn a_token_that_leaps_changes_nothing(home: Home) {
    let store = home.open().await;
    advance(&*store, spending("a", 41, "x")).await;
    let since = row_of(&*store, "a").await.since_ms;
    let leaps = Ask {
        spend: Some("y".to_owned()),
        ..opening("a", 1000, 1)
    };
    let found = advance(&*store, needing(leaps, Some(42), false)).await;
    assert_eq!((found.before, found.spent_by), (Some(token(41)), None));
    assert_eq!(found.open, []);
    let row = row_of(&*store, "a").await;
    assert_eq!(
        (row.token, row.spent, row.since_ms),
        (token(41), true, since)
    );
    assert!(open_epochs(&*store, "a").await.is_empty());
    let again = advance(&*store, spending("a", 41, "z")).await;
    assert_eq!(again.spent_by.as_deref(), Some("x"), "spent as before");
    // From its bound on it counts.
    let found = advance(&*store, needing(opening("a", 1000, 2), Some(41), true)).await;
    assert_eq!(found.before, Some(token(41)));
    assert_eq!(mark_of(&*store, "a").await, Some(1000));
    assert_eq!(open_epochs(&*store, "a").await, [1000]);
    // Older tokens are found to be older, whatever they need.
    let found = advance(&*store, needing(opening("a", 999, 3), Some(2000), true)).await;
    assert_eq!(found.before, Some(token(1000)));
    assert_eq!(mark_of(&*store, "a").await, Some(1000));
}

pub async fn a_first_mark_is_made_only_where_it_may_be(home: Home) {
    let store = home.open().await;
    let found = advance(&*store, needing(opening("a", 7, 1), None, true)).await;
    assert_eq!((found.before, found.era), (None, 0));
    assert_eq!(mark_of(&*store, "a").await, None);
    assert!(open_epochs(&*store, "a").await.is_empty());
    // A bound is one past a mark that is there.
    let found = advance(
        &*store,
        needing(opening("a", i64::MAX, 2), Some(i64::MAX), false),
    )
    .await;
    assert_eq!(found.before, None);
    assert_eq!(mark_of(&*store, "a").await, Some(i64::MAX));
    let found = advance(&*store, ask("a", i64::MAX)).await;
    assert_eq!(found.before, Some(Token::MAX), "what was needed is no mark");
    let found = advance(&*store, needing(ask("b", 0), Some(0), false)).await;
    assert_eq!(found.before, None);
    assert_eq!(advance(&*store, ask("b", 0)).await.before, Some(token(0)));
}

pub async fn each_of_a_batch_has_its_own_needs(home: Home) {
    let store = home.open().await;
    for resource in ["a", "c", "e"] {
        advance(&*store, ask(resource, 41)).await;
    }
    let asks = [
        needing(opening("e", 1000, 1), Some(42), false),
        needing(opening("d", 7, 2), None, true),
        needing(opening("c", 42, 3), Some(41), true),
        needing(opening("b", 7, 4), Some(3), false),
        opening("a", i64::MAX, 5),
    ];
    let found = advance_all(&*store, batch(&asks)).await;
    let before: Vec<_> = found
        .iter()
        .map(|found| found.before.map(Token::get))
        .collect();
    assert_eq!(before, [Some(41), None, Some(41), None, Some(41)]);
    for (resource, mark, epochs) in [
        ("a", Some(i64::MAX), 1),
        ("b", Some(7), 1),
        ("c", Some(42), 1),
        ("d", None, 0),
        ("e", Some(41), 0),
    ] {
        assert_eq!(mark_of(&*store, resource).await, mark, "{resource}");
        assert_eq!(
            open_epochs(&*store, resource).await.len(),
            epochs,
            "{resource}"
        );
    }
}
