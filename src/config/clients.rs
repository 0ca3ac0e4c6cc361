//! The block `claim`, and the ways to name clients: by the names in their certificates
//! ([`ClientPattern`]), by their addresses ([`AddressRange`]), by tokens ([`BearerTokens`]).

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use rustls::pki_types::DnsName;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::units::{Hidden, word};
use super::yaml::{Report, blocks, shown, wrong};
use crate::routing::Pattern;

/// The default of `path`.
const CLAIM_PATH: &str = "/.well-known/fencing/claim";

blocks! {
    /// The claim endpoint. A claim must satisfy each limit that is set.
    #[schemars(rename = "Claim")]
    pub struct ClaimSettings {
        /// Its path on the data port.
        #[schemars(extend("default" = CLAIM_PATH))]
        pub path: ClaimPath = ClaimPath(CLAIM_PATH.to_owned()),
        /// The clients that may claim, by the names in their certificates, as in `require_client`
        /// of a route; others get a 403. Needs `tls.client_ca_file`. A route's own `require_client`
        /// applies to claims as well.
        pub require_client: Vec<ClientPattern>,
        /// The addresses that may claim, single or with a prefix length: `10.1.0.0/16`, `::1`;
        /// others get a 403. The connection's address counts: behind a load balancer, all clients
        /// have its address, unless `trusted_proxies` names it. Clients of a Unix socket have none.
        pub addresses: Option<Vec<AddressRange>>,
        /// A file with the bearer token for claims, at least 16 characters; without the token a
        /// claim gets a 401. Each line is a token, so that an old one can stay valid beside a new
        /// one for a while. Read again when it changes.
        token_file: Option<PathBuf>,
        /// The tokens of that file; `None`: no token is asked for.
        #[serde(skip)]
        pub tokens: Option<BearerTokens>,
    }
}

/// The path of the claim endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub String);

word!(ClaimPath, |text| {
    let fault = match Pattern::parse(text) {
        Err(error) => error,
        Ok(pattern) if pattern.names().next().is_some() || text.contains('%') => {
            format!("{} has captures or escapes", shown(text))
        }
        Ok(_) if text == "/" => "claims need a path of their own".to_owned(),
        Ok(_) => return Ok(ClaimPath(text.to_owned())),
    };
    Err(fault + "\na plain path, such as /.well-known/fencing/claim")
});

impl ClaimSettings {
    /// `are_named`: clients are asked for certificates.
    pub(super) fn check(&mut self, are_named: bool, report: &mut Report) {
        let at = "claim.require_client";
        check_clients(at, &self.require_client, are_named, report);
        let is_none = self.addresses.as_ref().is_some_and(Vec::is_empty);
        let text = "no address may claim\nname some, or say `claim: off`";
        report.error_if(is_none, "claim.addresses", text);
        let Some(file) = &self.token_file else { return };
        report.sources.note(file);
        match BearerTokens::of(std::fs::read(file)) {
            Ok(tokens) => self.tokens = Some(tokens),
            Err(why) => {
                let hint = "a file with a secret, such as the output of `openssl rand -hex 32`";
                let text = format!("the file `{}` {why}\n{hint}", file.display());
                report.error("claim.token_file", text);
            }
        }
    }
}

word!(ClientPattern, ClientPattern::parse);
word!(AddressRange, AddressRange::parse);

/// Checks the list `require_client`, of a route and of the claim endpoint. `are_named`: clients are
/// asked for certificates.
pub(super) fn check_clients(
    at: &str,
    list: &[ClientPattern],
    are_named: bool,
    report: &mut Report,
) {
    let is_given = report.is_given(at);
    let text = "no client is allowed\nlist some, or leave it out to allow every client";
    report.error_if(is_given && list.is_empty(), at, text);
    let text = "clients are not asked for certificates, so none has a name\n\
                give `tls` with a client_ca_file";
    report.error_if(is_given && !are_named, at, text);
}

/// One of `require_client`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientPattern {
    /// This DNS name, in lower case.
    Dns(String),
    /// Any one label, followed by this, in lower case: `.pay.svc`.
    Below(String),
    /// This URI, byte for byte.
    Uri(String),
}

