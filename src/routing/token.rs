//! [`Token`]: the number a lock service hands out with a grant; and the spellings it may have in a
//! header.
//!
//! Parsing is byte exact. A lenient parser is where two proxies, or a proxy and its upstream, come
//! to read two numbers in one text: so no signs, no other digits than ASCII's, no lists, no quotes.

use std::fmt;

/// A fencing token, 0 to 2^63-1. Larger is newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(i64);

impl Token {
    /// 9223372036854775807: what a signed 64-bit column of a database holds.
    pub const MAX: Self = Self(i64::MAX);

    /// `None` for a negative number.
    #[must_use]
    pub const fn new(number: i64) -> Option<Self> {
        if number < 0 { None } else { Some(Self(number)) }
    }

    /// The number; never negative.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// How far this token is behind `mark`: 0 where it is not.
    #[must_use]
    pub fn gap_to(self, mark: Self) -> u64 {
        mark.0.saturating_sub(self.0).try_into().unwrap_or(0)
    }
}

/// The canonical form: decimal, no leading zeros.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How a route's clients spell their tokens (`token.format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TokenFormat {
    /// `[0-9]{1,19}`, leading zeros among the 19.
    #[default]
    Decimal,
    /// 1 to 16 hexadecimal digits of either case, with or without `0x`.
    Hex,
    /// `lock#42`: the decimal behind the last `#`. A comma anywhere is refused, since two header
    /// lines that an intermediary has joined look like that.
    AfterHash,
    /// The first 16 hexadecimal digits; what follows them is the lock service's own business, as
    /// long as it is not a second token behind a comma.
    PrefixHex16,
}

impl TokenFormat {
    /// Reads a raw header value. Spaces and tabs around the token are allowed (RFC 9110, 5.6.3), and
    /// no other white space.
    pub fn parse(self, raw: &[u8]) -> Result<Token, TokenError> {
        let text = trim_ows(raw);
        let number = if text.is_empty() {
            Err(TokenProblem::Empty)
        } else {
            match self {
                Self::Decimal => decimal(text, 0),
                Self::Hex => hex(text),
                Self::AfterHash => after_hash(text),
                Self::PrefixHex16 => prefix_hex(text),
            }
        };
        number.map(Token).map_err(|problem| TokenError {
            format: self,
            problem,
        })
    }

    /// The name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decimal => "decimal",
            Self::Hex => "hex",
            Self::AfterHash => "after-hash",
            Self::PrefixHex16 => "prefix-hex16",
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::Decimal => "1 to 19 decimal digits, at most 9223372036854775807",
            Self::Hex => {
                "1 to 16 hexadecimal digits, with or without `0x`, at most 7fffffffffffffff"
            }
            Self::AfterHash => {
                "a name, `#` and 1 to 19 decimal digits (`lock#42`), at most 9223372036854775807"
            }
            Self::PrefixHex16 => {
                "at least 16 hexadecimal digits, the first 16 at most 7fffffffffffffff"
            }
        }
    }
}

/// Why a header value is not a token of its format. Positions count bytes from 1 behind the white
/// space that leads the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenError {
    format: TokenFormat,
    problem: TokenProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenProblem {
    Empty,
    Byte { at: usize, byte: u8 },
    TooManyDigits { digits: usize, most: usize },
    TooLarge,
    NoHash,
    NoDigits,
    ShortPrefix { digits: usize },
    List { at: usize },
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem {
            TokenProblem::Empty => write!(f, "the token is empty")?,
            TokenProblem::Byte { at, byte } => {
                write!(f, "byte {at} of the token is ")?;
                if byte.is_ascii_graphic() {
                    write!(f, "`{}`", char::from(byte))?;
                } else {
                    write!(f, "0x{byte:02x}")?;
                }
            }
            TokenProblem::TooManyDigits { digits, most } => {
                write!(f, "the token has {digits} digits, and {most} is the most")?;
            }
            TokenProblem::TooLarge => write!(f, "the token is above 2^63-1")?,
            TokenProblem::NoHash => write!(f, "the token has no `#`")?,
            TokenProblem::NoDigits => write!(f, "the token has no digits where they belong")?,
            TokenProblem::ShortPrefix { digits } => {
                write!(f, "the token starts with only {digits} hexadecimal digits")?;
            }
            TokenProblem::List { at } => {
                write!(f, "the comma at byte {at} makes a list of the token")?;
            }
        }
        write!(
            f,
            "; expected: {} (token format {})",
            self.format.expected(),
            self.format.as_str()
        )
    }
}

impl std::error::Error for TokenError {}

/// Cuts optional white space, SP and HTAB, off both ends.
fn trim_ows(mut raw: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = raw {
        raw = rest;
    }
    raw
}

/// `before`: how many bytes of the value lie in front of `text`.
fn decimal(text: &[u8], before: usize) -> Result<i64, TokenProblem> {
    if text.is_empty() {
        return Err(TokenProblem::NoDigits);
    }
    if let Some(i) = text.iter().position(|byte| !byte.is_ascii_digit()) {
        return Err(TokenProblem::Byte {
            at: before + i + 1,
            byte: text[i],
        });
    }
    if text.len() > 19 {
        return Err(TokenProblem::TooManyDigits {
            digits: text.len(),
            most: 19,
        });
    }
    text.iter()
        .try_fold(0_i64, |number, byte| {
            number.checked_mul(10)?.checked_add(i64::from(byte - b'0'))
        })
        .ok_or(TokenProblem::TooLarge)
}

fn hex(text: &[u8]) -> Result<i64, TokenProblem> {
    let (digits, before) = match text {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 2),
        digits => (digits, 0),
    };
    if digits.is_empty() {
        return Err(TokenProblem::NoDigits);
    }
    if let Some(i) = digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        return Err(TokenProblem::Byte {
            at: before + i + 1,
            byte: digits[i],
        });
    }
    if digits.len() > 16 {
        return Err(TokenProblem::TooManyDigits {
            digits: digits.len(),
            most: 16,
        });
    }
    hex_value(digits)
}

fn after_hash(text: &[u8]) -> Result<i64, TokenProblem> {
    if let Some(i) = text.iter().position(|&byte| byte == b',') {
        return Err(TokenProblem::List { at: i + 1 });
    }
    if let Some(i) = text.iter().position(|&byte| byte < b' ' || byte == 0x7f) {
        return Err(TokenProblem::Byte {
            at: i + 1,
            byte: text[i],
        });
    }
    let hash = text
        .iter()
        .rposition(|&byte| byte == b'#')
        .ok_or(TokenProblem::NoHash)?;
    decimal(&text[hash + 1..], hash + 1)
}

fn prefix_hex(text: &[u8]) -> Result<i64, TokenProblem> {
    let digits = leading_hex_digits(text);
    if digits < 16 {
        return Err(TokenProblem::ShortPrefix { digits });
    }
    for (i, _) in text.iter().enumerate().filter(|&(_, &byte)| byte == b',') {
        if leading_hex_digits(trim_ows(&text[i + 1..])) >= 16 {
            return Err(TokenProblem::List { at: i + 1 });
        }
    }
    hex_value(&text[..16])
}

fn leading_hex_digits(text: &[u8]) -> usize {
    text.iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count()
}

/// The value of at most 16 hexadecimal digits.
fn hex_value(digits: &[u8]) -> Result<i64, TokenProblem> {
    let value = digits.iter().fold(0_u64, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            _ => (byte | 0x20) - b'a' + 10,
        };
        number << 4 | u64::from(digit)
    });
    i64::try_from(value).map_err(|_| TokenProblem::TooLarge)
}

#[cfg(test)]
mod tests {
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
}
