//! Tests of token formats: each reads its own spelling, and nothing else.

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
            error
                .to_string()
                .contains("expected: 1 to 19 decimal digits"),
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
        Decimal.parse(b" 4x2").unwrap_err().to_string(),
        "byte 2 of the token is `x`; expected: 1 to 19 decimal digits, at most \
         9223372036854775807 (token format decimal)"
    );
    assert_eq!(
        AfterHash.parse(b"lock#4\xc3").unwrap_err().to_string(),
        "byte 7 of the token is 0xc3; expected: a name, `#` and 1 to 19 decimal digits \
         (`lock#42`), at most 9223372036854775807 (token format after-hash)"
    );
}

#[test]
fn gap() {
    let token = |n| Token::new(n).expect("in range");
    assert_eq!(token(41).gap_to(token(42)), 1);
    assert_eq!(token(42).gap_to(token(41)), 0);
    assert_eq!(token(0).gap_to(Token::MAX), i64::MAX.unsigned_abs());
    assert_eq!(Token::new(-1), None);
}

proptest! {
    #[test]
    fn every_number_survives_every_format(number in 0..=i64::MAX) {
        let expected = Ok(Token(number));
        prop_assert_eq!(Decimal.parse(Token(number).to_string().as_bytes()), expected);
        prop_assert_eq!(Decimal.parse(format!("{number:019}").as_bytes()), expected);
        prop_assert_eq!(Hex.parse(format!("{number:x}").as_bytes()), expected);
        prop_assert_eq!(Hex.parse(format!("{number:#X}").replace('X', "x").as_bytes()), expected);
        prop_assert_eq!(AfterHash.parse(format!("lock#{number}").as_bytes()), expected);
        prop_assert_eq!(PrefixHex16.parse(format!("{number:016x}zz").as_bytes()), expected);
    }

    #[test]
    fn what_is_accepted_is_digits(raw in proptest::collection::vec(any::<u8>(), 0..24)) {
        if let Ok(token) = Decimal.parse(&raw) {
            let text = trim_ows(&raw);
            prop_assert!((1..=19).contains(&text.len()));
            prop_assert!(text.iter().all(u8::is_ascii_digit));
            prop_assert_eq!(std::str::from_utf8(text).unwrap().parse(), Ok(token.get()));
        }
    }
}