impl ClientPattern {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const HINT: &str =
            "write a URI (spiffe://cluster/ns/pay/sa/worker), a DNS name, or *. and a DNS name";
        let wrong = |fault| wrong(text, fault, HINT);
        if text.contains(':') {
            let as_a_whole = text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'*');
            return if as_a_whole && text.starts_with(|c: char| c.is_ascii_alphabetic()) {
                Ok(Self::Uri(text.to_owned()))
            } else {
                wrong("is not a URI; URIs are compared as a whole, without `*`")
            };
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        if DnsName::try_from(name).is_err() || name.ends_with('.') {
            return wrong("is not a DNS name; a `*` stands for the first label alone");
        }
        let name = name.to_ascii_lowercase();
        Ok(if text.starts_with("*.") {
            Self::Below(format!(".{name}"))
        } else {
            Self::Dns(name)
        })
    }

    /// Returns true if a DNS name of a certificate, in lower case, matches.
    pub fn takes_dns(&self, name: &str) -> bool {
        match self {
            Self::Dns(wanted) => wanted == name,
            Self::Below(suffix) => name
                .strip_suffix(suffix.as_str())
                .is_some_and(|label| !label.is_empty() && !label.contains('.')),
            Self::Uri(_) => false,
        }
    }

    /// Returns true if a URI of a certificate matches.
    pub fn takes_uri(&self, uri: &str) -> bool {
        matches!(self, Self::Uri(wanted) if wanted == uri)
    }
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Parses an address, with or without the length of a prefix.
    pub fn parse(text: &str) -> Result<Self, String> {
        const HINT: &str = "such as 10.1.0.0/16, 192.168.1.7 or fd00::/8";
        let wrong = |fault| wrong(text, fault, HINT);
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let Ok(range) = address.or_else(|_| text.parse::<IpNet>()) else {
            return wrong("is not an address or a range of addresses");
        };
        if range.addr() != range.addr().to_canonical() {
            return wrong("is an IPv4 address in IPv6: write it as IPv4");
        }
        if range != range.trunc() {
            return wrong("has bits set after its prefix");
        }
        Ok(Self(range))
    }

    /// True if these are all addresses of their version.
    pub(super) fn is_everything(&self) -> bool {
        self.0.prefix_len() == 0
    }

    /// Returns true if an address is among them; an IPv4 address in IPv6 counts as IPv4.
    pub fn has(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// A longer file is not a token file.
const MAX_TOKEN_FILE: usize = 4096;
/// A shorter token can be guessed.
const MIN_TOKEN: usize = 16;

/// Digests of the tokens. A client has to show one of them.
#[derive(Clone, Debug)]
pub struct BearerTokens(Hidden<Vec<[u8; 32]>>);

impl BearerTokens {
    /// The tokens in a file that was read. The error says what is wrong with it.
    pub fn of(file: io::Result<Vec<u8>>) -> Result<Self, String> {
        Self::parse(&file.map_err(|error| format!("cannot be read: {error}"))?)
    }

    /// The tokens in the content of a file.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        if content.len() > MAX_TOKEN_FILE {
            return Err(format!("is longer than {MAX_TOKEN_FILE} bytes"));
        }
        let lines = content.split(|byte| *byte == b'\n');
        let tokens: Vec<_> = lines
            .map(<[u8]>::trim_ascii)
            .filter(|token| !token.is_empty())
            .collect();
        if tokens.is_empty() {
            return Err("is empty".to_owned());
        }
        if tokens.iter().any(|token| token.len() < MIN_TOKEN) {
            return Err(format!("has a token of fewer than {MIN_TOKEN} characters"));
        }
        let digests = tokens.into_iter().map(|token| Sha256::digest(token).into());
        Ok(Self(Hidden(digests.collect())))
    }

    /// Returns true if this is one of them. All are compared, in a time that reveals nothing about
    /// them.
    pub fn take(&self, token: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        let found = self.0.0.iter().map(|token| token.ct_eq(&given));
        found.fold(Choice::from(0), |found, one| found | one).into()
    }
}

