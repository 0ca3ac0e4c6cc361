//! The settings of a route that say how a request is judged: its mode, and what its token must be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{OrNone, word};
use super::yaml::shown;
use crate::routing::{Jump, Token, TokenBounds, TokenFormat};

/// The treatment of stale and invalid requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Refuses them.
    #[default]
    Enforce,
    /// Refuses nothing, and counts the requests that it would refuse.
    Observe,
    /// Forwards without a check.
    Bypass,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Observe, Self::Bypass];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Bypass => "bypass",
        }
    }
}

/// The treatment of equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Equal tokens pass.
    Allow,
    /// Each token passes once.
    Once,
}

/// The treatment of safe methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SafeMethods {
    /// Judged if they carry a token, otherwise passed unfenced.
    Optional,
    /// Judged like any other request; without a token they get a 428.
    Required,
    /// Passed unfenced, with or without a token.
    Ignored,
}

/// The names of the formats of tokens, and none for an empty field.
const FORMATS: [Option<&str>; 5] = {
    let [a, b, c, d] = TokenFormat::ALL;
    let [a, b, c, d] = [a.as_str(), b.as_str(), c.as_str(), d.as_str()];
    [Some(a), Some(b), Some(c), Some(d), None]
};

word!(TokenFormat, format);

fn format(name: &str) -> Result<TokenFormat, String> {
    let named = |format: &TokenFormat| format.as_str() == name;
    TokenFormat::ALL.into_iter().find(named).ok_or_else(|| {
        let known = TokenFormat::ALL.map(TokenFormat::as_str).join(", ");
        format!("{} is not one of: {known}", shown(name))
    })
}

/// The format of tokens, and their bounds.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Token")]
pub struct TokenSettings {
    /// Its format in `X-Fencing-Token`. `decimal`: digits. `hex`: hexadecimal digits of either case,
    /// with `0x` or without. `after-hash`: the decimal number after the last `#`: `lock#42`.
    /// `prefix-hex16`: the first 16 hexadecimal digits of a longer text.
    #[schemars(with = "String", extend("enum" = FORMATS, "default" = "decimal"))]
    pub format: TokenFormat,
    /// The distance of a token above its resource's mark; tokens beyond that get a 422 until an
    /// operator admits them (`fencepost marks advance`). A number, or `none`. The default for
    /// decimal tokens (`decimal`, `after-hash`) is 2^48 = 281474976710656, or as much again as the
    /// mark if that is more; no known lock service leaps that far. For the other formats it is
    /// none. If each lock has a counter of its own, 1000 is plenty, and stops a forged number much
    /// earlier.
    #[schemars(with = "Option<OrNone<u64>>")]
    max_jump: Option<OrNone<Token>>,
    /// The greatest token that is accepted, also as a resource's first one; a number, or `none`.
    /// The default for decimal tokens is 9000000000000000000, which leaves numbers above every
    /// mark. For the other formats it is none.
    #[schemars(with = "Option<OrNone<u64>>")]
    max: Option<OrNone<Token>>,
}

impl TokenSettings {
    /// The tokens that are accepted.
    #[must_use]
    pub fn bounds(&self) -> TokenBounds {
        let mut bounds = TokenBounds::of(self.format);
        if let Some(OrNone(jump)) = self.max_jump {
            bounds.jump = jump.map_or(Jump::Any, |jump| Jump::Most(jump.get()));
        }
        if let Some(OrNone(max)) = self.max {
            bounds.max = max.unwrap_or(Token::MAX);
        }
        bounds
    }
}
