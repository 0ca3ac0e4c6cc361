//! The client of a request that came through proxies which may name it (`trusted_proxies`).
//!
//! Each proxy appends the address of its own client to `X-Forwarded-For`, and anybody can begin the
//! field with addresses of their choice. So it is read from the right: an address counts only if
//! all behind it are of trusted proxies, and the connection's peer is one.

use std::net::{IpAddr, SocketAddr};

use super::client::Client;
use super::headers::FORWARDED_FOR;
use crate::config::AddressRange;
use crate::http1::Fields;

/// Whether an address is among the trusted ones.
pub(super) fn have(trusted: &[AddressRange], ip: IpAddr) -> bool {
    trusted.iter().any(|range| range.has(ip))
}

impl Client {
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
}

/// The rightmost address that is not a trusted proxy's. If all are, or one cannot be read, the last
/// that was reached.
fn walk(peer: IpAddr, trusted: &[AddressRange], fields: &Fields) -> IpAddr {
    let mut client = peer;
    let lines = fields.get_all(FORWARDED_FOR).rev();
    let mut members = lines.flat_map(|line| line.rsplit(|byte| *byte == b','));
    while have(trusted, client) {
        let Some(named) = members.next().and_then(address) else {
            break;
        };
        client = named;
    }
    client
}

/// An address, with or without a port. Some proxies write one.
fn address(member: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(member.trim_ascii()).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let ip = match bare {
        Some(text) => text.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    };
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    Some(ip.or_else(with_port)?.to_canonical())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::{Overrides, parse};

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
