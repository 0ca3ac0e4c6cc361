//! The clients that the token is for: the command, or the containers of the pod.

use http::HeaderValue;
use http::request::Parts;
use http::uri::Authority;

use crate::http1::Fields;
use crate::proxy::headers::fencing_token;
use crate::proxy::{Refusal, host_of};
use crate::routing::is_address_or_localhost;

/// Refuses a request that the token is not for. A port of the loopback is also reached by web pages
/// in a browser of this machine: of another site, or under a name that its owner has turned toward
/// this machine (DNS rebinding).
///
/// `hosts`: the authorities of requests that lead to the fencepost, as [`with_port`] writes them.
/// Empty where clients come over a Unix socket, which no browser reaches.
pub(super) fn check(hosts: &[String], head: &Parts, token: &HeaderValue) -> Result<(), Refusal> {
    let fields = Fields::from(&head.headers);
    // A client that sends an authority takes this port for a proxy (RFC 9112, 3.2.2).
    let proxied = head.uri.authority().map(Authority::as_str);
    let host = host_of(&fields, proxied.map(str::as_bytes))?;
    let host = std::str::from_utf8(host).unwrap_or_default();
    let by_socket = hosts.is_empty();
    let names_the_port = proxied.is_none() && (by_socket || is_address_or_localhost(host));
    if !names_the_port && !hosts.contains(&with_port(host)) {
        return Err(Refusal::ambiguous(format!(
            "The request is for {host}, and this attach leads elsewhere: use the address in \
             FENCEPOST_URL. Or name {host} with --http-proxy if it is the fenced service, or in \
             NO_PROXY of the command if it is not."
        )));
    }
    let text = |name| Some(head.headers.get(name)?.to_str().unwrap_or_default());
    let of_this_site = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin
            .strip_prefix("http://")
            .is_some_and(|origin| origin.eq_ignore_ascii_case(host)),
        (None, None) => true,
    };
    if !by_socket && !of_this_site {
        return Err(Refusal::ambiguous(
            "A web page of another site has sent this request, and fencepost attach adds the token \
             to requests of its command only.",
        ));
    }
    if fencing_token(&fields)?.is_some_and(|own| own != token.as_bytes()) {
        return Err(Refusal::ambiguous(
            "The request has an X-Fencing-Token of its own, and fencepost attach sends another \
             one: leave one of them out.",
        ));
    }
    Ok(())
}

/// An authority of `http` in one spelling.
pub(super) fn with_port(authority: &str) -> String {
    let host = authority.to_ascii_lowercase();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    if port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())) {
        return host;
    }
    format!("{}:80", host.trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_known_with_and_without_its_default_port() {
        for (authority, port) in [
            ("Orders", "orders:80"),
            ("orders:7080", "orders:7080"),
            ("[::1]", "[::1]:80"),
            ("[::1]:7080", "[::1]:7080"),
            ("orders:", "orders:80"),
        ] {
            assert_eq!(with_port(authority), port);
        }
    }
}
