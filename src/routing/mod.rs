//! The rules of fencing: tokens, resource keys, and the rules of URL syntax that keep two spellings
//! of one thing from having two keys. Pure: imports only the signs of HTTP/1. An error is a text for
//! the sender of the request, or for the author of the configuration.
//!
//! - [`token`]: a number, the spellings it may have in a header, its comparison with the mark, and
//!   how far past the mark it is accepted.
//! - [`path`]: a request's path, decoded once, or refused as ambiguous.
//! - [`route`]: which route a path belongs to.
//! - [`template`]: how a route names a resource; [`key`] is the name, with the sources of its parts,
//!   [`normal`] has their forms, [`sample`] is the way back from a name to a request, and [`sample_paths`] are those that two
//!   sets of routes tell apart.
//!
//! Here are the methods by what a request with them changes, and the fields that no key may use: those
//! that the upstream does not get as they were sent, and those that identify a client.

mod key;
mod normal;
mod path;
mod route;
mod sample;
mod sample_paths;
mod template;
mod token;

use crate::http1::head::same_name;

pub use key::{ResourceKey, Source, query_value};
pub use normal::percent_encoded;
pub(crate) use normal::{decoded, fold_case, is_address_or_localhost, plain};
pub(crate) use path::unescaped;
pub use path::{ANY_DESTINATION, Allow, Ambiguity, CheckedPath};
pub use route::{Pattern, RouteConflict, Router};
pub use sample_paths::{SamplePath, SamplePaths};
pub use template::{KeyShape, KeyTemplate};
pub use token::{Decision, Jump, Needs, Token, TokenBounds, TokenFormat, judge, stale_by};

/// The safe methods of IANA's registry (RFC 9110, 9.2.1). The two others there are `TRACE`, which
/// is never forwarded, and `PRI`, which begins a connection.
pub const SAFE_METHODS: [&str; 7] = [
    "GET", "HEAD", "OPTIONS", "PROPFIND", "QUERY", "REPORT", "SEARCH",
];

/// The unsafe methods of a route that lists none. They change what their target names.
pub const DEFAULT_METHODS: [&str; 4] = ["DELETE", "PATCH", "POST", "PUT"];

/// Methods that also change what `Destination` names (RFC 4918, 9.8 and 9.9).
pub const WITH_DESTINATION: [&str; 2] = ["COPY", "MOVE"];

/// Methods that change what their body or `Link` names (RFC 5842, 4 to 6; RFC 2068, 19.6.1; those
/// with `B` are Exchange's for many resources at once). The key of their target does not cover it.
pub const NAMING_OTHERS: [&str; 9] = [
    "BCOPY",
    "BDELETE",
    "BIND",
    "BMOVE",
    "BPROPPATCH",
    "LINK",
    "REBIND",
    "UNBIND",
    "UNLINK",
];

/// Fields of one connection only (RFC 9110, 7.6.1; 11.7; `HTTP2-Settings`: RFC 7540, 3.2.1).
pub const HOP_BY_HOP: [&str; 10] = [
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

/// Fields that the proxy writes, joins or answers itself.
const SET_BY_PROXY: [&str; 8] = [
    "content-length",
    "expect",
    "forwarded",
    "trailer",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// True if the upstream does not get this field as the client has sent it, in any spelling.
pub fn is_replaced(field: &str) -> bool {
    let mut names = HOP_BY_HOP.iter().chain(&SET_BY_PROXY);
    names.any(|name| same_name(field.as_bytes(), name))
}

/// The beginnings of the names of fields that identify a client by its certificate. If fencepost
/// requires certificates, it removes such fields from requests, so that no key can be made of one.
/// In dashes; those of Envoy, `HAProxy` and Apache, ingress-nginx,
/// Traefik, AWS, Azure, Cloudflare, `WebLogic`, RFC 9440 (`Client-Cert`, `Client-Cert-Chain`), and
/// common nginx configurations. docs/SECURITY.md lists them.
const BEGINNINGS: [&str; 20] = [
    "x-forwarded-client-cert",
    "x-forwarded-tls-client",
    "x-forwarded-ssl-client",
    "x-ssl",
    "ssl-client",
    "x-tls-client",
    "tls-client-cert",
    "client-cert",
    "x-client-cert",
    "x-client-verify",
    "x-client-dn",
    "x-client-subject",
    "x-user-cert",
    "x-certificate",
    "x-spiffe",
    "x-amzn-mtls-",
    "x-arr-clientcert",
    "x-mtls-",
    "cf-client-cert",
    "wl-proxy-client",
];

/// True if an upstream may trust this field as set by the server that terminated TLS. Upstreams
/// ignore the case of letters, and some treat any other sign like a dash.
pub fn names_a_peer(field: &str) -> bool {
    let mut beginnings = BEGINNINGS.iter();
    beginnings.any(|start| begins(field.as_bytes(), start))
}

/// True if the name of a field begins so, in any spelling ([`same_name`]).
pub(crate) fn begins(name: &[u8], start: &str) -> bool {
    let begin = name.get(..start.len());
    begin.is_some_and(|begin| same_name(begin, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_the_documentation_lists() {
        let page = include_str!("../../docs/SECURITY.md");
        for start in BEGINNINGS {
            assert!(page.contains(&format!("`{start}`")), "{start}");
        }
    }
}
