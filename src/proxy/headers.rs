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

mod connection;
mod edit;
mod fields;
pub mod hops;
pub mod hosts;
pub mod identity;
pub mod media;
pub(super) mod names;
mod pairs;
pub mod trace;
pub mod trailers;
pub mod via;

use std::net::IpAddr;

use http::header::{TE, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

pub use self::connection::connection_has;
use self::connection::connection_named;
use self::edit::{append, remove_where, set};
pub use self::fields::{FieldError, at_most_one, single, text};
use self::names::{FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PROTO, HOP_BY_HOP, is_fencing};
pub use self::names::{method_override, path_override, same_name};
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
/// How the proxy's own answers are told from the upstream's.
pub const OUTCOME: HeaderName = HeaderName::from_static("x-fencing-outcome");

/// The raw token of a request.
pub fn fencing_token(headers: &HeaderMap) -> Result<Option<&HeaderValue>, FieldError> {
    single(headers, &TOKEN)
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

/// Takes off every `X-Fencing-…`, in dashes, underscores or any mixture.
pub fn strip_fencing(headers: &mut HeaderMap) {
    remove_where(headers, is_fencing);
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
