//! Header fields on both legs: what is taken off, what is added, and in which order.
//!
//! Three attacks decide the shape of this file. A `Connection` header may have several lines, and can
//! name fields to drop: so all lines are read before any is removed, fields that an upstream decides
//! by are never dropped on a client's word, and ours are added last. CGI and its heirs know
//! `X-Fencing-Token`, `X_Fencing_Token` and the like by one name: so names are compared with every
//! sign taken for `-` ([`same_name`]). And a field given twice is read first, last or joined: so
//! where one value matters, a second line is malformed, even an equal one ([`single`]).
//!
//! `Trailer` is kept: it tells every recipient what follows the content (RFC 9110, 6.6.2), and is not
//! among the connection's own fields (7.6.1). What it may say is [`trailers`]' business.

pub mod hops;
pub mod hosts;
pub mod identity;
pub mod media;
mod pairs;
pub mod trace;
pub mod trailers;
pub mod via;

use std::net::IpAddr;

use http::header::{
    CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use self::trailers::TrailerRules;
use self::via::Via;
use super::{idempotency::Choice, spare};
use crate::routing::{KeyError, ResourceKey, Token};

/// The token of a request; of a claim, too.
pub const TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");
/// The resource key: to the upstream, and of a claim.
pub const RESOURCE: HeaderName = HeaderName::from_static("x-fencing-resource");
/// The caller's name for the operation.
pub const OPERATION: HeaderName = HeaderName::from_static("x-fencing-operation");
/// The method and target of a claim.
pub const TARGET: HeaderName = HeaderName::from_static("x-fencing-target");
/// How the proxy's own answers are told from the upstream's.
pub const OUTCOME: HeaderName = HeaderName::from_static("x-fencing-outcome");

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

const METHOD_OVERRIDES: [&str; 4] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-method",
];

/// Fields by which frameworks route in place of the request's own target (Symfony, Zend, IIS). Others
/// that carry a path (`X-Original-URI`, `X-Forwarded-Uri`, `X-Forwarded-Prefix`,
/// `X-Envoy-Original-Path`) are set by common proxies on every request, to be read and not routed by.
const PATH_OVERRIDES: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// Fields of one connection only (RFC 9110, 7.6.1; 11.7; `HTTP2-Settings`: RFC 7540, 3.2.1).
static HOP_BY_HOP: [HeaderName; 10] = [
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

/// Whether a server that turns headers into variables, as CGI has it (RFC 3875, 4.1.18), knows both
/// by one name: letters without case, and every sign taken for `-`.
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
fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() {
        byte.to_ascii_lowercase()
    } else {
        b'-'
    }
}

/// Why a field whose one value matters has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A second line.
    #[error("{0} is given more than once; send one line")]
    Repeated(HeaderName),
    /// A name that some servers take for the right one, alone or beside it.
    #[error("{twin} is the same as {name} for some servers; send {name} only")]
    Twin {
        /// As it should be written.
        name: HeaderName,
        /// As it was.
        twin: HeaderName,
    },
    /// `Connection` names the field, so that the next server would not see it.
    #[error("{0} is named in Connection, which would take it off the request; leave it out there")]
    Dropped(HeaderName),
    /// Neither visible ASCII nor UTF-8.
    #[error("{0} is not UTF-8; send it in ASCII or UTF-8")]
    NotText(HeaderName),
    /// It has no value of the kind that it must have.
    #[error("{name} is not {wanted}")]
    Malformed {
        name: HeaderName,
        /// What it must be.
        wanted: &'static str,
    },
}

/// The only value of a field; `None` if it is absent.
pub fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, FieldError> {
    if let Some(twin) = headers
        .keys()
        .find(|known| *known != name && same_name(known, name.as_str()))
    {
        return Err(FieldError::Twin {
            name: name.clone(),
            twin: twin.clone(),
        });
    }
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if lines.next().is_some() {
        return Err(FieldError::Repeated(name.clone()));
    }
    Ok(first)
}

/// The raw token of a request.
pub fn fencing_token(headers: &HeaderMap) -> Result<Option<&HeaderValue>, FieldError> {
    single(headers, &TOKEN)
}

/// The text of a field that a key is made of (`{header.x-tenant}`), or that names something: one
/// line, UTF-8, no white space around it, and sure to reach the upstream.
pub fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, FieldError> {
    let Some(value) = single(headers, name)? else {
        return Ok(None);
    };
    if connection_options(headers)
        .any(|option| option.eq_ignore_ascii_case(name.as_str().as_bytes()))
    {
        return Err(FieldError::Dropped(name.clone()));
    }
    let text = std::str::from_utf8(value.as_bytes());
    text.map(|text| Some(text.trim_matches([' ', '\t'])))
        .map_err(|_| FieldError::NotText(name.clone()))
}

