//! Header fields toward the upstream and toward the client: what is removed, what is added, and in
//! which order.
//!
//! Three attacks determine this file. First, a `Connection` header may have several lines, and
//! names fields to drop. So all lines are read before any is removed, only `X-…` fields are dropped
//! for it, and ours are added last. Second, CGI and similar servers treat
//! `X-Fencing-Token`, `X_Fencing_Token` and the like as one name. So names are compared with every
//! sign read as `-` ([`same_name`]). Third, of a field that is given twice, servers use the first
//! value, the last, or both joined. So a second line of a field whose value matters is malformed,
//! even an equal one ([`single`]).

mod fields;
pub(crate) mod http2;

use std::borrow::Cow;

use http::{HeaderMap, Version};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

pub use self::fields::{FieldError, is_grpc, json, method_overrides, path_override, single, text};
use self::fields::{is_fencing, is_hop_by_hop, is_of_connection, is_one_of, never_a_trailer};
use crate::http1::Fields;
use crate::http1::head::same_name;
use crate::http1::names::{CONNECTION, EXPECT, FORWARDED, TE, TRAILER, VIA};
pub use crate::http1::{connection_has, members};
use crate::routing::{ResourceKey, Token, names_a_peer, unescaped};
use crate::store::InstanceId;

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

pub(super) const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";
const FORWARDED_HOST: &str = "x-forwarded-host";
/// The client's certificate, in Envoy's format.
const XFCC: &str = "x-forwarded-client-cert";

/// The raw token of a request.
pub fn fencing_token(fields: &Fields) -> Result<Option<&[u8]>, FieldError> {
    single(fields, TOKEN)
}

/// Removes the fields of one connection: those of a fixed list, and `X-…` fields that `Connection`
/// names. `Connection` must not name a field that is meant for all recipients (RFC 9110, 7.6.1). If
/// it does (`Connection: host, content-length, if-match`), the field stays.
pub fn strip_hop_by_hop(fields: &mut Fields) {
    let named = connection_named(fields);
    fields.remove_where(|name| is_hop_by_hop(name) || is_one_of(name, &named));
}

/// The fields that `Connection` names and may name ([`is_of_connection`]), in lower case.
fn connection_named(fields: &Fields) -> Vec<String> {
    members(fields, CONNECTION)
        .filter(|option| is_of_connection(option))
        .filter_map(|option| std::str::from_utf8(option).ok())
        .map(str::to_ascii_lowercase)
        .collect()
}

/// Removes the fields that name a client by its certificate. The server that terminates TLS sets
/// them, and the upstream believes them. If clients show their certificates to this proxy, no
/// server before it has verified any. Without client certificates, the fields stay as they are: an
/// edge before the proxy may have set them.
pub fn strip_identity(fields: &mut Fields) {
    fields.remove_where(|name| std::str::from_utf8(name).is_ok_and(names_a_peer));
}

