//! [`AddressRange`]: addresses with a common prefix, such as `10.1.0.0/16`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::yaml::{Wrong, shown};

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Parses an address, with or without the length of a prefix.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        const HINT: &str = "such as 10.1.0.0/16, 192.168.1.7 or fd00::/8";
        let wrong = |what: &str| Err((format!("{} {what}", shown(text)), HINT));
        let address = text.parse().map(|address: IpAddr| address.into());
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
    pub(super) fn is_everything(self) -> bool {
        self.0.prefix_len() == 0
    }

    /// Returns true if an address is among them; an IPv4 address in IPv6 counts as IPv4.
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
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
}
