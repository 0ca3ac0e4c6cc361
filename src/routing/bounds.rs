//! [`TokenBounds`]: how far past its mark a token is believed to be. A number that no lock service
//! hands out would shut every holder out, durably, even if it comes from a stranger.
//!
//! Marks only grow. So a token that is believed at one mark is believed at every later one, and the
//! bound is one number, the least mark from which the token is believed. The store compares it
//! under the row's lock.

use super::token::{Token, TokenFormat};

/// What a mark has to be before an ask takes effect. The default asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// A mark that is there must be at least this.
    pub least: Option<Token>,
    /// A resource without a mark gets none.
    pub present: bool,
}

impl Needs {
    /// Whether a mark will do; `None`: there is none.
    #[must_use]
    pub fn met_by(self, mark: Option<Token>) -> bool {
        match mark {
            Some(mark) => self.least.is_none_or(|least| mark >= least),
            None => !self.present,
        }
    }

    /// Asks for what both ask for.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            least: self.least.max(other.least),
            present: self.present || other.present,
        }
    }

    /// Asks for what either asks for, whichever is less.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            // `None` is the least of all.
            least: self.least.min(other.least),
            present: self.present && other.present,
        }
    }
}

/// How far a token may be past its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// As far as it likes.
    Any,
    /// [`Jump::STEP`] past the mark, or as much again as the mark, if that is more.
    Double,
    /// So far and no farther.
    Most(i64),
}

impl Jump {
    /// 2^48: as many writes as etcd takes in 891 years at 10,000 a second, and 65,536 elections of
    /// a `ZooKeeper` leader, each of which adds 2^32. A counter that was moved so far is still
    /// exact in JavaScript and Lua.
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

/// Which tokens a route believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBounds {
    pub jump: Jump,
    /// The greatest token that a request can raise a mark to.
    pub max: Token,
}

impl TokenBounds {
    /// What is believed of decimal tokens unless the route says otherwise: leaves 2^57 numbers
    /// above it, so that a lock service can always be moved past the highest mark. Nanoseconds
    /// since 1970 get there in 2255.
    pub const DECIMAL_MAX: i64 = 9_000_000_000_000_000_000;

    /// The default for a format. What lock services write in hexadecimal often begins with an id or
    /// a time, so that nothing can be said of how it grows.
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

    /// What the mark has to be for this token. An equal one will always do: it is what an
    /// operator's advance admits a token by.
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(number: i64) -> Token {
        Token::new(number).expect("a token")
    }

    fn believed(bounds: TokenBounds, number: i64, mark: Option<i64>) -> bool {
        bounds.needs(token(number)).met_by(mark.map(token))
    }

    const DECIMAL: TokenBounds = TokenBounds::of(TokenFormat::Decimal);

    /// What holders of real lock services have, and how far it grows while nobody takes the lock.
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
        /// What the store rests on: growing marks never make a token less believable.
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
}
