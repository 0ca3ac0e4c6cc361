//! The environment of the command: where `fencepost attach` listens, and the proxy settings with
//! which its requests come here.

use std::net::IpAddr;

use crate::config::AddressRange;

/// The variables. `address`: where `fencepost attach` listens. `fenced`: the authorities that
/// `http_proxy` leads here, if it is set.
pub(super) fn variables(address: &str, fenced: Option<&[String]>) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    let mut authority = address;
    if let Some(path) = address.strip_prefix("unix:") {
        variables.push(("FENCEPOST_SOCKET", path.to_owned()));
        authority = "localhost";
    }
    let url = format!("http://{authority}");
    // Some programs read the one (curl), some the other.
    for (name, other) in [("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")] {
        let inherited = std::env::var(name).or_else(|_| std::env::var(other));
        let inherited = inherited.unwrap_or_default();
        let entries = inherited.split([',', ' ']);
        let mut list: Vec<_> = entries.filter(|entry| !entry.is_empty()).collect();
        match fenced {
            // Any program might take these for one of the hosts.
            Some(hosts) => {
                list.retain(|entry| !hosts.iter().any(|authority| covers(entry, host(authority))));
            }
            // Some programs take `*` for a wildcard only if it is alone.
            None if list == ["*"] => {}
            None => list.push(host(authority)),
        }
        variables.push((name, list.join(",")));
    }
    if fenced.is_some() {
        for name in ["http_proxy", "HTTP_PROXY"] {
            variables.push((name, url.clone()));
        }
    }
    variables.push(("FENCEPOST_URL", url));
    variables
}

/// Whether an entry of `NO_PROXY` may cover a host: as the end of its name, as a pattern with `*`,
/// or as a range of addresses. No two programs have the same rules, so this is the widest of each.
fn covers(entry: &str, name: &str) -> bool {
    // Some programs take a range with bits behind its prefix.
    let in_range =
        |ip: IpAddr| AddressRange::parse(entry).map_or(entry.contains('/'), |range| range.has(ip));
    let end = host(entry)
        .trim_start_matches(['*', '.'])
        .trim_end_matches('.');
    name.parse().is_ok_and(in_range)
        || end.contains('*')
        || name
            .to_ascii_lowercase()
            .ends_with(&end.to_ascii_lowercase())
}

/// An authority without its port, and without the brackets of IPv6.
fn host(authority: &str) -> &str {
    let bracketed = authority.strip_prefix('[');
    let address = bracketed.and_then(|rest| rest.split_once(']'));
    let name = authority.split_once(':');
    let name = name.filter(|(_, port)| !port.contains(':'));
    address.or(name).map_or(authority, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_may_cover_the_host_are_left_out() {
        for (entry, authority, covered) in [
            ("*", "orders:7080", true),
            ("orders", "orders:7080", true),
            ("ORDERS.", "orders", true),
            ("orders:7080", "Orders:7080", true),
            (".example", "orders.example", true),
            ("*.example", "orders.example", true),
            ("orders.*", "orders.example", true),
            ("example", "orders", false),
            ("orders.example", "orders", false),
            ("10.0.0.0/8", "10.1.2.3:80", true),
            ("10.1.2.3/8", "10.1.2.3:80", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("192.168.0.0/16", "10.1.2.3", false),
            ("10.0.0.0/8", "orders", false),
            ("::1", "[::1]:80", true),
            ("[::1]", "[::1]:80", true),
            ("fd00::/8", "[fd00::7]", true),
            ("::1", "orders", false),
        ] {
            assert_eq!(
                covers(entry, host(authority)),
                covered,
                "{entry} {authority}"
            );
        }
    }
}
