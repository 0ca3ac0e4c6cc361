//! The callers' bounds: implausible tokens.

use super::*;
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
