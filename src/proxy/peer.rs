//! [`Peer`]: who has sent a request, and what the certificate that it showed says of its name.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::headers::identity::of_certificate;
use super::shares::ConnectionPlaces;
use crate::config::{ClaimSettings, PeerPattern, RouteSettings};
use crate::fencing::growth::Origin;

/// Names in a log line; more than that are cut off.
const SHOWN: usize = 8;

/// Who has sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// `None` on a Unix socket.
    pub ip: Option<IpAddr>,
    /// Its address as it is told to the upstream.
    pub forwarded: Option<HeaderValue>,
    /// For log lines: the IP address, or `unix`.
    pub text: Arc<str>,
    /// What its TLS handshake told; `None`: it speaks plain HTTP.
    pub tls: Option<Arc<PeerNames>>,
    /// It was asked for a certificate.
    pub mutual: bool,
    /// The certificate that it showed, as the upstream is told of it.
    pub identity: Option<HeaderValue>,
    /// When its connection is too old for the certificate that it showed.
    pub until: Option<Instant>,
    /// The places of its connection's requests.
    pub places: ConnectionPlaces,
}

/// The names in a client's verified certificate; none if it showed none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerNames {
    /// In lower case.
    dns: Vec<String>,
    uris: Vec<String>,
    /// For log lines.
    text: Option<Arc<str>>,
}

impl Peer {
    pub(crate) fn names(&self) -> Option<&PeerNames> {
        self.tls.as_deref()
    }

    /// Its network, where an address says who it is: an IPv4 address, or the /64 that one IPv6 site
    /// has at the least (RFC 6177).
    pub(crate) fn origin(&self) -> Option<Origin> {
        Some(match self.ip?.to_canonical() {
            // No /64 of the Internet begins with 0 (RFC 4291, section 4).
            IpAddr::V4(ip) => (u64::from(u32::from(ip))).to_be_bytes(),
            IpAddr::V6(ip) => (ip.to_bits() >> 64).to_be_bytes()[8..]
                .try_into()
                .unwrap_or_default(),
        })
    }

    /// Whether a route lets this peer in.
    pub(crate) fn may_use(&self, route: &RouteSettings) -> bool {
        self.is_one_of(&route.require_client)
    }

    /// Whether this peer may claim, as far as its names and its address say.
    pub(crate) fn may_claim(&self, claim: &ClaimSettings) -> bool {
        let from_there = claim.addresses.as_ref().is_none_or(|ranges| {
            self.ip
                .is_some_and(|ip| ranges.iter().any(|range| range.has(ip)))
        });
        from_there && self.is_one_of(&claim.require_client)
    }

    fn is_one_of(&self, wanted: &[PeerPattern]) -> bool {
        wanted.is_empty() || self.names().is_some_and(|names| names.any_of(wanted))
    }
}

impl PeerNames {
    /// The DNS names and URIs of a certificate's SAN. The common name is none (RFC 9525, section 2), nor is
    /// what could be read in two ways: a DNS name with a wildcard or odd signs, a URI with spaces or controls.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut names = Self::default();
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            return names;
        };
        // Two of the extension are an error here as well.
        let Ok(Some(san)) = parsed.subject_alternative_name() else {
            return names;
        };
        for name in &san.value.general_names {
            match name {
                GeneralName::DNSName(name) if is_host(name) => {
                    names.dns.push(name.to_ascii_lowercase());
                }
                GeneralName::URI(uri) if uri.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    names.uris.push((*uri).to_owned());
                }
                _ => {}
            }
        }
        let shown = names.uris.iter().chain(&names.dns).take(SHOWN);
        let shown: Vec<&str> = shown.map(String::as_str).collect();
        names.text = (!shown.is_empty()).then(|| shown.join(", ").into());
        names
    }

    /// What the upstream is told of a certificate with these names.
    pub(crate) fn identity(&self, certificate: &CertificateDer<'_>) -> Option<HeaderValue> {
        of_certificate(certificate, &self.uris, &self.dns)
    }

    fn any_of(&self, wanted: &[PeerPattern]) -> bool {
        wanted.iter().any(|pattern| {
            self.dns.iter().any(|name| pattern.takes_dns(name))
                || self.uris.iter().any(|uri| pattern.takes_uri(uri))
        })
    }

    /// For log lines; `None`: there are no names.
    pub(crate) fn text(&self) -> Option<Arc<str>> {
        self.text.clone()
    }
}

fn is_host(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn names(sans: Vec<SanType>) -> PeerNames {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "common.pay.svc");
        params.subject_alt_names = sans;
        let key = KeyPair::generate().expect("a key");
        PeerNames::of(params.self_signed(&key).expect("a certificate").der())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().expect("ASCII"))
    }

    #[test]
    fn the_common_name_is_no_name() {
        assert_eq!(names(Vec::new()), PeerNames::default());
        assert_eq!(names(Vec::new()).text(), None);
    }

    #[test]
    fn dns_names_and_uris_are_names_and_addresses_are_none() {
        let uri = "spiffe://cluster/ns/pay/sa/worker";
        let found = names(vec![
            dns("Worker.Pay.svc"),
            SanType::URI(uri.try_into().expect("ASCII")),
            SanType::IpAddress(IpAddr::from([127, 0, 0, 1])),
            SanType::Rfc822Name("a@pay.svc".try_into().expect("ASCII")),
        ]);
        assert_eq!(found.dns, ["worker.pay.svc"]);
        assert_eq!(found.uris, [uri]);
        assert_eq!(
            found.text().as_deref(),
            Some(format!("{uri}, worker.pay.svc").as_str())
        );
    }

    #[test]
    fn a_wildcard_in_a_certificate_is_nobody() {
        let found = names(vec![dns("*.pay.svc"), dns("a b.pay.svc")]);
        assert_eq!(found, PeerNames::default());
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        let found = PeerNames::of(&CertificateDer::from(vec![0x30, 0x00]));
        assert_eq!(found, PeerNames::default());
    }
}
