//! The verdict: one comparison, in one place, so that no caller writes `<` where `<=` belongs.

use super::token::Token;

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

/// Judges `token` against `mark`. No mark yet is not a mark of 0: the first token, 0 included,
/// advances.
#[must_use]
pub fn judge(mark: Option<Token>, token: Token) -> Decision {
    match mark {
        Some(mark) if token < mark => Decision::Stale { mark },
        Some(mark) if token == mark => Decision::Current,
        Some(_) | None => Decision::Advanced,
    }
}

/// The mark that refuses `token`, if there is one.
#[must_use]
pub fn stale_by(mark: Option<Token>, token: Token) -> Option<Token> {
    match judge(mark, token) {
        Decision::Stale { mark } => Some(mark),
        Decision::Advanced | Decision::Current => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let token = |n| Token::new(n).expect("in range");
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
}
