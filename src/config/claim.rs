//! The block `claim`: where claims are taken, and of whom.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::peer::{self, PeerPattern};
use super::problems::{Report, Wrong, shown};
use super::settings::{Listen, Mode, RouteSettings};
use super::units::OffOr;
use crate::routing::Pattern;

const PATH: &str = "/.well-known/fencing/claim";
/// A token file longer than this is not one.
const MAX_TOKEN_FILE: usize = 4096;
/// A shorter token can be guessed.
const MIN_TOKEN: usize = 16;

/// The claim endpoint. A claim must satisfy each limit that is set.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Claim")]
pub struct ClaimFile {
    /// Its path on the data port.
    #[schemars(extend("default" = "/.well-known/fencing/claim"))]
    pub path: Option<String>,
    /// The clients that may claim, by the names in their certificates, as in `require_client` of a
    /// route; others get a 403. Needs `tls.client_ca_file`. A route's own `require_client` applies to
    /// claims as well.
    #[schemars(with = "Option<Vec<String>>")]
    pub require_client: Option<Vec<Option<String>>>,
    /// The addresses that may claim, single or with a prefix length: `10.1.0.0/16`, `::1`; others
    /// get a 403. Only the connection's address counts, no header: behind a load balancer, all
    /// clients have its address.
    #[schemars(with = "Option<Vec<String>>")]
    pub addresses: Option<Vec<Option<String>>>,
    /// A file with the bearer token for claims, at least 16 characters; without the token a claim
    /// gets a 401. Each line is a token, so that an old one can stay valid beside a new one for a
    /// while. Read again when it changes.
    pub token_file: Option<PathBuf>,
}

/// Where claims are taken, and of whom.
#[derive(Clone, Debug)]
pub struct ClaimSettings {
    pub path: String,
    /// Empty: every peer.
    pub require_client: Vec<PeerPattern>,
    /// `None`: every address.
    pub addresses: Option<Vec<AddressRange>>,
    /// `None`: no token is asked for.
    pub tokens: Option<BearerTokens>,
}

/// Digests of the tokens, one of which has to be shown.
#[derive(Clone)]
pub struct BearerTokens(Vec<[u8; 32]>);

impl std::fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BearerTokens({})", self.0.len())
    }
}

impl BearerTokens {
    fn parse(content: &[u8]) -> Result<Self, String> {
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
            return Err(format!("has a token of less than {MIN_TOKEN} characters"));
        }
        let digests = tokens.into_iter().map(|token| Sha256::digest(token).into());
        Ok(Self(digests.collect()))
    }

    /// Whether this is one of them. All are compared, in a time that says nothing of them.
    #[must_use]
    pub fn take(&self, token: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        let found = self.0.iter().map(|token| token.ct_eq(&given));
        found.fold(Choice::from(0), |found, one| found | one).into()
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    network: IpAddr,
    prefix: u32,
}

impl AddressRange {
    fn parse(text: &str) -> Result<Self, Wrong> {
        const HINT: &str = "such as 10.1.0.0/16, 192.168.1.7 or fd00::/8";
        let wrong = |what: &str| Err((format!("{} {what}", shown(text)), HINT));
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let Ok(network) = address.parse::<IpAddr>() else {
            return wrong("is no address");
        };
        if network != network.to_canonical() {
            return wrong("is an IPv4 address in IPv6: write it as IPv4");
        }
        let bits = if network.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse().unwrap_or(u32::MAX)
            }
            Some(_) => return wrong("has no number behind its `/`"),
        };
        if prefix > bits {
            return wrong("has a longer prefix than there are bits");
        }
        let range = Self { network, prefix };
        let head = range.head(network).checked_shl(range.rest());
        if head.unwrap_or(0) != number(network) {
            return wrong("has bits behind its prefix");
        }
        Ok(range)
    }

    /// How many bits are free.
    fn rest(self) -> u32 {
        (if self.network.is_ipv4() { 32 } else { 128 }) - self.prefix
    }

    fn head(self, address: IpAddr) -> u128 {
        number(address).checked_shr(self.rest()).unwrap_or(0)
    }

    /// Whether an address is among them; an IPv4 address in IPv6 counts as IPv4.
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && self.head(address) == self.head(self.network)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The checks of the block. `None`: claims are off, or wrong. `asked`: clients are asked for
/// certificates.
pub(super) fn settings(
    block: Option<OffOr<ClaimFile>>,
    listen: Option<&Listen>,
    asked: bool,
    report: &mut Report,
) -> Option<ClaimSettings> {
    let block = match block {
        Some(OffOr::Off) => return None,
        Some(OffOr::On(block)) => block,
        None => ClaimFile::default(),
    };
    let require_client =
        peer::patterns("claim.require_client", block.require_client, asked, report);
    let addresses = block.addresses.map(|list| addresses(list, listen, report));
    let tokens = block.token_file.map(|file| tokens(&file, report));
    let path = path(block.path.unwrap_or_else(|| PATH.to_owned()), report)?;
    Some(ClaimSettings {
        path,
        require_client,
        addresses,
        // One that cannot be read is an error, with which nothing is served.
        tokens: tokens.flatten(),
    })
}

