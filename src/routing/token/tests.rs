//! Tests of token formats: each reads its own spelling, and nothing else. Tests of the bounds on
//! tokens: which leaps past the mark are believed.

use super::TokenFormat::{AfterHash, Decimal, Hex, PrefixHex16};
use super::*;
use proptest::prelude::*;

#[test]
fn well_formed() {
    for (format, raw, expected) in [
        (Decimal, "0", 0),
        (Decimal, "42", 42),
        (Decimal, " \t42\t ", 42),
        (Decimal, "0000000000000000042", 42),
        (Decimal, "0000000000000000000", 0),
        (Decimal, "000000000000042", 42),
        (Decimal, "9223372036854775807", i64::MAX),
        (Hex, "0", 0),
        (Hex, "2a", 42),
        (Hex, "0x2A", 42),
        (Hex, "0X2a", 42),
        (Hex, "000000000000002a", 42),
        (Hex, "7fffffffffffffff", i64::MAX),
        (Hex, "0x7FFFFFFFFFFFFFFF", i64::MAX),
        (Hex, "\t694d8A4f ", 0x694d_8a4f),
        (AfterHash, "lock#42", 42),
        (AfterHash, "#7", 7),
        (AfterHash, "a#b#0042", 42),
        (AfterHash, "my lock#42 ", 42),
        (AfterHash, "l#9223372036854775807", i64::MAX),
        (PrefixHex16, "000000000000002a", 42),
        (PrefixHex16, "000000000000002A-lock-7", 42),
        (PrefixHex16, "7fffffffffffffffffff", i64::MAX),
        (PrefixHex16, "000000000000002a,exclusive", 42),
        (PrefixHex16, "\t000000000000002a:x,y ", 42),
    ] {
        assert_eq!(
            format.parse(raw.as_bytes()).map(Token::get),
            Ok(expected),
            "{format:?} {raw:?}"
        );
    }
}

#[test]
fn malformed_decimals() {
    let malformed: &[&[u8]] = &[
        b"",
        b" ",
        b"\t",
        b"-1",
        b"+1",
        b"-0",
        b"+0",
        b"0x2a",
        b"2a",
        b"1.0",
        b"1.",
        b".1",
        b"1e3",
        b"1E3",
        b"1_000",
        b"1,000",
        b"1,2",
        b"41, 42",
        b"42,",
        b",42",
        b"41 42",
        b"4\t2",
        b"\"42\"",
        b"'42'",
        b"\"42",
        b"42;",
        b"42;q=1",
        b"42 ;a",
        b"token=42",
        b"#42",
        b"lock#42",
        b"NaN",
        b"inf",
        b"Infinity",
        b"null",
        b"true",
        b"(42)",
        b"[42]",
        b"{42}",
        b"42\0",
        b"\x0042",
        b"42\n",
        b"\n42",
        b"42\r",
        b"\x0b42",
        b"42\x0c",
        b"\xa042",
        b"\xc2\xa042",
        b"\xef\xbb\xbf42",
        b"\xef\xbc\x94\xef\xbc\x92",
        b"\xd9\xa4\xd9\xa2",
        b"\xe2\x88\x921",
        b"9223372036854775808",
        b"9999999999999999999",
        b"18446744073709551615",
        b"18446744073709551616",
        b"00000000000000000042",
        b"00000000000000000000",
        b"100000000000000000000",
        b"0b101",
        b"0o17",
        b"42n",
        b"42L",
        b"42u",
        b"%34%32",
        b"42%20",
        b"*",
        b"?",
        b"1/2",
        b"1:2",
        b"~42",
        b"^42",
        b"$42",
    ];
    assert!(malformed.len() >= 40);
    for raw in malformed {
        let error = Decimal.parse(raw).expect_err(&String::from_utf8_lossy(raw));
        assert!(
            error.contains("expected: 1 to 19 decimal digits"),
            "{error}"
        );
    }
}

