//! Marks rise; tokens are spent; eras outrank both.

use std::sync::Arc;

use fencepost::routing::Token;
use fencepost::store::{Found, MarkStore, Terms};

use super::{
    Home, Must, advance, advance_all, advance_as, ask, batch, instance, key, mark_of, row_of,
    signed, spending, token,
};

pub async fn no_mark_is_not_zero(home: Home) {
    let store = home.open().await;
    assert_eq!(mark_of(&*store, "a").await, None);
    assert_eq!(advance(&*store, ask("a", 0)).await.before, None);
    assert_eq!(mark_of(&*store, "a").await, Some(0));
    assert_eq!(advance(&*store, ask("a", 0)).await.before, Some(token(0)));
    assert_eq!(mark_of(&*store, "b").await, None);
}

pub async fn a_mark_rises_and_never_falls(home: Home) {
    let store = home.open().await;
    // 9 before 10: numbers, not text.
    for (asked, before, after) in [
        (9, None, 9),
        (10, Some(9), 10),
        (9, Some(10), 10),
        (10, Some(10), 10),
        (2, Some(10), 10),
        (100, Some(10), 100),
    ] {
        let found = advance(&*store, ask("a", asked)).await;
        assert_eq!(found.before.map(Token::get), before, "asked {asked}");
        assert_eq!(found.spent_by, None);
        assert_eq!(mark_of(&*store, "a").await, Some(after), "asked {asked}");
    }
}

pub async fn tokens_are_numbers_up_to_the_largest(home: Home) {
    let store = home.open().await;
    // Neighbours that a 64-bit float cannot tell apart.
    for number in [(1 << 53) + 1, i64::MAX - 1, i64::MAX] {
        advance(&*store, ask("a", number)).await;
        assert_eq!(mark_of(&*store, "a").await, Some(number));
        let again = advance(&*store, ask("a", number - 1)).await;
        assert_eq!(again.before, Some(token(number)));
    }
}

pub async fn a_batch_is_answered_in_the_order_asked(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("m", 5)).await;
    // Neither byte order nor the order of arrival, and enough for the engine to choose its own.
    let mut asks = vec![ask("z", 1), ask("m", 7), ask("a", 3), ask("n", 2)];
    asks.extend((0..200).map(|n| ask(&format!("k{}", (n * 7919) % 200), i64::from(n))));
    let found = advance_all(&*store, batch(&asks)).await;
    for (ask, found) in asks.iter().zip(&found) {
        let before = (ask.resource.as_str() == "m").then_some(token(5));
        assert_eq!(found.before, before, "{}", ask.resource);
    }
    let again = advance_all(&*store, batch(&asks)).await;
    for (ask, found) in asks.iter().zip(&again) {
        assert_eq!(found.before, Some(ask.token), "{}", ask.resource);
    }
}

pub async fn a_mark_outlives_the_store(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 7)).await;
    let store = home.reopen(store).await;
    assert_eq!(mark_of(&*store, "a").await, Some(7));
    assert_eq!(advance(&*store, ask("a", 6)).await.before, Some(token(7)));
}

pub async fn namespaces_share_nothing(home: Home) {
    let one = home.open_in("one").await;
    advance(&*one, ask("a", 7)).await;
    one.join(instance(1), &Terms::default()).must().await;
    let recorded = one.record_routes(None, "a table").await;
    assert!(recorded.expect("the store answers"));
    let attempt = super::operations::attempt;
    one.begin_operation(&attempt("one's", 7)).must().await;
    // SQLite lets one store have the file at a time.
    let two = if matches!(home, Home::Sqlite(_)) {
        drop(home.reopen(one).await);
        loop {
            match home.try_open("two", false).await {
                Ok(store) => break store,
                Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
            }
            tokio::task::yield_now().await;
        }
    } else {
        home.open_in("two").await
    };
    assert_eq!(mark_of(&*two, "a").await, None);
    assert_eq!(two.list("", None, 10).must().await, []);
    assert_eq!(two.instances().must().await, []);
    assert_eq!(two.routes().must().await, None);
    let begun = two.begin_operation(&attempt("two's", 1)).must().await;
    assert_eq!(begun.attempt, "two's");
    assert_eq!(advance(&*two, ask("a", 1)).await.before, None);
}

