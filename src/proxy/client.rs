//! [`Client`]: the sender of a request, and the names in the certificate that it showed.
//!
//! A request may come through proxies that may name its client (`trusted_proxies`). Each appends the
//! address of its own client to `X-Forwarded-For`, and anybody can begin the field with addresses of
//! their choice. So it is read from the right: an address counts only if all behind it are of
//! trusted proxies, and the connection's peer is one.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use webpki::EndEntityCert;

use super::headers::FORWARDED_FOR;
use crate::config::{AddressRange, ClientPattern};
use crate::http1::Fields;

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
    /// The certificate that it showed, as the upstream reads it.
    pub identity: Option<Arc<str>>,
    /// The requests that its connection may still have in flight.
    pub in_flight: Arc<Semaphore>,
}

/// The names in a client's verified certificate; none if it showed none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientNames {
    /// In lower case.
    dns: Vec<String>,
    uris: Vec<String>,
    /// For log lines; `None`: there are no names.
    pub text: Option<Arc<str>>,
}

impl Client {
    /// The client of a connection that may have `in_flight` requests. `ip` is `None` on a Unix
    /// socket.
    pub(crate) fn at(ip: Option<IpAddr>, in_flight: usize) -> Self {
        Self {
            ip,
            forwarded: ip.map(|ip| ip.to_canonical().to_string().into()),
            text: ip.map_or_else(|| "unix".into(), |ip| ip.to_string().into()),
            tls: None,
            identity: None,
            in_flight: Arc::new(Semaphore::new(in_flight)),
        }
    }

    /// The names in its certificate, for log lines.
    pub(super) fn name(&self) -> Option<&str> {
        self.tls.as_ref()?.text.as_deref()
    }

    /// The client behind this one, which is a trusted proxy. `None`: it is not, or names none.
    pub(super) fn behind(&self, trusted: &[AddressRange], fields: &Fields) -> Option<Self> {
        let peer = self.ip?;
        let ip = walk(peer, trusted, fields);
        (ip != peer).then(|| Self {
            ip: Some(ip),
            text: ip.to_string().into(),
            ..self.clone()
        })
    }

    /// Returns true if a list `require_client` has this client. An empty one has all.
    pub(super) fn is_one_of(&self, wanted: &[ClientPattern]) -> bool {
        wanted.is_empty() || self.tls.as_ref().is_some_and(|names| names.any_of(wanted))
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

    /// The value of `X-Forwarded-Client-Cert` for a verified certificate with these names: one
    /// element of Envoy's format, `Hash=…;URI=…;DNS=…`, with a `URI` and a `DNS` for each name. The
    /// hash is the SHA-256 of the certificate in DER, in lower-case hexadecimal digits. The subject
    /// is left out: its text can be read in two ways.
    /// (<https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/headers>)
    pub(crate) fn identity(&self, certificate: &CertificateDer<'_>) -> String {
        let mut text = String::from("Hash=");
        for byte in Sha256::digest(certificate) {
            let _ = write!(text, "{byte:02x}");
        }
        let uris = self.uris.iter().map(|uri| ("URI", uri));
        for (kind, name) in uris.chain(self.dns.iter().map(|name| ("DNS", name))) {
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

    fn any_of(&self, wanted: &[ClientPattern]) -> bool {
        wanted.iter().any(|pattern| {
            self.dns.iter().any(|name| pattern.takes_dns(name))
                || self.uris.iter().any(|uri| pattern.takes_uri(uri))
        })
    }
}

fn is_host(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Whether an address is in one of these ranges.
pub(super) fn is_in(ranges: &[AddressRange], ip: IpAddr) -> bool {
    ranges.iter().any(|range| range.has(ip))
}

/// The rightmost address that is not a trusted proxy's. If all are, or one cannot be read, the last
/// that was reached.
fn walk(peer: IpAddr, trusted: &[AddressRange], fields: &Fields) -> IpAddr {
    let mut client = peer;
    let lines = fields.get_all(FORWARDED_FOR).rev();
    let mut members = lines.flat_map(|line| line.rsplit(|byte| *byte == b','));
    while is_in(trusted, client) {
        let Some(named) = members.next().and_then(address) else {
            break;
        };
        client = named;
    }
    client
}

/// An address, with or without a port. Some proxies write one, or brackets alone.
fn address(member: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(member.trim_ascii()).ok()?;
    let with_port = |text: &str| text.parse().map(|address: SocketAddr| address.ip());
    let ip = text.parse().or_else(|_| with_port(text));
    let ip = ip.or_else(|_| with_port(&format!("{text}:0")));
    Some(ip.ok()?.to_canonical())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;
    use crate::config::{Overrides, parse};

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
        assert_eq!(names(Vec::new()).text, None);
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
            found.text.as_deref(),
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

    #[test]
    fn the_value_is_envoys() {
        let certificate = CertificateDer::from(b"abc".to_vec());
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let value = |uris: &[&str], dns: &[&str]| {
            let [uris, dns] =
                [uris, dns].map(|names| names.iter().map(ToString::to_string).collect());
            let names = ClientNames {
                uris,
                dns,
                text: None,
            };
            let text = names.identity(&certificate);
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

    fn walked(lines: &[&str]) -> String {
        let mut overrides = Overrides::default();
        overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
        let parsed = parse("trusted_proxies: [10.0.0.0/8, 'fd00::/8']\n", &overrides);
        let (settings, _) = parsed.unwrap_or_else(|problems| panic!("{problems}"));
        let mut headers = Fields::default();
        for line in lines {
            headers.append(FORWARDED_FOR, line);
        }
        let peer = IpAddr::from([10, 0, 0, 1]);
        walk(peer, &settings.trusted_proxies, &headers).to_string()
    }

    #[test]
    fn the_rightmost_address_that_is_not_trusted_is_the_clients() {
        for (lines, client) in [
            (&[][..], "10.0.0.1"),
            (&["192.0.2.7"], "192.0.2.7"),
            (&["203.0.113.9, 192.0.2.7"], "192.0.2.7"),
            (&["203.0.113.9,192.0.2.7 ,\t10.0.0.2"], "192.0.2.7"),
            (&["192.0.2.7", "10.0.0.3, fd00::2", "10.0.0.2"], "192.0.2.7"),
            (&["192.0.2.7, 10.0.0.2", "198.51.100.1"], "198.51.100.1"),
            (&["10.0.0.4, 10.0.0.3"], "10.0.0.4"),
            (&["192.0.2.7:4711"], "192.0.2.7"),
            (&["[2001:db8::7]:4711"], "2001:db8::7"),
            (&["[2001:db8::7]"], "2001:db8::7"),
            (&["2001:db8::7"], "2001:db8::7"),
            (&["::ffff:192.0.2.7"], "192.0.2.7"),
        ] {
            assert_eq!(walked(lines), client, "{lines:?}");
        }
    }

    #[test]
    fn a_member_that_cannot_be_read_ends_the_walk() {
        for (lines, client) in [
            (&["192.0.2.7, unknown"][..], "10.0.0.1"),
            (&["192.0.2.7, , 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.7, _hidden, 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.7, for=10.0.0.3, 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.7, \u{e9}, 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.7, [10.0.0.3], 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.7", ""], "10.0.0.1"),
        ] {
            assert_eq!(walked(lines), client, "{lines:?}");
        }
    }
}
