//! The bytes that the kernel has to send and the other side has not acknowledged, from
//! `/proc/net/tcp`: the sockets of dead processes stand there too.

use std::net::{IpAddr, SocketAddr};

/// Bytes that were not acknowledged, over all sockets with this other address, and with this own
/// one if it is given; `None`: there is no such socket.
pub fn unacknowledged(from: Option<SocketAddr>, to: SocketAddr) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux lists its sockets");
    let (from, to) = (from.map(listed), listed(to));
    let rows = table.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let own = words.next()?;
        if words.next()? != to || from.as_ref().is_some_and(|from| from != own) {
            return None;
        }
        let (queued, _) = words.nth(1)?.split_once(':')?;
        u64::from_str_radix(queued, 16).ok()
    });
    // The end of a stream counts as one, and says nothing.
    rows.map(|queued| queued.saturating_sub(1))
        .reduce(|sum, queued| sum + queued)
}

/// Four bytes in the machine's order, and the port.
fn listed(address: SocketAddr) -> String {
    let IpAddr::V4(ip) = address.ip() else {
        panic!("{address} is not in this table");
    };
    let ip = u32::from_ne_bytes(ip.octets());
    format!("{ip:08X}:{:04X}", address.port())
}
