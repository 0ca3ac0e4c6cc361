//! The settings of a route that say how a request is judged: its mode, what its token must be, the
//! idempotency key that it gets, and what is remembered of its outcome.
//!
//! An upstream drops a second request with a key that it has seen. If two different writes could
//! share a key, one of them would be lost. So every key depends on the resource and the token.

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::units::{Count, OrNone, Positive, Size, Status, word};
use super::yaml::{blocks, not_one_of, wrong};
use crate::routing::{Jump, Token, TokenBounds, TokenFormat, is_replaced, percent_encoded};

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

/// A token that bounds others. Zero would let no token raise a mark.
type TokenCount = Count<{ i64::MAX as u64 }>;

fn token(count: TokenCount) -> Token {
    let number = i64::try_from(count.0).ok();
    number.and_then(Token::new).unwrap_or(Token::MAX)
}

word!({} TokenFormat, format, "TokenFormat", {
    "type": "string",
    "enum": TokenFormat::ALL.map(TokenFormat::as_str),
});

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

blocks! {
    /// The format of tokens, and their bounds.
    #[derive(Copy)]
    pub struct TokenSettings {
        /// Its format in `X-Fencing-Token`. `decimal`: digits. `hex`: hexadecimal digits of either
        /// case, with `0x` or without. `after-hash`: the decimal number after the last `#`:
        /// `lock#42`. `prefix-hex16`: the first 16 hexadecimal digits of a longer text.
        pub format: TokenFormat,
        /// The distance of a token above its resource's mark; tokens beyond that get a 422 until an
        /// operator admits them (`fencepost marks advance`). A number, or `none`. The default for
        /// decimal tokens (`decimal`, `after-hash`) is 2^48 = 281474976710656, or as much again as
        /// the mark if that is more; no known lock service leaps that far. For the other formats it
        /// is none. If each lock has a counter of its own, 1000 is plenty, and stops a forged
        /// number much earlier.
        max_jump: Option<OrNone<TokenCount>>,
        /// The greatest token that is accepted, also as a resource's first one; a number, or
        /// `none`. The default for decimal tokens is 9000000000000000000, which leaves numbers
        /// above every mark. For the other formats it is none.
        max: Option<OrNone<TokenCount>>,
    }
}

