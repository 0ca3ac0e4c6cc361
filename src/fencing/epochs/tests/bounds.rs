//! The callers' bounds: implausible tokens, and new resources.

use super::*;
use crate::metrics::Limit;
use crate::routing::{Jump, TokenBounds};

const TIGHT: TokenBounds = TokenBounds {
    jump: Jump::Most(10),
    max: Token::MAX,
};

fn bounded(one: &One, on: &str, number: i64, bounds: TokenBounds) -> Asked {
    one.ask_for(on, number, Want::Open, Some(bounds.needs(token(number))))
}

fn run_bounded(one: &One, on: &str, number: i64, bounds: TokenBounds) -> Answer {
    let asked = bounded(one, on, number, bounds);
    one.turns();
    answer(asked)
}

fn implausible(mark: Option<i64>) -> Answer {
    Err(Refused::Implausible {
        mark: mark.map(token),
    })
}

fn has_mark(one: &One, on: &str, number: i64) {
    one.rows
        .borrow_mut()
        .marks
        .insert(key(on), Mark::at(token(number)));
}

/// A statement that has everything: a stale token, a leap, and a token that is believed by a mark
/// that was not known here.
#[test]
fn all_that_wait_together_are_judged_by_the_mark_that_is_found() {
    let one = One::alone();
    assert!(one.open("a", 41).is_ok());
    one.raised("a", 60);
    let asked = [42, 51, 60, 70, 71, 5000].map(|number| bounded(&one, "a", number, TIGHT));
    one.turns();
    assert_eq!(
        asked.map(answer),
        [
            stale(60, DecidedBy::Store),
            stale(60, DecidedBy::Store),
            // 70 was believed from 60 on, and raised the mark.
            stale(70, DecidedBy::Store),
            Ok(true),
            implausible(Some(60)),
            implausible(Some(60)),
        ]
    );
    assert_eq!(one.mark("a"), Some(70));
    assert_eq!(one.recall("a", 69), stale(70, DecidedBy::Memory));
}

#[test]
fn a_token_that_leaps_opens_nothing_and_is_learned_from() {
    let one = One::alone();
    has_mark(&one, "a", 41);
    assert_eq!(run_bounded(&one, "a", 5000, TIGHT), implausible(Some(41)));
    assert_eq!((one.mark("a"), one.in_store("a")), (Some(41), vec![]));
    assert_eq!(one.recall("a", 40), stale(41, DecidedBy::Memory));
    // No bounds hold for an operator.
    assert_eq!(one.want("a", 5000, Want::Raise), Ok(true));
    assert_eq!(run_bounded(&one, "a", 5000, TIGHT), Ok(false));
    assert_eq!(one.in_store("a").len(), 1);
    let max = TokenBounds {
        max: token(1000),
        ..TIGHT
    };
    assert_eq!(run_bounded(&one, "b", 1001, max), implausible(None));
    assert_eq!(one.mark("b"), None);
    assert_eq!(run_bounded(&one, "b", 1000, max), Ok(true));
}

#[test]
fn resources_that_have_a_mark_need_no_room() {
    let one = One::alone();
    one.table.setup.growth.set(Some(1));
    let names = |kind: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{kind}-{n:02}")).collect()
    };
    let ask = |names: Vec<String>| -> Vec<Asked> {
        let asked = names.iter().map(|on| bounded(&one, on, 1, TIGHT));
        asked.collect()
    };
    for on in names("known", 50) {
        has_mark(&one, &on, 1);
    }
    // The known ones come first, and take the places while nothing is known of them.
    let (known, new) = (ask(names("known", 50)), ask(names("new", 30)));
    one.turns();
    assert!(known.into_iter().all(|asked| answer(asked) == Ok(false)));
    let (made, full): (Vec<_>, Vec<_>) = new.into_iter().map(answer).partition(Result::is_ok);
    assert_eq!((made.len(), full.len()), (10, 20));
    assert!(
        full.iter()
            .all(|refused| *refused == Err(Refused::Limited(Limit::NewResources)))
    );
    assert_eq!(one.table.setup.metrics.series.new_resources.get(), 10);
    let made = one.rows.borrow().marks.len();
    assert_eq!(made, 60);
}

#[test]
fn a_statement_without_an_answer_takes_no_room_for_good() {
    let one = One::alone();
    let growth = &one.table.setup.growth;
    growth.set(Some(1));
    while growth.take() {}
    growth.give_back();
    for on in ["a", "b", "a"] {
        let _asked = bounded(&one, on, 1, TIGHT);
        let sent = one.compose();
        assert!(!sent.batch().asks[0].needs.present, "it has room");
        one.give_up(sent);
    }
    assert_eq!(run_bounded(&one, "a", 1, TIGHT), Ok(true));
    assert_eq!(
        run_bounded(&one, "b", 1, TIGHT),
        Err(Refused::Limited(Limit::NewResources))
    );
}

/// Requests for which there is no room wait in the same statement.
#[test]
fn an_operator_needs_no_room() {
    let one = One::alone();
    let growth = &one.table.setup.growth;
    growth.set(Some(1));
    while growth.take() {}
    let leaps = bounded(&one, "a", 1000, TIGHT);
    let other = bounded(&one, "other", 1000, TIGHT);
    let asked = one.ask_for("a", 5, Want::Raise, None);
    one.turns();
    assert_eq!(answer(asked), Ok(true));
    assert_eq!(answer(leaps), implausible(Some(5)));
    assert_eq!(answer(other), Err(Refused::Limited(Limit::NewResources)));
    assert_eq!((one.mark("a"), one.mark("other")), (Some(5), None));
}