/// Whether a method that looks safe may be another one to the upstream.
#[must_use]
pub fn method_override(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| METHOD_OVERRIDES.iter().any(|known| same_name(name, known)))
}

/// A field that names another path beside the request's own.
#[must_use]
pub fn path_override(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| is_path_override(name))
}

fn is_path_override(name: &HeaderName) -> bool {
    PATH_OVERRIDES.iter().any(|known| same_name(name, known))
}

/// Whether there is no second line of a field, in any spelling of its name.
pub fn at_most_one(headers: &HeaderMap, name: &str) -> Result<(), FieldError> {
    let mut lines = headers.iter().filter(|(known, _)| same_name(known, name));
    match (lines.next(), lines.next()) {
        (Some(_), Some((name, _))) => Err(FieldError::Repeated(name.clone())),
        _ => Ok(()),
    }
}

/// The members of all `Connection` lines.
fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

/// Whether `Connection` has this option.
#[must_use]
pub fn connection_has(headers: &HeaderMap, option: &str) -> bool {
    connection_options(headers).any(|known| known.eq_ignore_ascii_case(option.as_bytes()))
}

/// Takes off what belongs to one connection: the fields of [`HOP_BY_HOP`] and those that `Connection`
/// names. A field that is meant for all recipients may not be named there (RFC 9110, 7.6.1), and one
/// that is (`Connection: host, content-length, if-match`) stays on: see [`end_to_end`].
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named = connection_named(headers);
    remove_where(headers, |name| {
        named.contains(name) || HOP_BY_HOP.contains(name)
    });
}

/// The fields that `Connection` names and may name.
fn connection_named(headers: &HeaderMap) -> Vec<HeaderName> {
    connection_options(headers)
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .filter(|name| !end_to_end(name.as_str()))
        .collect()
}

/// Fields that a sender has no business to list in `Connection`: an upstream frames, routes,
/// authenticates or decides by them.
fn end_to_end(name: &str) -> bool {
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

/// Takes off every `X-Fencing-…`, in dashes, underscores or any mixture.
pub fn strip_fencing(headers: &mut HeaderMap) {
    remove_where(headers, is_fencing);
}

fn is_fencing(name: &HeaderName) -> bool {
    let prefix = b"x-fencing-";
    let name = name.as_str().as_bytes();
    name.len() >= prefix.len()
        && prefix
            .iter()
            .zip(name)
            .all(|(one, other)| *one == plain(*other))
}

/// Takes fields off and leaves the others in their order: `HeaderMap::remove` puts the last one in the gap.
fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    if !headers.keys().any(&unwanted) {
        return;
    }
    let mut kept = spare::map();
    kept.reserve(headers.capacity());
    let mut current = None;
    for (name, value) in headers.drain() {
        // A field's further lines come without its name.
        current = name.or(current);
        if let Some(name) = current.as_ref().filter(|name| !unwanted(name)) {
            kept.append(name, value);
        }
    }
    spare::keep_map(std::mem::replace(headers, kept));
}

/// Sets a field to one value, and takes off what other servers may know by its name.
fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    remove_where(headers, |known| same_name(known, name.as_str()));
    headers.insert(name, value);
}

