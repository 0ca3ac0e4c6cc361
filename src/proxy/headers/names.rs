//! Names of header fields: how two spellings compare, and the groups that decide what a proxy does
//! with a field.

use crate::http1::Fields;
pub use crate::http1::head::same_name;
use crate::http1::head::{is_name, plain};

pub(in crate::proxy) const FORWARDED_FOR: &str = "x-forwarded-for";
pub(super) const FORWARDED_PROTO: &str = "x-forwarded-proto";
pub(super) const FORWARDED_HOST: &str = "x-forwarded-host";

pub(super) const METHOD_OVERRIDES: [&str; 4] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-method",
];

/// Fields by which frameworks route in place of the request's own target (Symfony, Zend, IIS).
/// Others that carry a path (`X-Original-URI`, `X-Forwarded-Uri`, `X-Forwarded-Prefix`,
/// `X-Envoy-Original-Path`) are set by common proxies on every request, to be read and not routed
/// by.
pub(super) const PATH_OVERRIDES: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// Fields of one connection only (RFC 9110, 7.6.1; 11.7; `HTTP2-Settings`: RFC 7540, 3.2.1).
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-authentication-info",
    "http2-settings",
];

/// True of a field of one connection.
pub(super) fn is_hop_by_hop(name: &[u8]) -> bool {
    is_one_of(name, &HOP_BY_HOP)
}

/// True if this is one of these names, which are in lower case.
pub(super) fn is_one_of(name: &[u8], known: &[impl AsRef<[u8]>]) -> bool {
    let mut known = known.iter();
    known.any(|known| is_name(name, known.as_ref()))
}

/// The values of the fields by which an upstream may take a method for another one.
pub fn method_overrides(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let is_override = |name| METHOD_OVERRIDES.iter().any(|known| same_name(name, known));
    let fields = fields.iter().filter(move |(name, _)| is_override(name));
    fields.map(|(_, value)| value)
}

/// A field that names another path beside the request's own.
#[must_use]
pub fn path_override(fields: &Fields) -> Option<String> {
    let mut names = fields.iter().map(|(name, _)| name);
    let name = names.find(|name| is_path_override(name))?;
    Some(String::from_utf8_lossy(name).to_ascii_lowercase())
}

pub(super) fn is_path_override(name: &[u8]) -> bool {
    PATH_OVERRIDES.iter().any(|known| same_name(name, known))
}

/// Fields that a sender must not list in `Connection`, because an upstream frames, routes,
/// authenticates or decides by them.
pub(super) fn end_to_end(name: &str) -> bool {
    const PREFIXES: [&str; 7] = [
        "content-",
        "if-",
        "accept",
        "x-forwarded-",
        "x-fencing-",
        "access-control-",
        "sec-",
    ];
    const NAMES: [&str; 27] = [
        "host",
        "authorization",
        "cookie",
        "set-cookie",
        "cache-control",
        "pragma",
        "expires",
        "date",
        "age",
        "vary",
        "etag",
        "last-modified",
        "location",
        "range",
        "expect",
        "origin",
        "referer",
        "user-agent",
        "forwarded",
        "via",
        "max-forwards",
        "traceparent",
        "tracestate",
        "idempotency-key",
        "www-authenticate",
        "trailer",
        "retry-after",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

pub(super) fn is_fencing(name: &[u8]) -> bool {
    let prefix = b"x-fencing-";
    name.len() >= prefix.len()
        && prefix
            .iter()
            .zip(name)
            .all(|(one, other)| *one == plain(*other))
}
