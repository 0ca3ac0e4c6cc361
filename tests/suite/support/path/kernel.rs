//! The bytes that the kernel has to send and the other side has not acknowledged, from
//! `/proc/net/tcp`: the sockets of dead processes stand there too.

use std::net::{Ipv4Addr, SocketAddr};

/// Bytes that were not acknowledged, over all sockets with this other address, and with this own
/// one if it is given; `None`: there is no such socket.
pub fn unacknowledged(from: Option<SocketAddr>, to: SocketAddr) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux lists its sockets");
    // Most lines are of others, and there are thousands.
    let port = format!(":{:04X} ", to.port());
    table
        .lines()
        .filter(|line| line.contains(&port))
        .filter_map(row)
        .filter(|row| row.1 == to && from.is_none_or(|from| row.0 == from))
        // The end of a stream counts as one, and says nothing.
        .map(|(.., queued)| queued.saturating_sub(1))
        .reduce(|sum, queued| sum + queued)
}

/// Own address, other address, bytes in the send queue.
fn row(line: &str) -> Option<(SocketAddr, SocketAddr, u64)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (from, to) = (address(words.next()?)?, address(words.next()?)?);
    let (queued, _) = words.nth(1)?.split_once(':')?;
    Some((from, to, u64::from_str_radix(queued, 16).ok()?))
}

/// Four bytes in the machine's order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}