impl TokenSettings {
    /// The tokens that are accepted.
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

blocks! {
    /// The `Idempotency-Key` that is sent upstream.
    pub struct IdempotencySettings {
        /// The header's name.
        #[schemars(extend("default" = "Idempotency-Key"))]
        pub header: FieldName = FieldName("idempotency-key".to_owned()),
        /// The requests that share a key. `operation`: those of one resource and one token with the
        /// same `X-Fencing-Operation`, or else the same method, target and body. `epoch`: all of
        /// one resource and one token. The key is a UUID of version 8, of a SHA-256.
        pub key: KeyScope = KeyScope::Operation,
        /// `true`: refuse a request that yields no key (its body is longer than `body.buffer`, and
        /// it names no operation).
        pub required: bool = false,
        /// `true`: send it as a string of RFC 9651, in double quotes.
        pub quoted: bool = false,
        /// The treatment of a key that the client sends itself.
        pub client_key: ClientKey = ClientKey::Keep,
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

/// The name of a field that carries the key, is kept, or is passed on; in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldName(pub String);

word!(FieldName, FieldName::parse);

impl FieldName {
    fn parse(text: &str) -> Result<Self, String> {
        let hint = "a field without underscores that is about the content: Idempotency-Key, ETag";
        let Ok(name) = text.parse::<HeaderName>() else {
            return wrong(text, "is not a header name", hint);
        };
        let name = name.as_str();
        let mut prefixes = ["content-", "if-", "x-fencing-"].into_iter();
        let is_taken = matches!(name, "host" | "range" | "traceparent" | "tracestate")
            || prefixes.any(|prefix| name.starts_with(prefix))
            || name.contains("override")
            || name.contains('_');
        if is_taken || is_replaced(name) {
            let fault = "cannot carry a key or be kept: it belongs to one message or to the proxy";
            return wrong(text, fault, hint);
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

blocks! {
    /// Remembers what came of each operation, and answers its repetition by any holder, with any
    /// token that is not stale, without forwarding it again. Unsafe requests must name their
    /// operation in `X-Fencing-Operation`, the same for every holder.
    pub struct OutcomeSettings {
        /// An answer is remembered for at least so long. An outcome that is not known is kept until
        /// it is.
        #[schemars(extend("default" = "24h"))]
        pub remember: Positive = Positive::seconds(24 * 60 * 60),
        /// The longest body of an answer that is kept. Of a longer one, only the SHA-256 is. Bodies
        /// may be personal data, so by default none is kept.
        pub body: Size<0, { 1 << 20 }> = Size(0),
        /// The fields of an answer that are kept, besides `Content-Type` and `Content-Encoding` of
        /// a body that is.
        #[schemars(extend("default" = ["ETag", "Location"]))]
        pub headers: Vec<FieldName> = kept(["etag", "location"]),
        /// The statuses by which the upstream says that it has not done the operation, so that it
        /// may be sent again.
        pub not_done: Vec<Status<400, 599>> = [401, 403, 429, 508].map(Count).into(),
        /// The treatment of an operation whose outcome is unknown, has settled, and cannot be
        /// looked up.
        pub unknown: UnknownOutcome = UnknownOutcome::Refuse,
        /// Asks the upstream whether an operation has been done whose outcome is unknown.
        pub look_up: Option<LookUp>,
    }
}

/// The treatment of an operation whose outcome stays unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownOutcome {
    /// Refused until an operator says what came of it.
    Refuse,
    /// Sent again with the same `Idempotency-Key`: only for an upstream that does nothing twice
    /// under one key.
    Forward,
}

blocks! {
    /// A question to the upstream, under the permit of the request that repeats an operation.
    #[schemars(extend("required" = ["get"]))]
    pub struct LookUp {
        /// The path and query of a GET; `{operation}` is the operation, percent-encoded, and
        /// `{resource}` the resource key. Holders of two resources may name their operations alike.
        pub get: LookUpTarget,
        /// A JSON pointer (RFC 6901) to something that is in the answer, and not null, only if the
        /// operation has been done: `/data/0`. Then an answer other than a 2xx with JSON says
        /// nothing. Without it, any 2xx says that it has been done, a 404 or 410 that it has not,
        /// and other statuses say nothing.
        pub found: Option<JsonPointer>,
        /// The fields of the request that the question carries too, such as its credentials.
        pub headers: Vec<FieldName> = kept(["authorization"]),
    }
}

/// See [`LookUp::get`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookUpTarget(pub(super) String);

const OPERATION: &str = "{operation}";

word!(LookUpTarget, |text: &str| {
    let rest = text.replace(OPERATION, "").replace("{resource}", "");
    let is_target = text.starts_with('/')
        && text.contains(OPERATION)
        && !rest.contains(['{', '}', '#'])
        && rest.parse::<http::uri::PathAndQuery>().is_ok();
    let hint = "a path that names the operation: /charges?op={operation}";
    if is_target {
        Ok(LookUpTarget(text.to_owned()))
    } else {
        wrong(text, "is not the target of a look-up", hint)
    }
});

impl LookUpTarget {
    /// The target for an operation of a resource.
    pub fn of(&self, resource: &str, operation: &str) -> String {
        let target = self.0.replace(OPERATION, &percent_encoded(operation));
        target.replace("{resource}", &percent_encoded(resource))
    }
}

/// See [`LookUp::found`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer(pub String);

word!(JsonPointer, |text: &str| {
    if text.starts_with('/') {
        Ok(JsonPointer(text.to_owned()))
    } else {
        wrong(text, "is not a JSON pointer", "such as /data/0")
    }
});

fn kept<const N: usize>(names: [&str; N]) -> Vec<FieldName> {
    names.map(|name| FieldName(name.to_owned())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_must_be_free() {
        let name = FieldName("idempotency-key".to_owned());
        assert_eq!(FieldName::parse("Idempotency-Key"), Ok(name));
        for bad in ["", "a b", "Host", "X-Fencing-Token", "Idempotency_Key"] {
            assert!(FieldName::parse(bad).is_err(), "{bad}");
        }
    }
}
