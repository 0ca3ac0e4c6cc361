//! Names of header fields: how two spellings compare, and the groups that decide what a proxy does
//! with a field.

use http::header::{
    CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

pub(in crate::proxy) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

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
pub(super) static HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-authentication-info"),
    HeaderName::from_static("http2-settings"),
];

/// Whether a server that turns headers into variables, as in CGI (RFC 3875, 4.1.18), treats both
/// names as one: letters without case, and every sign read as `-`.
#[must_use]
pub fn same_name(name: &HeaderName, dashed: &str) -> bool {
    let name = name.as_str().as_bytes();
    name.len() == dashed.len()
        && name
            .iter()
            .zip(dashed.as_bytes())
            .all(|(one, other)| plain(*one) == plain(*other))
}

/// One letter of a name, as [`same_name`] compares it.
pub(super) fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() {
        byte.to_ascii_lowercase()
    } else {
        b'-'
    }
}

/// The values of the fields by which an upstream may take a method for another one.
pub fn method_overrides(headers: &HeaderMap) -> impl Iterator<Item = &HeaderValue> {
    let is_override = |name| METHOD_OVERRIDES.iter().any(|known| same_name(name, known));
    let fields = headers.iter().filter(move |(name, _)| is_override(name));
    fields.map(|(_, value)| value)
}

/// A field that names another path beside the request's own.
#[must_use]
pub fn path_override(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| is_path_override(name))
}

pub(super) fn is_path_override(name: &HeaderName) -> bool {
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

pub(super) fn is_fencing(name: &HeaderName) -> bool {
    let prefix = b"x-fencing-";
    let name = name.as_str().as_bytes();
    name.len() >= prefix.len()
        && prefix
            .iter()
            .zip(name)
            .all(|(one, other)| *one == plain(*other))
}