pub async fn a_token_is_spent_once(home: Home) {
    let store = home.open().await;
    let won = advance(&*store, spending("a", 5, "first")).await;
    assert_eq!(won.spent_by.as_deref(), Some("first"));
    let lost = advance(&*store, spending("a", 5, "second")).await;
    assert_eq!(lost.before, Some(token(5)));
    assert_eq!(lost.spent_by.as_deref(), Some("first"));
    // An equal token that spends nothing learns of it too, and spending survives.
    let store = home.reopen(store).await;
    let plain = advance(&*store, ask("a", 5)).await;
    assert_eq!(plain.spent_by.as_deref(), Some("first"));
    assert!(row_of(&*store, "a").await.spent);
    // A mark that was raised without spending can be spent by the next request.
    advance(&*store, ask("b", 5)).await;
    let late = advance(&*store, spending("b", 5, "late")).await;
    assert_eq!(late.spent_by.as_deref(), Some("late"));
}

pub async fn a_lost_race_to_spend_names_the_winner(home: Home) {
    let store = home.open().await;
    advance(&*store, spending("a", 5, "five")).await;
    // A token below the mark spends nothing, and hears no name: the mark is another token.
    let stale = advance(&*store, spending("a", 4, "four")).await;
    assert_eq!(stale.before, Some(token(5)));
    assert_eq!(stale.spent_by, None);
    let same = advance(&*store, spending("a", 5, "other")).await;
    assert_eq!(same.spent_by.as_deref(), Some("five"));
}

pub async fn a_newer_token_is_not_spent(home: Home) {
    let store = home.open().await;
    advance(&*store, spending("a", 5, "five")).await;
    let plain = advance(&*store, ask("a", 6)).await;
    assert_eq!(plain.spent_by, None);
    assert!(!row_of(&*store, "a").await.spent);
    let won = advance(&*store, spending("a", 7, "seven")).await;
    assert_eq!(won.spent_by.as_deref(), Some("seven"));
}

pub async fn spending_goes_back_only_under_its_name(home: Home) {
    let store = home.open().await;
    advance(&*store, spending("a", 5, "mine")).await;
    advance(&*store, spending("b", 5, "mine")).await;
    advance(&*store, spending("c", 5, "mine")).await;
    let give = async || {
        for (resource, number, name) in [
            ("a", 5, "another"),
            ("b", 4, "mine"),
            ("c", 5, "mine"),
            ("nowhere", 5, "mine"),
        ] {
            let resource = key(resource);
            let given = store.give_back(&resource, token(number), name);
            given.must().await;
        }
    };
    give().await;
    for (resource, name, given_back) in [
        ("a", Some("mine"), 0),
        ("b", Some("mine"), 0),
        ("c", None, 1),
    ] {
        let found = advance(&*store, ask(resource, 5)).await;
        assert_eq!(found.spent_by.as_deref(), name, "{resource}");
        assert_eq!(found.given_back, given_back, "{resource}");
    }
    let again = advance(&*store, spending("c", 5, "next")).await;
    assert_eq!(again.spent_by.as_deref(), Some("next"));
    // Too late: somebody else has it by now.
    give().await;
    let found = advance(&*store, ask("c", 5)).await;
    assert_eq!(found.spent_by.as_deref(), Some("next"));
    assert_eq!(found.given_back, 1);
    // It is counted per resource, for good: the next token tells of it too.
    let found = advance(&*store, ask("c", 6)).await;
    assert_eq!((found.spent_by, found.given_back), (None, 1));
}

