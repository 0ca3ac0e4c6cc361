//! Header fields toward the upstream and toward the client: what is removed, what is added, and in
//! which order.
//!
//! Three attacks determine this file. First, a `Connection` header may have several lines, and
//! names fields to drop. So all lines are read before any is removed, fields that an upstream
//! decides by are never dropped, and ours are added last. Second, CGI and similar servers treat
//! `X-Fencing-Token`, `X_Fencing_Token` and the like as one name. So names are compared with every
//! sign read as `-` ([`same_name`]). Third, of a field that is given twice, servers use the first
//! value, the last, or both joined. So a second line of a field whose value matters is malformed,
//! even an equal one ([`single`]).
//!
//! A response's `Trailer` is kept: it tells every recipient what follows the content (RFC 9110,
//! 6.6.2), and is not among the connection's own fields (7.6.1). [`trailers`] decides what it may
//! say.

mod connection;
mod edit;
mod fields;
pub mod hosts;
pub(super) mod http2;
pub mod identity;
pub mod media;
pub(super) mod names;
mod pairs;
pub mod trailers;
pub mod via;

use std::net::IpAddr;

use http::header::{EXPECT, TE, TRAILER, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

pub use self::connection::connection_has;
use self::connection::connection_named;
use self::edit::{append, remove_where, set};
pub use self::fields::{FieldError, at_most_one, members, single, text};
pub(super) use self::names::FORWARDED_FOR;
use self::names::{FORWARDED_HOST, FORWARDED_PROTO, HOP_BY_HOP, is_fencing};
pub use self::names::{method_overrides, path_override, same_name};
use self::trailers::TrailerRules;
use self::via::Via;
use super::idempotency::Choice;
use crate::routing::{KeyError, ResourceKey, Token};

/// The token of a request; of a claim, too.
pub const TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");
/// The resource key: to the upstream, and of a claim.
pub const RESOURCE: HeaderName = HeaderName::from_static("x-fencing-resource");
/// The caller's name for the operation.
pub const OPERATION: HeaderName = HeaderName::from_static("x-fencing-operation");
/// The method and target of a claim.
pub const TARGET: HeaderName = HeaderName::from_static("x-fencing-target");
/// Tells the proxy's own answers from the upstream's.
pub const OUTCOME: HeaderName = HeaderName::from_static("x-fencing-outcome");

/// What the client of a refusal does next: `never`, `same-token`, `check-first`.
pub const RETRY: HeaderName = HeaderName::from_static("x-fencing-retry");

/// The raw token of a request.
pub fn fencing_token(headers: &HeaderMap) -> Result<Option<&HeaderValue>, FieldError> {
    single(headers, &TOKEN)
}

/// Removes the fields of one connection: those of [`HOP_BY_HOP`] and those that `Connection` names.
/// `Connection` must not name a field that is meant for all recipients (RFC 9110, 7.6.1). If it
/// does (`Connection: host, content-length, if-match`), the field stays: see [`end_to_end`].
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    strip_and(headers, &[]);
}

/// Removes from a request also the fields about the exchange with the client that this proxy ends
/// itself: it answers `Expect` (RFC 9110, 10.1.1), and discards trailers (RFC 9112, 7.1.2).
fn strip_request(headers: &mut HeaderMap) {
    strip_and(headers, &[EXPECT, TRAILER]);
}

fn strip_and(headers: &mut HeaderMap, more: &[HeaderName]) {
    let named = connection_named(headers);
    remove_where(headers, |name| {
        named.contains(name) || HOP_BY_HOP.contains(name) || more.contains(name)
    });
}

/// Removes every `X-Fencing-…`, with dashes, underscores or any mixture.
pub fn strip_fencing(headers: &mut HeaderMap) {
    remove_where(headers, is_fencing);
}

/// The fields that go upstream besides those that the client sent.
#[derive(Debug)]
pub struct ForUpstream<'a> {
    /// `None` where the request passes unfenced.
    pub fenced: Option<(Token, &'a ResourceKey)>,
    /// `None` if the route sends no keys: the client's own stays.
    pub idempotency: Option<(&'a HeaderName, Choice)>,
    /// The client's address ([`forwarded_for`]); `None` on a Unix socket.
    pub client: Option<&'a HeaderValue>,
    /// Its identity by its certificate ([`identity`]).
    pub identity: Option<&'a HeaderValue>,
    /// `http` or `https`: how the client reached the proxy.
    pub scheme: &'static str,
    /// The authority that the client asked for: the Host header's, or HTTP/2's `:authority`.
    pub host: Option<HeaderValue>,
    /// The request comes from a proxy that may say how its client came.
    pub by_proxy: bool,
    /// The version of the client's request.
    pub version: Version,
    /// The upstream's connection is HTTP/2, which allows only `te: trailers` (RFC 9113, 8.2.2).
    /// gRPC requires it.
    pub http2: bool,
    /// The name of this process.
    pub via: Via,
}

/// Whether the client accepts trailers (RFC 9110, 10.1.4).
#[must_use]
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    members(headers, &TE).any(|member| member.eq_ignore_ascii_case(b"trailers"))
}

/// Turns a client's header into the upstream's. Host stays as it is, because the route's policy
/// decides about it.
///
/// - `X-Forwarded-For`: the client is appended.
/// - `X-Forwarded-Proto`, `X-Forwarded-Host`: those of a trusted proxy stay, since only it knows
///   how the client came. Otherwise they are overwritten.
/// - `X-Forwarded-Client-Cert`: the certificate that the client has shown ([`identity`]).
/// - `Via`: `1.1 fencepost-4f0c2a91b6d3e857` is appended ([`via`]).
/// - `Expect` and `Trailer` are removed.
pub fn request_for_upstream(headers: &mut HeaderMap, add: ForUpstream<'_>) {
    let wants_trailers = takes_trailers(headers);
    strip_request(headers);
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
    if let Some(client) = add.client {
        append(headers, FORWARDED_FOR, client.clone());
    }
    let proto = HeaderValue::from_static(add.scheme);
    for (name, value) in [(FORWARDED_PROTO, Some(proto)), (FORWARDED_HOST, add.host)] {
        if add.by_proxy && headers.contains_key(&name) {
            continue;
        }
        match value {
            Some(value) => headers.insert(name, value),
            None => headers.remove(name),
        };
    }
    if let Some(identity) = add.identity {
        set(headers, identity::XFCC, identity.clone());
    }
    add.via.append(headers, add.version);
}

/// Turns an upstream's header into the client's. `version` is that of the upstream's response.
/// Returns the rules for its trailers.
pub fn response_for_client(headers: &mut HeaderMap, version: Version, via: Via) -> TrailerRules {
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

/// A resource key as a header value: what is not visible ASCII is percent-encoded, byte by byte.
/// Keys that templates make have no `%` but in escapes of ASCII signs, and no space in their
/// literal text, so no two of them come out equal, and [`resource_of`] reads them back.
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
    // Text that does not decode to UTF-8 was not written by us: take it literally.
    match String::from_utf8(bytes) {
        Ok(key) => ResourceKey::new(key),
        Err(_) => ResourceKey::new(value),
    }
}

#[cfg(test)]
mod tests;
