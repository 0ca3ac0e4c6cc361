//! Tests of the bounds on tokens: which leaps past the mark are believed.

use super::*;
use proptest::prelude::*;

fn token(number: i64) -> Token {
    Token::new(number).expect("a token")
}

fn believed(bounds: TokenBounds, number: i64, mark: Option<i64>) -> bool {
    bounds.needs(token(number)).met_by(mark.map(token))
}

const DECIMAL: TokenBounds = TokenBounds::of(TokenFormat::Decimal);

/// The tokens of real lock services, and how far they grow while no client takes the lock.
#[test]
fn what_lock_services_hand_out_is_believed_by_default() {
    const SECOND: i64 = 1_000_000_000;
    const YEAR: i64 = 31_557_600;
    for (what, mark, next) in [
        ("a Redis counter", 41, 42),
        (
            "one counter for all locks, 100,000 a second for a year",
            7,
            7 + 100_000 * YEAR,
        ),
        (
            "etcd: 40,000 writes a second for ten years",
            1_000,
            400_000 * YEAR,
        ),
        ("Consul's ModifyIndex", 900, 5_000 * YEAR),
        ("ZooKeeper: the next election", (4 << 32) + 977, 5 << 32),
        ("ZooKeeper: 60,000 elections", (4 << 32) + 977, 60_004 << 32),
        ("a new etcd cluster after a counter", 42, 3_000_000_000),
        (
            "milliseconds, idle for ten years",
            1_763_800_000_000,
            1_763_800_000_000 + YEAR * 10_000,
        ),
        (
            "nanoseconds, idle for ten years",
            1_763_800_000 * SECOND,
            (1_763_800_000 + 10 * YEAR) * SECOND,
        ),
        (
            "microseconds with 12 bits of a counter, idle for three years",
            1_763_800_000_000_000 << 12,
            (1_763_800_000 + 3 * YEAR) * 1_000_000 * 4096,
        ),
        (
            "a snowflake of 2020, idle for five years",
            (5 * YEAR * 1000) << 22,
            (10 * YEAR * 1000) << 22,
        ),
    ] {
        assert!(believed(DECIMAL, next, Some(mark)), "{what}");
    }
    for first in [
        0,
        1,
        41,
        5 << 32,
        1_763_800_000 * SECOND,
        1_763_800_000_000_000 << 12,
    ] {
        assert!(believed(DECIMAL, first, None), "{first}");
    }
}

#[test]
fn what_leaps_is_not() {
    for mark in [
        None,
        Some(0),
        Some(41),
        Some(1 << 62),
        Some(8_999_999_999_999_999_999),
    ] {
        assert!(!believed(DECIMAL, i64::MAX, mark), "{mark:?}");
        assert!(
            !believed(DECIMAL, TokenBounds::DECIMAL_MAX + 1, mark),
            "{mark:?}"
        );
    }
    assert!(believed(DECIMAL, 41 + Jump::STEP, Some(41)));
    assert!(!believed(DECIMAL, 42 + Jump::STEP, Some(41)));
    assert!(
        believed(DECIMAL, i64::MAX, Some(i64::MAX)),
        "an operator's advance"
    );
    let tight = TokenBounds {
        jump: Jump::Most(10),
        max: token(1000),
    };
    for (number, mark, expected) in [
        (1000, None, true),
        (1001, None, false),
        (10, Some(0), true),
        (11, Some(0), false),
        (51, Some(41), true),
        (52, Some(41), false),
        (52, Some(42), true),
        (1000, Some(990), true),
        (1001, Some(1000), false),
        (1001, Some(1001), true),
        (1002, Some(1001), false),
        (3, Some(41), true),
    ] {
        assert_eq!(
            believed(tight, number, mark),
            expected,
            "{number} past {mark:?}"
        );
    }
}

#[test]
fn formats_whose_numbers_say_nothing_have_no_bounds() {
    for format in [TokenFormat::Hex, TokenFormat::PrefixHex16] {
        assert_eq!(TokenBounds::of(format).needs(Token::MAX), Needs::default());
    }
    assert_eq!(TokenBounds::of(TokenFormat::AfterHash), DECIMAL);
}

proptest! {
    /// The store rests on this: growing marks never make a token less believable.
    #[test]
    fn what_is_believed_stays_so(number in 0..=i64::MAX, mark in 0..=i64::MAX, more in 0..=i64::MAX, jump in 1..=i64::MAX) {
        let later = mark.saturating_add(more);
        for jump in [Jump::Any, Jump::Double, Jump::Most(jump)] {
            let bounds = TokenBounds { jump, max: token(TokenBounds::DECIMAL_MAX) };
            if believed(bounds, number, Some(mark)) {
                prop_assert!(believed(bounds, number, Some(later)));
            }
            prop_assert!(believed(bounds, number, Some(number)));
        }
    }

    #[test]
    fn the_default_is_a_step_or_as_much_again(number in 0..=TokenBounds::DECIMAL_MAX, mark in 0..=i64::MAX) {
        let far = i128::from(number) - i128::from(mark);
        let expected = far <= i128::from(mark.max(Jump::STEP));
        prop_assert_eq!(believed(DECIMAL, number, Some(mark)), expected);
    }
}
