//! The settings of a route that say how a request is judged: its mode, what its token must be, and
//! the idempotency key that it gets.
//!
//! An upstream drops a second request with a key that it has seen. If two different writes could
//! share a key, one of them would be lost. So every key depends on the resource and the token.

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::units::{Count, OrNone, word};
use super::yaml::{not_one_of, wrong};
use crate::routing::{Jump, Token, TokenBounds, TokenFormat, is_replaced};

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

/// The treatment of paths that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// Safe methods pass, others get a 404.
    SafeOnly,
    /// All get a 404.
    Refuse,
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

word!(TokenFormat, format);

fn format(name: &str) -> Result<TokenFormat, String> {
    let mut formats = TokenFormat::ALL.into_iter();
    let format = formats.find(|format| format.as_str() == name);
    format.ok_or_else(|| not_one_of(name, &TokenFormat::ALL.map(TokenFormat::as_str)))
}

impl Serialize for TokenFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The names in the schema, and none for an empty field.
fn format_names() -> Vec<Option<&'static str>> {
    let names = TokenFormat::ALL.iter().map(|format| Some(format.as_str()));
    names.chain([None]).collect()
}

/// A token that bounds others. Zero would let no token raise a mark.
type TokenCount = Count<{ i64::MAX as u64 }>;

fn token(count: TokenCount) -> Token {
    let number = i64::try_from(count.0).ok();
    number.and_then(Token::new).unwrap_or(Token::MAX)
}

/// The format of tokens, and their bounds.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
pub struct TokenSettings {
    /// Its format in `X-Fencing-Token`. `decimal`: digits. `hex`: hexadecimal digits of either
    /// case, with `0x` or without. `after-hash`: the decimal number after the last `#`: `lock#42`.
    /// `prefix-hex16`: the first 16 hexadecimal digits of a longer text.
    #[schemars(with = "String", extend("enum" = format_names(), "default" = "decimal"))]
    pub format: TokenFormat,
    /// The distance of a token above its resource's mark; tokens beyond that get a 422 until an
    /// operator admits them (`fencepost marks advance`). A number, or `none`. The default for
    /// decimal tokens (`decimal`, `after-hash`) is 2^48 = 281474976710656, or as much again as the
    /// mark if that is more; no known lock service leaps that far. For the other formats it is
    /// none. If each lock has a counter of its own, 1000 is plenty, and stops a forged number much
    /// earlier.
    max_jump: Option<OrNone<TokenCount>>,
    /// The greatest token that is accepted, also as a resource's first one; a number, or `none`.
    /// The default for decimal tokens is 9000000000000000000, which leaves numbers above every
    /// mark. For the other formats it is none.
    max: Option<OrNone<TokenCount>>,
}

impl TokenSettings {
    /// The tokens that are accepted.
    #[must_use]
    pub fn bounds(&self) -> TokenBounds {
        let mut bounds = TokenBounds::of(self.format);
        if let Some(OrNone(jump)) = self.max_jump {
            bounds.jump = jump.map_or(Jump::Any, |jump| Jump::Most(token(jump).get()));
        }
        if let Some(OrNone(max)) = self.max {
            bounds.max = max.map_or(Token::MAX, token);
        }
        bounds
    }
}

/// The `Idempotency-Key` that is sent upstream.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
pub struct IdempotencySettings {
    /// The header's name.
    #[schemars(with = "String", extend("default" = "Idempotency-Key"))]
    pub header: KeyHeader,
    /// The requests that share a key. `operation`: those of one resource and one token with the same
    /// `X-Fencing-Operation`, or else the same method, target and body. `epoch`: all of one resource
    /// and one token. The key is a UUID of version 8, of a SHA-256.
    pub key: KeyScope,
    /// `true`: refuse a request that yields no key (its body is longer than `body.buffer`, and
    /// it names no operation).
    pub required: bool,
    /// `true`: send it as a string of RFC 9651, in double quotes.
    pub quoted: bool,
    /// The treatment of a key that the client sends itself.
    pub client_key: ClientKey,
}

impl Default for IdempotencySettings {
    fn default() -> Self {
        Self {
            header: KeyHeader("idempotency-key".to_owned()),
            key: KeyScope::Operation,
            required: false,
            quoted: false,
            client_key: ClientKey::Keep,
        }
    }
}

/// The requests that share an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyScope {
    /// Those with one resource, token and `X-Fencing-Operation`, or else digest.
    Operation,
    /// Those with one resource and token.
    Epoch,
}

/// The name of the header, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHeader(pub String);

word!(KeyHeader, KeyHeader::parse);

impl KeyHeader {
    fn parse(text: &str) -> Result<Self, String> {
        let Ok(name) = text.parse::<HeaderName>() else {
            return wrong(
                text,
                "is not a header name",
                "letters, digits and dashes: Idempotency-Key",
            );
        };
        let name = name.as_str();
        let is_taken = matches!(
            name,
            "authorization" | "host" | "traceparent" | "tracestate"
        );
        let is_taken = is_taken || is_replaced(name) || name.starts_with("content-");
        if is_taken || name.starts_with("x-fencing-") || name.contains('_') {
            let hint =
                "use a header that has no other meaning, without underscores: Idempotency-Key";
            return wrong(text, "cannot carry an idempotency key", hint);
        }
        Ok(Self(name.to_owned()))
    }
}

/// The treatment of a key that the client sends itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKey {
    /// The client's key goes upstream.
    Keep,
    /// Our key replaces it.
    Replace,
    /// The request is refused.
    Reject,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_must_be_free() {
        let name = KeyHeader("idempotency-key".to_owned());
        assert_eq!(KeyHeader::parse("Idempotency-Key"), Ok(name));
        for bad in ["", "a b", "Host", "X-Fencing-Token", "Idempotency_Key"] {
            assert!(KeyHeader::parse(bad).is_err(), "{bad}");
        }
    }
}
