//! [`Token`]: the number that a lock service issues with a grant, its spellings in a header, and its
//! comparison with the mark.
//!
//! Parsing is byte exact. With a lenient parser, two proxies, or a proxy and its upstream, may read
//! two numbers in one text. So no signs, no digits but ASCII's, no lists, no quotes.
//!
//! [`TokenBounds`] say how far past its mark a token is accepted. A number that no lock service
//! issues would lock every holder out for good, even if a stranger sent it. Marks only grow. So a
//! token that is accepted at one mark is accepted at every later one, and the bound is one number:
//! the least mark from which the token is accepted. The store compares it under the row's lock.

use std::fmt;

use crate::http1::head::{number, trim};

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
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The distance of this token below `mark`; 0 if it is not below.
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

/// The comparison of a token with the high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Newer than the mark, or the first one ever: the mark has to rise to it.
    Advanced,
    /// Equal to the mark.
    Current,
    /// Older than the mark.
    Stale {
        /// The mark that refuses it.
        mark: Token,
    },
}

/// The verdict on `token` at `mark`: one comparison, in one place, so that no caller writes `<`
/// where `<=` belongs. No mark yet is not a mark of 0: the first token, 0 included, advances.
pub fn judge(mark: Option<Token>, token: Token) -> Decision {
    match mark {
        Some(mark) if token < mark => Decision::Stale { mark },
        Some(mark) if token == mark => Decision::Current,
        Some(_) | None => Decision::Advanced,
    }
}

/// The mark that refuses `token`, if there is one.
pub fn stale_by(mark: Option<Token>, token: Token) -> Option<Token> {
    match judge(mark, token) {
        Decision::Stale { mark } => Some(mark),
        Decision::Advanced | Decision::Current => None,
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
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Decimal, Self::Hex, Self::AfterHash, Self::PrefixHex16];

    /// Reads a raw header value. Spaces and tabs around the token are allowed (RFC 9110, 5.6.3),
    /// and no other white space. The error counts bytes from 1, after leading white space.
    pub fn parse(self, raw: &[u8]) -> Result<Token, String> {
        let text = trim(raw);
        let at_byte = |at: usize| {
            let byte = text[at].escape_ascii();
            self.refused(&format!("byte {} of the token is `{byte}`", at + 1))
        };
        let (begin, most, radix) = match (self, text) {
            (Self::Decimal, _) => (0, 19, 10),
            (Self::Hex, [b'0', b'x' | b'X', ..]) => (2, 16, 16),
            (Self::Hex | Self::PrefixHex16, _) => (0, 16, 16),
            (Self::AfterHash, _) => {
                let odd = |byte: &u8| *byte == b',' || byte.is_ascii_control();
                if let Some(at) = text.iter().position(odd) {
                    return Err(at_byte(at));
                }
                let hash = text.iter().rposition(|byte| *byte == b'#');
                let hash = hash.ok_or_else(|| self.refused("the token has no `#`"))?;
                (hash + 1, 19, 10)
            }
        };
        let mut digits = &text[begin..];
        if self == Self::PrefixHex16 {
            let leading = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_hexdigit()).count();
            let commas = text.iter().enumerate().filter(|(_, byte)| **byte == b',');
            let mut second = commas.filter(|(at, _)| leading(trim(&text[at + 1..])) >= most);
            if let Some((at, _)) = second.next() {
                return Err(at_byte(at));
            }
            digits = &text[..leading(text).min(most)];
        }
        let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
        if let Some(at) = digits.iter().position(|byte| !is_digit(byte)) {
            return Err(at_byte(begin + at));
        }
        let short = digits.len() < most && self == Self::PrefixHex16;
        if digits.is_empty() || digits.len() > most || short {
            let count = digits.len();
            return Err(self.refused(&format!("its number of digits is {count}")));
        }
        let number = number(digits, radix).and_then(|number| Token::new(number.try_into().ok()?));
        number.ok_or_else(|| self.refused("the token is above 2^63-1"))
    }

    fn refused(self, why: &str) -> String {
        let (name, expected) = self.words();
        format!("{why}; expected: {expected}, at most 2^63-1 (token format {name})")
    }

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        self.words().0
    }

    /// The name in the configuration, and the form of a token.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Decimal => ("decimal", "1 to 19 decimal digits"),
            Self::Hex => ("hex", "1 to 16 hexadecimal digits, with or without `0x`"),
            Self::AfterHash => (
                "after-hash",
                "a name, `#` and 1 to 19 decimal digits (`lock#42`)",
            ),
            Self::PrefixHex16 => (
                "prefix-hex16",
                "16 hexadecimal digits, and text behind them",
            ),
        }
    }
}

/// The mark that an ask needs to take effect. The default needs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// An existing mark must be at least this.
    pub least: Option<Token>,
    /// A resource without a mark gets none.
    pub present: bool,
}

impl Needs {
    /// True if this mark is enough; `None`: there is none.
    pub fn met_by(self, mark: Option<Token>) -> bool {
        match mark {
            Some(mark) => self.least.is_none_or(|least| mark >= least),
            None => !self.present,
        }
    }

    /// Needs what both need.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            least: self.least.max(other.least),
            present: self.present || other.present,
        }
    }

    /// Needs what either needs, whichever is less.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            // `None` is the least of all.
            least: self.least.min(other.least),
            present: self.present && other.present,
        }
    }
}

/// The bound on a token's distance above its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// Without a bound.
    Any,
    /// [`Jump::STEP`] past the mark, or as much again as the mark, if that is more.
    Double,
    /// At most this far.
    Most(i64),
}

impl Jump {
    /// 2^48: as many writes as etcd takes in 891 years at 10,000 a second, and 65,536 elections of
    /// a `ZooKeeper` leader at 2^32 each. A counter that was moved this far is still exact in
    /// JavaScript and Lua.
    pub const STEP: i64 = 1 << 48;

    /// The least mark from which this token is believed; 0 or less: any.
    fn least(self, token: i64) -> i64 {
        match self {
            Self::Any => 0,
            Self::Most(most) => token.saturating_sub(most),
            Self::Double => {
                let half = token / 2 + token % 2;
                half.min(token.saturating_sub(Self::STEP))
            }
        }
    }
}

/// Which tokens a route accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBounds {
    pub jump: Jump,
    /// The greatest token that a request can raise a mark to.
    pub max: Token,
}

impl TokenBounds {
    /// The default limit of decimal tokens. It leaves 2^57 numbers above it, so that a lock service
    /// can always be moved past the highest mark. Nanoseconds since 1970 reach it in 2255.
    pub const DECIMAL_MAX: i64 = 9_000_000_000_000_000_000;

    /// The default for a format. Hexadecimal tokens often begin with an id or a time, so how they
    /// grow is unknown.
    #[must_use]
    pub const fn of(format: TokenFormat) -> Self {
        match format {
            TokenFormat::Decimal | TokenFormat::AfterHash => Self {
                jump: Jump::Double,
                max: Token(Self::DECIMAL_MAX),
            },
            TokenFormat::Hex | TokenFormat::PrefixHex16 => Self {
                jump: Jump::Any,
                max: Token::MAX,
            },
        }
    }

    /// The mark that this token needs. An equal mark is always enough: an operator's advance admits
    /// a token that way.
    pub fn needs(self, token: Token) -> Needs {
        if token > self.max {
            return Needs {
                least: Some(token),
                present: true,
            };
        }
        let least = self.jump.least(token.get());
        Needs {
            least: Token::new(least).filter(|_| least > 0),
            present: false,
        }
    }
}

#[cfg(test)]
mod tests;
