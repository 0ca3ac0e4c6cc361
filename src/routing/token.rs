//! [`Token`]: the number that a lock service issues with a grant, and its spellings in a header.
//!
//! Parsing is byte exact. With a lenient parser, two proxies, or a proxy and its upstream, may read
//! two numbers in one text. So no signs, no digits but ASCII's, no lists, no quotes.

use std::fmt;

/// A fencing token, 0 to 2^63-1. Larger is newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(i64);

impl Token {
    /// 9223372036854775807: the largest number in a signed 64-bit column of a database.
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

    /// The distance of this token below `mark`; 0 if it is not below.
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

/// The spelling of tokens on a route (`token.format`).
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
    /// The first 16 hexadecimal digits. The rest belongs to the lock service; a comma in it is
    /// refused, since a second token may follow.
    PrefixHex16,
}

impl TokenFormat {
    /// Reads a raw header value. Spaces and tabs around the token are allowed (RFC 9110, 5.6.3),
    /// and no other white space.
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

/// The reason why a header value is no token of its format. Positions count bytes from 1, after
/// leading white space.
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

/// `before`: how many bytes of the value precede `text`.
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
mod tests;
