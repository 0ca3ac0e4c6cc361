//! Fields that name a client by its certificate. The server that terminates TLS sets them, and the
//! upstream believes them. If clients show their certificates to this proxy, no server before it
//! has verified any. So the proxy removes these fields from requests, and
//! `X-Forwarded-Client-Cert` says what it has verified itself. Without client certificates, the
//! fields stay as they are: an edge before the proxy may have set them.
//!
//! The value is one element of Envoy's format: `Hash=…;URI=…;DNS=…`, with a `URI` and a `DNS` for
//! each name. The hash is the SHA-256 of the certificate in DER, in lower-case hexadecimal digits.
//! The names are those that `require_client` goes by. The subject is left out: its text can be read
//! in two ways.
//! (<https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/headers>)

use std::fmt::Write as _;

use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use crate::http1::Fields;
use crate::routing::names_a_peer;

pub const XFCC: &str = "x-forwarded-client-cert";

/// Removes the fields that name the client by its certificate.
pub fn strip(fields: &mut Fields) {
    fields.remove_where(is_identity);
}

/// Whether an upstream may believe that the server that terminated TLS has set this field.
pub(super) fn is_identity(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(names_a_peer)
}

/// The value of [`XFCC`] for a verified certificate with these URIs and DNS names.
#[must_use]
pub fn of_certificate(certificate: &CertificateDer<'_>, uris: &[String], dns: &[String]) -> String {
    let mut text = String::from("Hash=");
    for byte in Sha256::digest(certificate) {
        let _ = write!(text, "{byte:02x}");
    }
    let uris = uris.iter().map(|uri| ("URI", uri));
    for (kind, name) in uris.chain(dns.iter().map(|name| ("DNS", name))) {
        // A reader that unescapes and one that does not would take such a name for two.
        if name.contains(['"', '\\']) || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            continue;
        }
        let quote = if name.contains([',', ';', '=']) {
            "\""
        } else {
            ""
        };
        text.extend([";", kind, "=", quote, name, quote]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_client_goes_and_its_neighbours_stay() {
        let mut headers = Fields::default();
        let gone = [
            "x-forwarded-client-cert",
            "x_forwarded_client_cert",
            "x-ssl-client-verify",
            "x-ssl-cert",
            "x_ssl_client_s_dn",
            "ssl-client-subject-dn",
            "ssl_client_cert",
            "x-forwarded-tls-client-cert-info",
            "client-cert",
            "client-cert-chain",
            "x-client-cert-dn",
            "x-client-certificate",
            "x-client-verify",
            "x-amzn-mtls-clientcert-subject",
            "x-arr-clientcert",
            "wl-proxy-client-cert",
            "wl_proxy_client.cert",
            "cf-client-cert-der-base64",
            "tls-client-cert",
            "tls.client_certificate",
            "x-client-subject-dn",
            "x-user-cert",
            "x_user_certificate",
            "x-certificate",
            "x-certificate-subject",
            "x-spiffe-id",
        ];
        let stays = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-client-id",
            "x-client-ip",
            "client",
            "authorization",
            "x-arr-log-id",
            "x-sso",
            "cf-connecting-ip",
            "wl-proxy-ssl",
            "x-user",
            "x-cert",
        ];
        for name in gone.iter().chain(&stays) {
            headers.append_as(name.as_bytes(), b"1");
        }
        strip(&mut headers);
        let names = headers
            .iter()
            .map(|(name, _)| str::from_utf8(name).expect("text"));
        let left: Vec<&str> = names.collect();
        assert_eq!(left, stays);
    }

    #[test]
    fn the_value_is_envoys() {
        let certificate = CertificateDer::from(b"abc".to_vec());
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let value = |uris: &[&str], dns: &[&str]| {
            let [uris, dns] =
                [uris, dns].map(|names| names.iter().map(ToString::to_string).collect());
            let (uris, dns): (Vec<String>, Vec<String>) = (uris, dns);
            let text = of_certificate(&certificate, &uris, &dns);
            text.strip_prefix(&format!("Hash={hash}"))
                .expect("the hash")
                .to_owned()
        };
        assert_eq!(value(&[], &[]), "");
        assert_eq!(
            value(&["spiffe://c/ns/pay"], &["a.pay.svc", "b.pay.svc"]),
            ";URI=spiffe://c/ns/pay;DNS=a.pay.svc;DNS=b.pay.svc"
        );
        // No name makes an element, a pair or a line of its own.
        assert_eq!(
            value(&["x:a;DNS=b", "x:a,Hash=0", "x:\"", "x:\\", "x:a\nb"], &[]),
            ";URI=\"x:a;DNS=b\";URI=\"x:a,Hash=0\""
        );
    }
}
