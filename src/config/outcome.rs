//! The known outcome of a route's operations: the parts of an answer that are remembered, and the
//! treatment of an operation whose outcome nobody knows.

use http::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Positive, Size, word};
use super::yaml::wrong;

/// Remembers what came of each operation, and answers its repetition by any holder, with any token
/// that is not stale, without forwarding it again. Unsafe requests must name their operation in
/// `X-Fencing-Operation`, the same for every holder.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
pub struct OutcomeSettings {
    /// An answer is remembered for at least so long. An outcome that is not known is kept until it is.
    #[schemars(extend("default" = "24h"))]
    pub remember: Positive,
    /// The longest body of an answer that is kept. Of a longer one, only the SHA-256 is. Bodies may be
    /// personal data, so by default none is kept.
    pub body: Size<0, { 1 << 20 }>,
    /// The fields of an answer that are kept, besides `Content-Type` and `Content-Encoding` of a body
    /// that is.
    #[schemars(with = "Vec<String>", extend("default" = ["ETag", "Location"]))]
    pub headers: Vec<KeptHeader>,
    /// The statuses by which the upstream says that it has not done the operation, so that it may be
    /// sent again.
    pub not_done: Vec<u16>,
    /// The treatment of an operation whose outcome is unknown, has settled, and cannot be looked up.
    pub unknown: UnknownOutcome,
    /// Asks the upstream whether an operation has been done whose outcome is unknown.
    pub look_up: Option<LookUp>,
}

impl Default for OutcomeSettings {
    fn default() -> Self {
        Self {
            remember: Positive::seconds(24 * 60 * 60),
            body: Size(0),
            headers: ["etag", "location"]
                .map(|name| KeptHeader(name.to_owned()))
                .into(),
            not_done: vec![401, 403, 429],
            unknown: UnknownOutcome::Refuse,
            look_up: None,
        }
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

/// A question to the upstream, under the permit of the request that repeats an operation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a map of fields")]
#[schemars(extend("required" = ["get"]))]
pub struct LookUp {
    /// The path and query of a GET; `{operation}` is the operation, percent-encoded, and `{resource}`
    /// the resource key. Holders of two resources may name their operations alike.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = ()))]
    pub get: LookUpTarget,
    /// A JSON pointer (RFC 6901) to something that is in the answer, and not null, only if the
    /// operation has been done: `/data/0`. Then an answer other than a 2xx with JSON says nothing.
    /// Without it, any 2xx says that it has been done, a 404 or 410 that it has not, and other
    /// statuses say nothing.
    #[serde(default)]
    pub found: Option<JsonPointer>,
    /// The fields of the request that the question carries too, such as its credentials.
    #[serde(default = "credentials")]
    #[schemars(with = "Vec<String>")]
    pub headers: Vec<KeptHeader>,
}

fn credentials() -> Vec<KeptHeader> {
    vec![KeptHeader("authorization".to_owned())]
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
    #[must_use]
    pub fn of(&self, resource: &str, operation: &str) -> String {
        let encoded = |name: &str| utf8_percent_encode(name, UNRESERVED).to_string();
        let target = self.0.replace(OPERATION, &encoded(operation));
        target.replace("{resource}", &encoded(resource))
    }
}

/// All but the characters that RFC 3986 leaves unreserved.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// See [`LookUp::found`].
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct JsonPointer(pub String);

word!(JsonPointer, |text: &str| {
    if text.starts_with('/') {
        Ok(JsonPointer(text.to_owned()))
    } else {
        wrong(text, "is not a JSON pointer", "such as /data/0")
    }
});

/// The name of a field, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptHeader(pub String);

word!(KeptHeader, |text: &str| {
    let hint = "the name of a field that says something of the content, such as Location";
    let Ok(name) = text.parse::<HeaderName>() else {
        return wrong(text, "is not a header name", hint);
    };
    let name = name.as_str();
    let of_connection = [
        "connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "expect",
        "host",
        "range",
    ];
    if of_connection.contains(&name)
        || name.starts_with("content-")
        || name.starts_with("if-")
        || name.contains("override")
        || name.starts_with("x-fencing-")
    {
        return wrong(text, "belongs to one message or to the proxy", hint);
    }
    Ok(KeptHeader(name.to_owned()))
});
