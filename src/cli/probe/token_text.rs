//! Tokens as the routes read them.

use anyhow::Context as _;
use clap::ValueEnum;
use http::HeaderValue;

use crate::routing::{Token, TokenFormat};

/// How a token is written, in the words of `token.format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum WrittenAs {
    /// 42
    #[default]
    Decimal,
    /// 2a
    Hex,
    /// drill#42
    AfterHash,
    /// 000000000000002a
    #[value(name = "prefix-hex16")]
    PrefixHex16,
}

impl From<TokenFormat> for WrittenAs {
    fn from(format: TokenFormat) -> Self {
        match format {
            TokenFormat::Decimal => Self::Decimal,
            TokenFormat::Hex => Self::Hex,
            TokenFormat::AfterHash => Self::AfterHash,
            TokenFormat::PrefixHex16 => Self::PrefixHex16,
        }
    }
}

impl WrittenAs {
    pub(super) fn write(self, token: Token) -> anyhow::Result<HeaderValue> {
        let text = match self {
            Self::Decimal => token.to_string(),
            Self::Hex => format!("{:x}", token.get()),
            Self::AfterHash => format!("drill#{token}"),
            Self::PrefixHex16 => format!("{:016x}", token.get()),
        };
        HeaderValue::try_from(text).context("a token is plain text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_reads_what_is_written() {
        for format in [
            TokenFormat::Decimal,
            TokenFormat::Hex,
            TokenFormat::AfterHash,
            TokenFormat::PrefixHex16,
        ] {
            for number in [0, 9, 42, 1_763_940_000_000, i64::MAX] {
                let token = Token::new(number).expect("not negative");
                let text = WrittenAs::from(format).write(token).expect("text");
                assert_eq!(format.parse(text.as_bytes()).ok(), Some(token), "{text:?}");
            }
        }
    }
}