/// The one bearer token of a request (RFC 6750, 2.1).
pub fn bearer<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let (scheme, token) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> ClientPattern {
        ClientPattern::parse(text).expect("a pattern")
    }

    #[test]
    fn dns_names_are_compared_whole_and_without_case() {
        let exact = pattern("Worker.pay.svc");
        assert!(exact.takes_dns("worker.pay.svc"));
        for other in ["a.worker.pay.svc", "pay.svc", "worker.pay.svc.evil", ""] {
            assert!(!exact.takes_dns(other), "{other}");
        }
        assert!(!exact.takes_uri("worker.pay.svc"));
    }

    #[test]
    fn a_star_is_one_label() {
        let any = pattern("*.pay.svc");
        assert!(any.takes_dns("worker.pay.svc"));
        for other in [
            "pay.svc",
            ".pay.svc",
            "a.worker.pay.svc",
            "workerpay.svc",
            "worker.pay.svc.evil",
        ] {
            assert!(!any.takes_dns(other), "{other}");
        }
    }

    #[test]
    fn uris_are_compared_byte_for_byte() {
        let uri = pattern("spiffe://cluster/ns/pay/sa/worker");
        assert!(uri.takes_uri("spiffe://cluster/ns/pay/sa/worker"));
        for other in [
            "spiffe://cluster/ns/pay/sa/worker/",
            "spiffe://cluster/ns/pay/sa/Worker",
            "spiffe://cluster/ns/pay/sa",
        ] {
            assert!(!uri.takes_uri(other), "{other}");
        }
        assert!(!uri.takes_dns("spiffe://cluster/ns/pay/sa/worker"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in [
            "",
            "*",
            "*.",
            "a.*.b",
            "w*.pay.svc",
            "*.*.svc",
            "a b",
            "pay.svc.",
            "a..b",
            "spiffe://c/*",
            "://x",
            "spiffe://a b",
        ] {
            assert!(ClientPattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn address_ranges() {
        for (range, inside, outside) in [
            (
                "10.1.0.0/16",
                &["10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3"][..],
                &["10.2.0.0", "::a01:0"][..],
            ),
            (
                "192.168.1.7",
                &["192.168.1.7"],
                &["192.168.1.6", "192.168.1.8", "::1"],
            ),
            ("0.0.0.0/0", &["1.2.3.4", "255.255.255.255"], &["::1"]),
            ("::/0", &["::1", "fd00::1"], &["1.2.3.4", "::ffff:1.2.3.4"]),
            ("fd00::/8", &["fd00::1", "fdff::"], &["fe00::", "fc00::"]),
            ("::1", &["::1"], &["::2", "127.0.0.1"]),
            (
                "2001:db8:0:8000::/49",
                &["2001:db8:0:ffff::1"],
                &["2001:db8:0:7fff::"],
            ),
        ] {
            let range = AddressRange::parse(range).expect("a range");
            for address in inside {
                assert!(
                    range.has(address.parse().expect("an address")),
                    "{range:?} {address}"
                );
            }
            for address in outside {
                assert!(
                    !range.has(address.parse().expect("an address")),
                    "{range:?} {address}"
                );
            }
        }
        for bad in [
            "",
            "localhost",
            "10.1.2.3/16",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "::ffff:10.0.0.0/104",
            "10.1",
            "fd00::1/8",
            "10.0.0.0/99999999999",
        ] {
            assert!(AddressRange::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_line_is_a_token() {
        let tokens =
            BearerTokens::parse(b" 0123456789abcdef \r\n\nfedcba9876543210\n").expect("two");
        for good in ["0123456789abcdef", "fedcba9876543210"] {
            assert!(tokens.take(good.as_bytes()));
        }
        for bad in [
            "",
            "0123456789abcde",
            "0123456789abcdefg",
            "0123456789abcdef\nfedcba9876543210",
        ] {
            assert!(!tokens.take(bad.as_bytes()), "{bad}");
        }
        for bad in [
            &b""[..],
            b"\n \n",
            b"0123456789abcde",
            b"0123456789abcdef\nshort",
            &[b'x'; 5000],
        ] {
            assert!(BearerTokens::parse(bad).is_err());
        }
        assert!(!format!("{tokens:?}").contains("0123"));
    }
}