pub async fn rows_are_read_for_the_resources_named(home: Home) {
    let store = home.open().await;
    for (resource, number) in [("a", 5), ("b", 6), ("c", 7), ("C", 8), ("c%", 9)] {
        advance(&*store, spending(resource, number, "x")).await;
    }
    let named = [key("b"), key("nowhere"), key("c")];
    let mut rows = store.look(&named).must().await;
    rows.sort_by(|(one, _), (other, _)| one.resource.cmp(&other.resource));
    let said: Vec<_> = rows
        .iter()
        .map(|(row, _)| (row.resource.as_str(), row.token.get(), row.spent, row.era))
        .collect();
    assert_eq!(said, [("b", 6, true, 0), ("c", 7, true, 0)]);
    for (row, found) in rows {
        assert_eq!((found.before, found.era), (Some(row.token), row.era));
        assert_eq!(
            (found.spent_by.as_deref(), found.given_back),
            (Some("x"), 0)
        );
    }
    assert_eq!(store.look(&[]).must().await, []);
}

pub async fn a_statement_of_an_older_era_changes_nothing(home: Home) {
    let store = home.open().await;
    advance(&*store, spending("a", 50, "fifty")).await;
    advance(&*store, ask("other", 1)).await;
    let done = store
        .override_mark(&key("a"), token(10), &signed("a test", "me"))
        .must()
        .await;
    assert_eq!(
        done,
        fencepost::store::Override::Done {
            before: token(50),
            era: 1
        }
    );
    // An ask with the era before learns of the new one, and raises and spends nothing.
    for number in [5, 10, 51] {
        let late = advance_as(&*store, 1, 0, spending("a", number, "late")).await;
        assert_eq!(
            late,
            Found {
                before: Some(token(10)),
                era: 1,
                spent_by: None,
                given_back: 0,
                open: vec![],
            }
        );
    }
    assert_eq!(mark_of(&*store, "a").await, Some(10));
    // Other rows go on in their own era. A new row is of the first, for any asker: a row's era is
    // that of its last override, and tells one from a loss.
    assert_eq!(advance_as(&*store, 1, 0, ask("other", 2)).await.era, 0);
    assert_eq!(mark_of(&*store, "other").await, Some(2));
    assert_eq!(advance_as(&*store, 1, 0, ask("new", 2)).await.era, 0);
    assert_eq!(advance_as(&*store, 1, 1, ask("newer", 2)).await.era, 0);
    // In the new era the mark rises again.
    let now = advance_as(&*store, 1, 1, spending("a", 11, "now")).await;
    assert_eq!(now.before, Some(token(10)));
    assert_eq!(now.spent_by.as_deref(), Some("now"));
    assert_eq!(mark_of(&*store, "a").await, Some(11));
}

pub async fn keys_of_every_script_are_kept_apart(home: Home) {
    let store = home.open().await;
    let keys = [
        "é",
        "e\u{301}",
        "E",
        "e",
        "\u{1F980}",
        "%",
        "_",
        "'; --",
        "\\",
        "\"",
        "{}",
        "a b",
        "a",
        // Within JSON, too.
        "\\u0061",
        "a\",\"b",
        "0",
        "null",
    ];
    let long = "ü".repeat(512);
    let asks: Vec<_> = keys
        .iter()
        .copied()
        .chain([long.as_str()])
        .enumerate()
        .map(|(at, key)| ask(key, i64::try_from(at).expect("a few")))
        .collect();
    let found = advance_all(&*store, batch(&asks)).await;
    assert!(found.iter().all(|found| found.before.is_none()));
    let store: Arc<dyn MarkStore> = home.reopen(store).await;
    for ask in &asks {
        let resource = ask.resource.as_str();
        let mark = mark_of(&*store, resource).await;
        assert_eq!(mark, Some(ask.token.get()), "{resource}");
    }
}