/// What goes upstream with a request besides what the client sent.
#[derive(Debug)]
pub struct ForUpstream<'a> {
    /// `None` where the request passes unfenced.
    pub fenced: Option<(Token, &'a ResourceKey)>,
    /// `None` where the route sends no keys: what the client sent stays on.
    pub idempotency: Option<(&'a HeaderName, Choice)>,
    /// The client's address ([`forwarded_for`]); `None` on a Unix socket.
    pub peer: Option<&'a HeaderValue>,
    /// What its certificate says of it ([`identity`]).
    pub identity: Option<&'a HeaderValue>,
    /// `http` or `https`: how the client reached the proxy.
    pub scheme: &'static str,
    /// The authority that the client asked for: the Host header's, or HTTP/2's `:authority`.
    pub host: Option<HeaderValue>,
    /// The version of the client's request.
    pub version: Version,
    /// The upstream's connection is HTTP/2, where `te: trailers` is the one TE that may be (RFC 9113,
    /// 8.2.2) and gRPC insists on it.
    pub http2: bool,
    /// What this process calls itself.
    pub via: &'a Via,
    /// What may not stand in the request's trailers.
    pub trailers: &'a TrailerRules,
}

/// Whether the client takes trailers (RFC 9110, 10.1.4).
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(TE).iter().any(|line| {
        let mut members = line.as_bytes().split(|byte| *byte == b',');
        members.any(|member| member.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

/// Makes a client's header the upstream's. Host is left as it is: the route's policy decides.
///
/// - `X-Forwarded-For`: the peer is appended to what is there.
/// - `X-Forwarded-Proto`, `X-Forwarded-Host`: set only where absent, as a proxy does behind an edge
///   that it trusts; a sidecar's peers are such edges, and only they know how the client came.
/// - `X-Forwarded-Client-Cert`: the certificate that the client has shown ([`identity`]).
/// - `Via`: `1.1 fencepost-1a2b3c4d` is appended ([`via`]).
/// - `Trailer`: what will not be sent is taken out ([`trailers`]).
pub fn request_for_upstream(headers: &mut HeaderMap, add: ForUpstream<'_>) {
    let wants_trailers = takes_trailers(headers);
    strip_hop_by_hop(headers);
    strip_fencing(headers);
    if wants_trailers && add.http2 {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some((token, resource)) = add.fenced {
        headers.insert(TOKEN, HeaderValue::from(token.get()));
        headers.insert(RESOURCE, resource_value(resource));
    }
    match add.idempotency {
        None | Some((_, Choice::KeepClients)) => {}
        Some((name, Choice::Nothing)) => {
            remove_where(headers, |known| same_name(known, name.as_str()));
        }
        Some((_, Choice::Send(name, value))) => set(headers, name, value),
    }
    for name in [FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST, VIA] {
        remove_where(headers, |known| {
            *known != name && same_name(known, name.as_str())
        });
    }
    if let Some(peer) = add.peer {
        append(headers, FORWARDED_FOR, peer.clone());
    }
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(add.scheme));
    }
    if let Some(host) = add.host
        && !headers.contains_key(FORWARDED_HOST)
    {
        headers.insert(FORWARDED_HOST, host);
    }
    if let Some(identity) = add.identity {
        set(headers, identity::XFCC, identity.clone());
    }
    add.trailers.announce(headers);
    add.via.append(headers, add.version);
}

/// Makes an upstream's header the client's. `version` is that of the upstream's response. What is returned
/// says what may stand in its trailers.
pub fn response_for_client(headers: &mut HeaderMap, version: Version, via: &Via) -> TrailerRules {
    let trailers = TrailerRules::of(headers);
    strip_hop_by_hop(headers);
    strip_fencing(headers);
    trailers.announce(headers);
    via.append(headers, version);
    trailers
}

/// A client's address as a member of `X-Forwarded-For`.
#[must_use]
pub fn forwarded_for(ip: IpAddr) -> Option<HeaderValue> {
    HeaderValue::try_from(ip.to_canonical().to_string()).ok()
}

/// Adds a member to a field that is a list, on one line with those before it.
fn append(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    if !headers.contains_key(&name) {
        headers.insert(name, member);
        return;
    }
    let mut line = Vec::new();
    for value in headers.get_all(&name) {
        let value = value.as_bytes().trim_ascii();
        if !value.is_empty() {
            line.extend_from_slice(value);
            line.extend_from_slice(b", ");
        }
    }
    line.extend_from_slice(member.as_bytes());
    // Joined of valid values, so it is valid; if not, ours alone is.
    headers.insert(name, HeaderValue::try_from(line).unwrap_or(member));
}

/// A resource key as a header value: what is not visible ASCII is percent-encoded, byte by byte.
/// Keys that templates make have no `%` but in escapes of ASCII signs, and no space in their literal
/// text, so no two of them come out equal, and [`resource_of`] reads them back.
///
/// # Panics
///
/// Never: visible ASCII is a header value.
#[must_use]
pub fn resource_value(key: &ResourceKey) -> HeaderValue {
    let mut text = String::with_capacity(key.as_str().len());
    for byte in key.as_str().bytes() {
        if byte.is_ascii_graphic() {
            text.push(char::from(byte));
        } else {
            text.extend(["%".to_owned(), format!("{byte:02X}")]);
        }
    }
    HeaderValue::from_str(&text).expect("visible ASCII is a header value")
}

/// The key that a client names in `X-Fencing-Resource`: as the proxy writes it there, or in UTF-8.
pub fn resource_of(value: &str) -> Result<ResourceKey, KeyError> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => std::str::from_utf8(&[*high, *low])
                .ok()
                .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        // Escapes of visible ASCII belong to the key itself.
        if let Some(byte) = escaped.filter(|byte| !byte.is_ascii() || *byte == b' ') {
            bytes.push(byte);
            rest = &rest[3..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    // What does not decode to UTF-8 was not written by us: take it literally.
    match String::from_utf8(bytes) {
        Ok(key) => ResourceKey::new(key),
        Err(_) => ResourceKey::new(value),
    }
}

#[cfg(test)]
mod tests;
