//! Marks rise, where an ask's conditions hold; tokens are spent; eras outrank both.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use super::{Home, Must, advance, advance_all, ask, batch, key, mark_of, script, token};

contract! {
    in_company {
        a_batch_is_answered_in_the_order_asked,
        namespaces_share_nothing,
        keys_of_every_script_are_kept_apart,
        a_mark_says_since_when
    }

    no_mark_is_not_zero: "
        look a =
        advance a 0 = none
        look a = 0
        advance a 0 = 0
        look b =
    "

    a_token_is_spent_once: "
        advance a 5 !first = none spent first
        advance a 5 !second = 5 spent first
        // A token below the mark spends nothing, and hears no name: the mark is another token.
        advance a 4 !four = 5
        // An equal token that spends nothing learns of it too, and spending survives.
        reopen
        advance a 5 = 5 spent first
        look a = 5 spent first
        // A mark that was raised without spending can be spent by the next request.
        advance b 5
        advance b 5 !late = 5 spent late
    "

    a_newer_token_is_not_spent: "
        advance a 5 !five
        advance a 6 = 5
        look a = 6
        advance a 7 !seven = 6 spent seven
    "

    spending_goes_back_only_under_its_name: "
        advance a 5 !mine
        advance b 5 !mine
        advance c 5 !mine
        give a 5 another
        give b 4 mine
        give c 5 mine
        give nowhere 5 mine
        advance a 5 = 5 spent mine
        advance b 5 = 5 spent mine
        advance c 5 = 5 back 1
        advance c 5 !next = 5 spent next back 1
        // Too late: somebody else has it by now.
        give c 5 mine
        advance c 5 = 5 spent next back 1
        // It is counted per resource, for good: the next token tells of it too.
        advance c 6 = 5 back 1
    "

    rows_are_read_for_the_resources_named: "
        advance a 5 !x; b 6 !x; c 7 !x; C 8 !x; c% 9 !x
        look b nowhere c = b: 6 spent x; c: 7 spent x
        look =
    "

    a_statement_of_an_older_era_changes_nothing: "
        advance a 50 !fifty
        advance other 1
        override a 10 = Done { before: Token(50), era: 1 }
        // An ask with the era before learns of the new one, and raises and spends nothing.
        advance a 5 !late = 10 era 1
        advance a 10 !late = 10 era 1
        advance a 51 !late = 10 era 1
        look a = 10 era 1
        // Other rows go on in their own era. A new row is of the first, for any asker: a row's era
        // is that of its last override, and tells one from a loss.
        advance other 2 = 1
        look other = 2
        advance new 2 = none
        1/1: advance newer 2 = none
        // In the new era the mark rises again.
        1/1: advance a 11 !now = 10 era 1 spent now
        look a = 11 era 1 spent now
    "

    // Conditions of an ask on the mark, checked under the row's lock.

    a_token_that_leaps_changes_nothing: "
        advance a 41 !x
        advance a 1000 #1 !y >=42 = 41
        look a = 41 spent x
        advance a 41 !z = 41 spent x
        // From its bound on it counts.
        advance a 1000 #2 >=41 present = 41 1#2@1000
        look a = 1000 1#2@1000
        // Older tokens are found to be older, whatever they need.
        advance a 999 #3 >=2000 present = 1000 1#2@1000
        look a = 1000 1#2@1000
    "

    a_first_mark_is_made_only_where_it_may_be: "
        advance a 7 #1 present = none
        look a =
        // A bound is one past a mark that is there.
        advance a MAX #2 >=MAX = none 1#2@MAX
        look a = MAX 1#2@MAX
        // A mark that was needed is none.
        advance a MAX = MAX 1#2@MAX
        advance b 0 >=0 = none
        advance b 0 = 0
    "

    each_of_a_batch_has_its_own_needs: "
        advance a 41; c 41; e 41
        advance e 1000 #1 >=42; d 7 #2 present; c 42 #3 >=41 present; b 7 #4 >=3; a MAX #5 \
            = 41; none; 41 1#3@42; none 1#4@7; 41 1#5@MAX
        look a b c d e = a: MAX 1#5@MAX; b: 7 1#4@7; c: 42 1#3@42; e: 41
    "
}

async fn a_batch_is_answered_in_the_order_asked(home: Home) {
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

async fn namespaces_share_nothing(home: Home) {
    let one = home.open_in("one").await;
    let script = "
        advance a 7
        join = 0
        route none > one = true
        begin one's 7 = one's Sent(false)
    ";
    script::play_on(&home, Arc::clone(&one), script).await;
    // SQLite lets one store have the file at a time.
    let _one = home.0.is_shared().then_some(one);
    let script = "
        look a =
        names =
        instances =
        routes = None
        begin two's 1 = two's Sent(false)
        advance a 1 = none
    ";
    script::play_on(&home, home.open_in("two").await, script).await;
}

/// Some of them mean something within JSON.
const KEYS: &str = "é e\u{301} E e \u{1F980} % _ ';_-- \\ \" {} a a_b \\u0061 a\",\"b 0 null";

async fn keys_of_every_script_are_kept_apart(home: Home) {
    let store = home.open().await;
    let long = "ü".repeat(512);
    let keys = KEYS.split(' ').chain(["'; --", "a b", &long]);
    let asks: Vec<_> = (0..).zip(keys).map(|(at, key)| ask(key, at)).collect();
    let found = advance_all(&*store, batch(&asks)).await;
    assert!(found.iter().all(|found| found.before.is_none()));
    let store = home.reopen(store).await;
    for ask in &asks {
        let resource = ask.resource.as_str();
        let mark = mark_of(&*store, resource).await;
        assert_eq!(mark, Some(ask.token.get()), "{resource}");
    }
}

async fn a_mark_says_since_when(home: Home) {
    let store = home.open().await;
    let play = |script| script::play_on(&home, Arc::clone(&store), script);
    let since = async |resource| store.look(&[key(resource)]).must().await[0].0.since_ms;
    play("advance a 5").await;
    let first = since("a").await;
    // The only clock that can be compared with the store's; a day is no clock skew.
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    let now = file.as_file().metadata().and_then(|meta| meta.modified());
    let now = now.expect("a time").duration_since(UNIX_EPOCH);
    let now = i64::try_from(now.expect("it is later").as_millis()).expect("it is not so late");
    assert!((first - now).abs() < 86_400_000, "{first} {now}");
    // Until the store's clock has moved on, as another resource shows.
    for number in 0.. {
        advance(&*store, ask("b", number)).await;
        if since("b").await > first {
            break;
        }
    }
    // Equal, lower and refused tokens do not change it; a newer one does.
    play("advance a 5\nadvance a 4\nadvance a 1000 >=6").await;
    assert_eq!(since("a").await, first);
    play("advance a 6").await;
    let second = since("a").await;
    assert!(second > first);
    play("override a 6").await;
    assert!(since("a").await >= second);
    let audit = store.audit(&key("a"), 9).must().await;
    assert!(audit[0].at_ms >= since("a").await);
}