/// The fields that go upstream besides those that the client sent.
#[derive(Clone, Copy, Debug)]
pub struct ForUpstream<'a> {
    /// `None` where the request passes unfenced.
    pub fenced: Option<(Token, &'a ResourceKey)>,
    /// The header of idempotency keys, and the one that is sent in place of the client's, if any.
    /// `None`: the client's own stays, in any spelling of the name.
    pub idempotency: Option<(&'a str, Option<&'a str>)>,
    /// The client's address; `None` on a Unix socket.
    pub client: Option<&'a str>,
    /// Its identity by its certificate.
    pub identity: Option<&'a str>,
    /// `http` or `https`: how the client reached the proxy.
    pub scheme: &'static str,
    /// The authority that the client asked for: the Host header's, or HTTP/2's `:authority`.
    pub host: Option<&'a [u8]>,
    /// The resource key is made of the host, so no field may name another one.
    pub host_in_key: bool,
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
pub fn takes_trailers(fields: &Fields) -> bool {
    members(fields, TE).any(|member| member.eq_ignore_ascii_case(b"trailers"))
}

/// Turns a client's header into the upstream's. Host stays as it is, because the route's policy
/// decides about it.
///
/// - `X-Forwarded-For`: the client is appended.
/// - `X-Forwarded-Proto`, `X-Forwarded-Host`: those of a trusted proxy stay, since only it knows
///   how the client came. Otherwise they are overwritten.
/// - Where the key is made of the host, `X-Forwarded-Host` is always overwritten and `Forwarded`
///   removed: an upstream that goes by them finds the host of the key.
/// - `X-Forwarded-Client-Cert`: the certificate that the client has shown.
/// - `Via`: `1.1 fencepost-4f0c2a91b6d3e857` is appended ([`Via`]).
/// - `Expect` and `Trailer` are removed: this proxy answers `Expect` itself (RFC 9110, 10.1.1), and
///   discards trailers (RFC 9112, 7.1.2).
pub fn request_for_upstream(fields: &mut Fields, add: ForUpstream<'_>) {
    let wants_trailers = add.http2 && takes_trailers(fields);
    let named = connection_named(fields);
    let replaced = add.idempotency.map(|(name, _)| name);
    // Ours in any spelling, but for the lines that are kept or joined.
    let ours = [
        (FORWARDED_FOR, true),
        (VIA, true),
        (FORWARDED_PROTO, add.by_proxy),
        (FORWARDED_HOST, add.by_proxy && !add.host_in_key),
        (FORWARDED, !add.host_in_key),
    ];
    fields.remove_where(|name| {
        let is_replaced = |(ours, keeps): &(&str, bool)| {
            same_name(name, ours) && !(*keeps && name.eq_ignore_ascii_case(ours.as_bytes()))
        };
        is_hop_by_hop(name)
            || is_one_of(name, &named)
            || is_fencing(name)
            || is_one_of(name, &[EXPECT, TRAILER])
            || replaced.is_some_and(|replaced| same_name(name, replaced))
            || add.identity.is_some() && same_name(name, XFCC)
            || ours.iter().any(is_replaced)
    });
    if wants_trailers {
        fields.append(TE, "trailers");
    }
    if let Some((token, resource)) = add.fenced {
        fields.append(TOKEN, token.to_string());
        fields.append(RESOURCE, &*resource_value(resource));
    }
    if let Some((name, Some(value))) = add.idempotency {
        fields.append(name, value);
    }
    if let Some(client) = add.client {
        fields.join(FORWARDED_FOR, client);
    }
    let proto = Some(add.scheme.as_bytes());
    for (name, value) in [(FORWARDED_PROTO, proto), (FORWARDED_HOST, add.host)] {
        if let Some(value) = value.filter(|_| !fields.contains(name)) {
            fields.append(name, value);
        }
    }
    if let Some(identity) = add.identity {
        fields.append(XFCC, identity);
    }
    add.via.append(fields, add.version);
}

/// Turns an upstream's header into the client's. `version` is that of the upstream's response.
/// Returns the rules for its trailers.
pub fn response_for_client(fields: &mut Fields, version: Version, via: Via) -> TrailerRules {
    let named = connection_named(fields);
    fields.remove_where(|name| is_hop_by_hop(name) || is_one_of(name, &named) || is_fencing(name));
    via.append(fields, version);
    TrailerRules(named)
}

/// Decides which trailers of a response go on. A client may merge trailers into the header, so
/// fields that are allowed only in a header are removed (RFC 9110, 6.5.1), in any spelling, and so
/// are those that the response's `Connection` names (7.6.1). Requests' trailers are not forwarded
/// at all.
#[derive(Clone, Debug, Default)]
pub struct TrailerRules(Vec<String>);

impl TrailerRules {
    /// Removes from trailers what is not allowed there.
    pub fn strip(&self, trailers: &mut HeaderMap) {
        let names: Vec<_> = trailers.keys().cloned().collect();
        for name in names {
            let bytes = name.as_str().as_bytes();
            let barred = self.0.iter().any(|barred| same_name(bytes, barred));
            if barred || never_a_trailer(bytes) {
                trailers.remove(name);
            }
        }
    }
}

/// The members of `Via` that name this process, one for each version of a received message. They
/// live as long as the process.
///
/// The name is a pseudonym of this one process: `fencepost-` and the instance's name. So one
/// fencepost may be behind another, and each recognizes a request that comes back (RFC 9110, 7.6.3).
/// In a loop, every round would wait at the barrier for the previous round, or pass with an equal
/// token for ever. So a request with our name is refused before anything else is checked.
#[derive(Clone, Copy, Debug)]
pub struct Via(&'static [String; 3]);

impl Via {
    const RECEIVED: [&str; 3] = ["1.0 ", "1.1 ", "2 "];

    /// Takes a few bytes for good: a process has one name.
    #[must_use]
    pub fn new(instance: InstanceId) -> Self {
        let name = instance.application_name();
        let members = Self::RECEIVED.map(|received| format!("{received}{name}"));
        Self(Box::leak(Box::new(members)))
    }

    /// Says if this process is among those that a request has passed. The name may be anywhere, in
    /// either case: no other process has it, even if an intermediary changes the members.
    pub fn is_in(self, fields: &Fields) -> bool {
        let name = &self.0[0].as_bytes()[Self::RECEIVED[0].len()..];
        fields.get_all(VIA).any(|line| {
            let mut parts = line.windows(name.len());
            parts.any(|part| part.eq_ignore_ascii_case(name))
        })
    }

    /// Adds this process to those that a message has passed. `version`: of the message as it was
    /// received.
    fn append(self, fields: &mut Fields, version: Version) {
        let [http_10, http_11, http_2] = self.0;
        let member = match version {
            Version::HTTP_10 => http_10,
            Version::HTTP_2 => http_2,
            _ => http_11,
        };
        fields.join(VIA, member);
    }
}

/// A resource key as a header value: what is not visible ASCII is percent-encoded, byte by byte.
/// Keys that templates make have no `%` but in escapes of ASCII signs, and no space in their
/// literal text, so no two of them come out equal, and [`resource_of`] reads them back.
pub fn resource_value(key: &ResourceKey) -> Cow<'_, str> {
    const ESCAPED: AsciiSet = CONTROLS.add(b' ');
    utf8_percent_encode(key.as_str(), &ESCAPED).into()
}

/// The key that a client names in `X-Fencing-Resource`: as the proxy writes it there, or in UTF-8.
pub fn resource_of(value: &str) -> Result<ResourceKey, String> {
    let (raw, mut at) = (value.as_bytes(), 0);
    let mut bytes = Vec::with_capacity(raw.len());
    while let Some(byte) = raw.get(at) {
        let escaped = unescaped(raw, at).filter(|_| *byte == b'%');
        // Escapes of visible ASCII belong to the key itself.
        let escaped = escaped.filter(|byte| !byte.is_ascii() || *byte == b' ');
        bytes.push(escaped.unwrap_or(*byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    // Text that does not decode to UTF-8 was not written by us: take it literally.
    match String::from_utf8(bytes) {
        Ok(key) => ResourceKey::new(key),
        Err(_) => ResourceKey::new(value),
    }
}

#[cfg(test)]
mod tests;
