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

mod fields;
pub mod hosts;
pub(crate) mod http2;
pub mod identity;
pub mod media;
pub(super) mod names;
pub mod trailers;
pub mod via;

use std::borrow::Cow;
use std::net::IpAddr;

use http::Version;

pub use self::fields::{FieldError, at_most_one, single, text};
use self::fields::{connection_named, set};
pub(super) use self::names::FORWARDED_FOR;
use self::names::{FORWARDED_HOST, FORWARDED_PROTO, is_fencing, is_hop_by_hop, is_one_of};
pub use self::names::{method_overrides, path_override, same_name};
use self::trailers::TrailerRules;
use self::via::Via;
use super::idempotency::Choice;
use crate::http1::Fields;
use crate::http1::names::{EXPECT, TE, TRAILER, VIA};
pub use crate::http1::{connection_has, members};
use crate::routing::{KeyError, ResourceKey, Token};

/// The token of a request; of a claim, too.
pub const TOKEN: &str = "x-fencing-token";
/// The resource key: to the upstream, and of a claim.
pub const RESOURCE: &str = "x-fencing-resource";
/// The caller's name for the operation.
pub const OPERATION: &str = "x-fencing-operation";
/// The method and target of a claim.
pub const TARGET: &str = "x-fencing-target";
/// Tells the proxy's own answers from the upstream's.
pub const OUTCOME: &str = "x-fencing-outcome";

/// What the client of a refusal does next: `never`, `same-token`, `check-first`.
pub const RETRY: &str = "x-fencing-retry";

/// The raw token of a request.
pub fn fencing_token(fields: &Fields) -> Result<Option<&[u8]>, FieldError> {
    single(fields, TOKEN)
}

/// Removes the fields of one connection: those of [`HOP_BY_HOP`] and those that `Connection` names.
/// `Connection` must not name a field that is meant for all recipients (RFC 9110, 7.6.1). If it
/// does (`Connection: host, content-length, if-match`), the field stays: see [`end_to_end`].
pub fn strip_hop_by_hop(fields: &mut Fields) {
    strip(fields, &connection_named(fields), |_| false);
}

/// Removes these too. `named`: by `Connection`.
fn strip(fields: &mut Fields, named: &[String], too: impl Fn(&[u8]) -> bool) {
    fields.remove_where(|name| is_hop_by_hop(name) || is_one_of(name, named) || too(name));
}

/// The fields that go upstream besides those that the client sent.
#[derive(Clone, Copy, Debug)]
pub struct ForUpstream<'a> {
    /// `None` where the request passes unfenced.
    pub fenced: Option<(Token, &'a ResourceKey)>,
    /// `None` if the route sends no keys: the client's own stays.
    pub idempotency: Option<(&'a str, &'a Choice)>,
    /// The client's address ([`forwarded_for`]); `None` on a Unix socket.
    pub client: Option<&'a str>,
    /// Its identity by its certificate ([`identity`]).
    pub identity: Option<&'a str>,
    /// `http` or `https`: how the client reached the proxy.
    pub scheme: &'static str,
    /// The authority that the client asked for: the Host header's, or HTTP/2's `:authority`.
    pub host: Option<&'a [u8]>,
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
pub fn takes_trailers(fields: &Fields) -> bool {
    members(fields, TE).any(|member| member.eq_ignore_ascii_case(b"trailers"))
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
pub fn request_for_upstream(fields: &mut Fields, add: ForUpstream<'_>) {
    let wants_trailers = add.http2 && takes_trailers(fields);
    // This proxy answers `Expect` itself (RFC 9110, 10.1.1), and discards trailers (RFC 9112, 7.1.2).
    strip(fields, &connection_named(fields), |name| {
        is_fencing(name) || is_one_of(name, &[EXPECT, TRAILER])
    });
    if wants_trailers {
        fields.append(TE, "trailers");
    }
    if let Some((token, resource)) = add.fenced {
        fields.append(TOKEN, token.to_string());
        fields.append(RESOURCE, &*resource_value(resource));
    }
    match add.idempotency {
        None | Some((_, Choice::KeepClients)) => {}
        Some((name, Choice::Nothing)) => fields.remove_where(|known| same_name(known, name)),
        Some((name, Choice::Send(value))) => set(fields, name, value),
    }
    fields.remove_where(|known| {
        let twin = |name: &&str| same_name(known, name) && !is_one_of(known, &[name]);
        [FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST, VIA]
            .iter()
            .any(twin)
    });
    if let Some(client) = add.client {
        fields.join(FORWARDED_FOR, client);
    }
    let proto = Some(add.scheme.as_bytes());
    for (name, value) in [(FORWARDED_PROTO, proto), (FORWARDED_HOST, add.host)] {
        if add.by_proxy && fields.contains(name) {
            continue;
        }
        fields.remove(name);
        if let Some(value) = value {
            fields.append(name, value);
        }
    }
    if let Some(identity) = add.identity {
        set(fields, identity::XFCC, identity);
    }
    add.via.append(fields, add.version);
}

/// Turns an upstream's header into the client's. `version` is that of the upstream's response.
/// Returns the rules for its trailers.
pub fn response_for_client(fields: &mut Fields, version: Version, via: Via) -> TrailerRules {
    let trailers = TrailerRules::of(fields);
    strip(fields, &trailers.barred, is_fencing);
    trailers.announce(fields);
    via.append(fields, version);
    trailers
}

/// A client's address as a member of `X-Forwarded-For`.
#[must_use]
pub fn forwarded_for(ip: IpAddr) -> String {
    ip.to_canonical().to_string()
}

/// A resource key as a header value: what is not visible ASCII is percent-encoded, byte by byte.
/// Keys that templates make have no `%` but in escapes of ASCII signs, and no space in their
/// literal text, so no two of them come out equal, and [`resource_of`] reads them back.
///
/// # Panics
///
/// Never: visible ASCII is a header value.
#[must_use]
pub fn resource_value(key: &ResourceKey) -> Cow<'_, str> {
    let key = key.as_str();
    if key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return key.into();
    }
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_graphic() {
            text.push(char::from(byte));
        } else {
            text.extend(["%".to_owned(), format!("{byte:02X}")]);
        }
    }
    text.into()
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