/// Warns of routes by which everybody moves marks, where only some may claim.
pub(super) fn ways_around<'a>(
    claim: &ClaimSettings,
    mut routes: impl Iterator<Item = &'a RouteSettings>,
    report: &mut Report,
) {
    let limits = [
        ("claim.require_client", !claim.require_client.is_empty()),
        ("claim.addresses", claim.addresses.is_some()),
        ("claim.token_file", claim.tokens.is_some()),
    ];
    let Some((at, _)) = limits.into_iter().find(|(_, given)| *given) else {
        return;
    };
    let open = routes.find(|route| route.mode == Mode::Enforce && route.require_client.is_empty());
    if let Some(open) = open {
        let hint = if claim.require_client.is_empty() {
            "give the route a require_client, or let only those reach the port who may claim"
        } else {
            "give the route a require_client too"
        };
        report.warn(
            at,
            format!(
                "requests with a token raise marks as claims do, and the route {} takes them from every client",
                open.path
            ),
            hint,
        );
    }
}

fn path(path: String, report: &mut Report) -> Option<String> {
    let wrong = match Pattern::parse(&path) {
        Err(error) => error.to_string(),
        Ok(pattern) if pattern.names().next().is_some() || path.contains('%') => {
            format!("{} has captures or escapes", shown(&path))
        }
        Ok(_) if path == "/" => "claims need a path of their own".to_owned(),
        Ok(_) => return Some(path),
    };
    report.error(
        "claim.path",
        wrong,
        "a plain path, such as /.well-known/fencing/claim",
    );
    None
}

fn addresses(
    list: Vec<Option<String>>,
    listen: Option<&Listen>,
    report: &mut Report,
) -> Vec<AddressRange> {
    let at = "claim.addresses";
    if list.is_empty() {
        report.error(at, "no address may claim", "name some, or say `claim: off`");
    }
    if matches!(listen, Some(Listen::Unix(_))) {
        report.error(
            at,
            "clients of a Unix socket have no address",
            "remove it: `listen_mode` says who may connect; or give claim.token_file",
        );
    }
    let mut ranges = Vec::new();
    for (i, text) in list.into_iter().enumerate() {
        match AddressRange::parse(&text.unwrap_or_default()) {
            Ok(range) => ranges.push(range),
            Err((message, hint)) => report.error(format!("{at}[{i}]"), message, hint),
        }
    }
    ranges
}

fn tokens(file: &Path, report: &mut Report) -> Option<BearerTokens> {
    const HINT: &str =
        "a file with a secret of your choice, such as the output of `openssl rand -hex 32`";
    let at = "claim.token_file";
    if file.as_os_str().is_empty() {
        report.error(at, "the path is empty", HINT);
        return None;
    }
    report.reads(file);
    let read = std::fs::read(file).map_err(|error| format!("cannot be read: {error}"));
    match read.and_then(|content| BearerTokens::parse(&content)) {
        Ok(tokens) => Some(tokens),
        Err(why) => {
            report.error(at, format!("{} {why}", file.display()), HINT);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
