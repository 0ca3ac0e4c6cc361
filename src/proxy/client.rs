//! [`Client`]: the sender of a request, and the names in the certificate that it showed.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use webpki::EndEntityCert;

use super::headers::forwarded_for;
use super::headers::identity::of_certificate;
use crate::config::{ClaimSettings, ClientPattern, RouteSettings};

/// The most names in a log line.
const SHOWN: usize = 8;

/// The client that has sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// `None` on a Unix socket.
    pub ip: Option<IpAddr>,
    /// Its address as the upstream reads it.
    pub forwarded: Option<Arc<str>>,
    /// For log lines: the IP address, or `unix`.
    pub text: Arc<str>,
    /// The names from its TLS handshake; `None`: it speaks plain HTTP.
    pub tls: Option<Arc<ClientNames>>,
    /// It was asked for a certificate.
    pub mutual: bool,
    /// The certificate that it showed, as the upstream reads it.
    pub identity: Option<Arc<str>>,
    /// When its connection becomes too old for its certificate.
    pub until: Option<Instant>,
    /// The requests that its connection may still have in flight.
    pub in_flight: Arc<Semaphore>,
}

/// The names in a client's verified certificate; none if it showed none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientNames {
    /// In lower case.
    dns: Vec<String>,
    uris: Vec<String>,
    /// For log lines.
    text: Option<Arc<str>>,
}

impl Client {
    /// The client of a connection that may have `in_flight` requests. `ip` is `None` on a Unix
    /// socket.
    pub(crate) fn at(ip: Option<IpAddr>, in_flight: usize) -> Self {
        Self {
            ip,
            forwarded: ip.map(|ip| forwarded_for(ip).into()),
            text: ip.map_or_else(|| "unix".into(), |ip| ip.to_string().into()),
            tls: None,
            mutual: false,
            identity: None,
            until: None,
            in_flight: Arc::new(Semaphore::new(in_flight)),
        }
    }

    /// This process itself. `text`: for log lines.
    pub(crate) fn of_this_process(text: &str) -> Self {
        Self {
            text: text.into(),
            ..Self::at(None, Semaphore::MAX_PERMITS)
        }
    }

    pub(crate) fn names(&self) -> Option<&ClientNames> {
        self.tls.as_deref()
    }

    /// Whether a route admits this client.
    pub(crate) fn may_use(&self, route: &RouteSettings) -> bool {
        self.is_one_of(&route.require_client)
    }

    /// Whether this client may claim, by its names and its address.
    pub(crate) fn may_claim(&self, claim: &ClaimSettings) -> bool {
        let from_there = claim.addresses.as_ref().is_none_or(|ranges| {
            self.ip
                .is_some_and(|ip| ranges.iter().any(|range| range.has(ip)))
        });
        from_there && self.is_one_of(&claim.require_client)
    }

    fn is_one_of(&self, wanted: &[ClientPattern]) -> bool {
        wanted.is_empty() || self.names().is_some_and(|names| names.any_of(wanted))
    }
}

impl ClientNames {
    /// The DNS names and URIs of a certificate's SAN. The common name does not count (RFC 9525,
    /// section 2). Nor do names that could be read in two ways: a DNS name with a wildcard or
    /// unusual characters, a URI with spaces or control characters.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut names = Self::default();
        // A second SAN extension is an error here too.
        let Ok(parsed) = EndEntityCert::try_from(certificate) else {
            return names;
        };
        let dns = parsed.valid_dns_names().filter(|name| is_host(name));
        names.dns = dns.map(str::to_ascii_lowercase).collect();
        let uris = parsed.valid_uri_names();
        let plain = uris.filter(|uri| uri.bytes().all(|byte| byte.is_ascii_graphic()));
        names.uris = plain.map(str::to_owned).collect();
        let shown = names.uris.iter().chain(&names.dns).take(SHOWN);
        let shown: Vec<&str> = shown.map(String::as_str).collect();
        names.text = (!shown.is_empty()).then(|| shown.join(", ").into());
        names
    }

    /// A certificate with these names, as the upstream reads it.
    pub(crate) fn identity(&self, certificate: &CertificateDer<'_>) -> String {
        of_certificate(certificate, &self.uris, &self.dns)
    }

    fn any_of(&self, wanted: &[ClientPattern]) -> bool {
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

    fn names(sans: Vec<SanType>) -> ClientNames {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "common.pay.svc");
        params.subject_alt_names = sans;
        let key = KeyPair::generate().expect("a key");
        ClientNames::of(params.self_signed(&key).expect("a certificate").der())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().expect("ASCII"))
    }

    #[test]
    fn the_common_name_is_no_name() {
        assert_eq!(names(Vec::new()), ClientNames::default());
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
        assert_eq!(found, ClientNames::default());
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        let found = ClientNames::of(&CertificateDer::from(vec![0x30, 0x00]));
        assert_eq!(found, ClientNames::default());
    }
}