#[test]
fn malformed_others() {
    for (format, raw) in [
        (Hex, ""),
        (Hex, "0x"),
        (Hex, "x2a"),
        (Hex, "0x0x2a"),
        (Hex, "2g"),
        (Hex, "-2a"),
        (Hex, "0x-2a"),
        (Hex, "2a, 2b"),
        (Hex, "8000000000000000"),
        (Hex, "ffffffffffffffff"),
        (Hex, "00000000000000001"),
        (Hex, "2a h"),
        (AfterHash, ""),
        (AfterHash, "42"),
        (AfterHash, "lock#"),
        (AfterHash, "lock# 42"),
        (AfterHash, "lock#42a"),
        (AfterHash, "lock#-1"),
        (AfterHash, "lock#42#"),
        (AfterHash, "lock#41, lock#42"),
        (AfterHash, "lock#9223372036854775808"),
        (AfterHash, "lock#00000000000000000042"),
        (AfterHash, "lo\tck#42"),
        (PrefixHex16, ""),
        (PrefixHex16, "2a"),
        (PrefixHex16, "00000000000002a"),
        (PrefixHex16, "00000000000002ag"),
        (PrefixHex16, "0x000000000000002a"),
        (PrefixHex16, "8000000000000000"),
        (PrefixHex16, "ffffffffffffffffff"),
        (PrefixHex16, "0000000000000029,000000000000002a"),
        (PrefixHex16, "0000000000000029-x, 000000000000002a-y"),
    ] {
        assert!(format.parse(raw.as_bytes()).is_err(), "{format:?} {raw:?}");
    }
}

#[test]
fn messages_say_what_where_and_what_instead() {
    assert_eq!(
        Decimal.parse(b" 4x2").unwrap_err(),
        "byte 2 of the token is `x`; expected: 1 to 19 decimal digits, at most 2^63-1 \
         (token format decimal)"
    );
    assert_eq!(
        AfterHash.parse(b"lock#4\xc3").unwrap_err(),
        "byte 7 of the token is `\\xc3`; expected: a name, `#` and 1 to 19 decimal digits \
         (`lock#42`), at most 2^63-1 (token format after-hash)"
    );
}

#[test]
fn gap() {
    assert_eq!(token(41).gap_to(token(42)), 1);
    assert_eq!(token(42).gap_to(token(41)), 0);
    assert_eq!(token(0).gap_to(Token::MAX), i64::MAX.unsigned_abs());
    assert_eq!(Token::new(-1), None);
}

#[test]
fn verdicts() {
    let stale = |n| Decision::Stale { mark: token(n) };
    for (mark, asked, expected) in [
        (None, 0, Decision::Advanced),
        (None, i64::MAX, Decision::Advanced),
        (Some(0), 0, Decision::Current),
        (Some(0), 1, Decision::Advanced),
        (Some(1), 0, stale(1)),
        (Some(9), 10, Decision::Advanced),
        (Some(10), 9, stale(10)),
        (Some(10), 10, Decision::Current),
        (Some(i64::MAX), i64::MAX, Decision::Current),
        (Some(i64::MAX), i64::MAX - 1, stale(i64::MAX)),
        (Some(i64::MAX - 1), i64::MAX, Decision::Advanced),
    ] {
        assert_eq!(
            judge(mark.map(token), token(asked)),
            expected,
            "{mark:?} {asked}"
        );
    }
}

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
    #[test]
    fn every_number_survives_every_format(number in 0..=i64::MAX) {
        let expected = Token(number);
        prop_assert_eq!(Decimal.parse(Token(number).to_string().as_bytes()), Ok(expected));
        prop_assert_eq!(Decimal.parse(format!("{number:019}").as_bytes()), Ok(expected));
        prop_assert_eq!(Hex.parse(format!("{number:x}").as_bytes()), Ok(expected));
        prop_assert_eq!(Hex.parse(format!("{number:#X}").replace('X', "x").as_bytes()), Ok(expected));
        prop_assert_eq!(AfterHash.parse(format!("lock#{number}").as_bytes()), Ok(expected));
        prop_assert_eq!(PrefixHex16.parse(format!("{number:016x}zz").as_bytes()), Ok(expected));
    }

    #[test]
    fn what_is_accepted_is_digits(raw in proptest::collection::vec(any::<u8>(), 0..24)) {
        if let Ok(token) = Decimal.parse(&raw) {
            let text = trim(&raw);
            prop_assert!((1..=19).contains(&text.len()));
            prop_assert!(text.iter().all(u8::is_ascii_digit));
            prop_assert_eq!(std::str::from_utf8(text).unwrap().parse(), Ok(token.get()));
        }
    }

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
