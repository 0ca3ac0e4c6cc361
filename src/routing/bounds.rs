//! [`TokenBounds`]: how far past its mark a token is accepted. A number that no lock service issues
//! would lock every holder out for good, even if a stranger sent it.
//!
//! Marks only grow. So a token that is accepted at one mark is accepted at every later one, and the
//! bound is one number: the least mark from which the token is accepted. The store compares it
//! under the row's lock.

use super::token::{Token, TokenFormat};

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
    #[must_use]
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
    const fn least(self, token: i64) -> i64 {
        match self {
            Self::Any => 0,
            Self::Most(most) => token.saturating_sub(most),
            Self::Double => {
                let half = token / 2 + token % 2;
                let near = token.saturating_sub(Self::STEP);
                if near < half { near } else { half }
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
                max: match Token::new(Self::DECIMAL_MAX) {
                    Some(max) => max,
                    None => Token::MAX,
                },
            },
            TokenFormat::Hex | TokenFormat::PrefixHex16 => Self {
                jump: Jump::Any,
                max: Token::MAX,
            },
        }
    }

    /// The mark that this token needs. An equal mark is always enough: an operator's advance admits
    /// a token that way.
    #[must_use]
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
