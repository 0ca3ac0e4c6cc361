//! The block `token` of a route: the format of its tokens, and their bounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::OrNone;
use crate::config::yaml::Report;
use crate::routing::{Jump, Token, TokenBounds, TokenFormat};

/// The format of tokens, and their bounds.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Token")]
pub struct TokenFile {
    /// Its format in `X-Fencing-Token`.
    pub format: FormatName,
    /// The distance of a token above its resource's mark; tokens beyond that get a 422 until an
    /// operator admits them (`fencepost marks advance`). A number, or `none`. The default for
    /// decimal tokens (`decimal`, `after-hash`) is 2^48 = 281474976710656, or as much again as the
    /// mark if that is more; no known lock service leaps that far. For the other formats it is
    /// none. If each lock has a counter of its own, 1000 is plenty, and stops a forged number much
    /// earlier.
    pub max_jump: Option<OrNone<u64>>,
    /// The greatest token that is accepted, also as a resource's first one; a number, or `none`.
    /// The default for decimal tokens is 9000000000000000000, which leaves numbers above every
    /// mark. For the other formats it is none.
    pub max: Option<OrNone<u64>>,
}

/// The spelling of a token.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FormatName {
    /// Digits.
    #[default]
    Decimal,
    /// Hexadecimal digits of either case, with `0x` or without.
    Hex,
    /// The decimal number after the last `#`: `lock#42`.
    AfterHash,
    /// The first 16 hexadecimal digits of a longer text.
    #[serde(rename = "prefix-hex16")]
    PrefixHex16,
}

impl From<FormatName> for TokenFormat {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Decimal => Self::Decimal,
            FormatName::Hex => Self::Hex,
            FormatName::AfterHash => Self::AfterHash,
            FormatName::PrefixHex16 => Self::PrefixHex16,
        }
    }
}

/// The format and the bounds. `at`: the route.
pub(super) fn settings(
    at: &str,
    file: &TokenFile,
    report: &mut Report,
) -> (TokenFormat, TokenBounds) {
    let format = TokenFormat::from(file.format);
    let mut bounds = TokenBounds::of(format);
    let jump = number(&format!("{at}.token.max_jump"), file.max_jump, report);
    if let Some(jump) = jump {
        bounds.jump = jump.map_or(Jump::Any, |jump| Jump::Most(jump.get()));
    }
    let max = number(&format!("{at}.token.max"), file.max, report);
    if let Some(max) = max {
        bounds.max = max.unwrap_or(Token::MAX);
    }
    (format, bounds)
}

/// A number of 1 and more; `Some(None)`: no bound.
#[expect(
    clippy::option_option,
    reason = "two kinds of nothing: the default, and none wanted"
)]
fn number(at: &str, given: Option<OrNone<u64>>, report: &mut Report) -> Option<Option<Token>> {
    let Some(number) = given?.0 else {
        return Some(None);
    };
    let token = i64::try_from(number).ok().and_then(Token::new);
    match token {
        Some(token) if number > 0 => Some(Some(token)),
        Some(_) => {
            report.error(
                at,
                "no token would ever raise a mark",
                "a number that your lock service does not get to, or none",
            );
            None
        }
        None => {
            report.error(
                at,
                format!("{number} is above 2^63-1, which no token is"),
                "9223372036854775807 at most, or none",
            );
            None
        }
    }
}
