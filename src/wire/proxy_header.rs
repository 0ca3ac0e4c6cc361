//! The header of the PROXY protocol, versions 1 and 2, by which a load balancer names the client of
//! a connection (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, 2.1 and 2.2).
//!
//! The header stands before the connection's own bytes, of which nothing may be taken. So the
//! reader says how many bytes certainly belong to the header, and never asks for more. Crates for
//! this accept ports such as `+80`, `UNKNOWNx`, datagrams or broken fields behind the addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Version 1 begins with this.
const TEXT: &[u8] = b"PROXY ";
/// Version 2 begins with this.
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before its addresses.
const BINARY_START: usize = 16;
/// The shortest of all: `PROXY UNKNOWN` and its end.
const SHORTEST: usize = 15;
/// The most bytes of version 1.
const LONGEST_TEXT: usize = 107;
const LONG: &str = "the line is longer than 107 bytes";
/// The bytes of two Unix sockets' addresses.
const UNIX_ADDRESSES: usize = 216;

/// The result of reading what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// At least this many bytes more belong to the header.
    More(usize),
    /// It is complete, and names the client.
    Client(IpAddr),
    /// It is complete, and names none: the connection is the load balancer's own, or its client has
    /// no address of IP.
    NoClient,
}

/// The bytes are not a header; why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeaderError(&'static str);

impl fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ProxyHeaderError {}

impl ProxyHeader {
    /// Reads the bytes that have come, of which none is behind the header.
    ///
    /// # Errors
    ///
    /// The bytes are not, or do not begin, a header.
    pub fn read(bytes: &[u8]) -> Result<Self, ProxyHeaderError> {
        let begins = |start: &[u8]| bytes.iter().zip(start).all(|(byte, other)| byte == other);
        if begins(BINARY) && bytes.len() >= BINARY.len() {
            return binary(bytes);
        }
        if begins(TEXT) && bytes.len() >= TEXT.len() {
            return text(bytes);
        }
        if begins(BINARY) || begins(TEXT) {
            return Ok(Self::More(SHORTEST - bytes.len()));
        }
        Err(ProxyHeaderError("there is no PROXY header"))
    }
}

fn text(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let wrong = |why| Err(ProxyHeaderError(why));
    let Some(end) = bytes.iter().position(|byte| b"\r\n".contains(byte)) else {
        let shortest = match bytes.get(TEXT.len()..TEXT.len() + 5) {
            Some(b"TCP4 ") => "PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n".len(),
            Some(b"TCP6 ") => "PROXY TCP6 :: :: 1 1\r\n".len(),
            _ => SHORTEST,
        };
        let more = shortest.saturating_sub(bytes.len()).max(2);
        if bytes.len() + more > LONGEST_TEXT {
            return wrong(LONG);
        }
        return Ok(ProxyHeader::More(more));
    };
    if end + 2 > LONGEST_TEXT {
        return wrong(LONG);
    }
    match &bytes[end..] {
        b"\r" => return Ok(ProxyHeader::More(1)),
        b"\r\n" => {}
        _ => return wrong("the line does not end in CR and LF"),
    }
    let Ok(line) = str::from_utf8(&bytes[TEXT.len()..end]) else {
        return wrong("the line is not text");
    };
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        // The receiver ignores what follows.
        ["UNKNOWN", ..] => Ok(ProxyHeader::NoClient),
        ["TCP4", from, to, from_port, to_port] => {
            let ip = address::<Ipv4Addr>(from, to, [from_port, to_port])?;
            Ok(ProxyHeader::Client(ip.into()))
        }
        ["TCP6", from, to, from_port, to_port] => {
            let ip = address::<Ipv6Addr>(from, to, [from_port, to_port])?;
            Ok(ProxyHeader::Client(ip.to_canonical()))
        }
        _ => wrong("the line has no known protocol, or not its four fields"),
    }
}

fn address<T: FromStr>(from: &str, to: &str, ports: [&str; 2]) -> Result<T, ProxyHeaderError> {
    let (Ok(from), Ok(_)) = (from.parse::<T>(), to.parse::<T>()) else {
        return Err(ProxyHeaderError("an address of the line is not valid"));
    };
    for port in ports {
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let padded = port.len() > 1 && port.starts_with('0');
        if !digits || padded || port.parse::<u16>().is_err() {
            return Err(ProxyHeaderError("a port of the line is not valid"));
        }
    }
    Ok(from)
}

fn binary(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let wrong = |why| Err(ProxyHeaderError(why));
    let local = match bytes.get(BINARY.len()) {
        None => return Ok(ProxyHeader::More(BINARY_START - bytes.len())),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return wrong("the version or the command is unknown"),
    };
    let Some((start, rest)) = bytes.split_first_chunk::<BINARY_START>() else {
        return Ok(ProxyHeader::More(BINARY_START - bytes.len()));
    };
    let [.., family, high, low] = *start;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if rest.len() < length {
        return Ok(ProxyHeader::More(length - rest.len()));
    }
    if rest.len() > length {
        return wrong("there are bytes behind the header");
    }
    // Whatever it says of addresses is ignored.
    if local {
        return Ok(ProxyHeader::NoClient);
    }
    let client = |ip: Option<IpAddr>| ip.map_or(ProxyHeader::NoClient, ProxyHeader::Client);
    let (found, addresses) = match family {
        0x00 => (Some(client(None)), 0),
        0x11 => {
            let ip = rest.first_chunk::<4>().map(|ip| Ipv4Addr::from(*ip).into());
            (Some(client(ip)), 12)
        }
        0x21 => {
            let ip = rest.first_chunk::<16>().map(|ip| Ipv6Addr::from(*ip));
            (Some(client(ip.map(|ip| ip.to_canonical()))), 36)
        }
        0x31 => (Some(client(None)), UNIX_ADDRESSES),
        _ => (None, 0),
    };
    let Some(found) = found else {
        return wrong("the addresses are of an unknown kind, or of datagrams");
    };
    let Some(mut fields) = rest.get(addresses..) else {
        return wrong("the addresses are cut short");
    };
    while !fields.is_empty() {
        let length = match fields {
            [_, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return wrong("a field behind the addresses is cut short"),
        };
        let Some(next) = fields.get(3 + length..) else {
            return wrong("a field behind the addresses is cut short");
        };
        fields = next;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a header as it comes in, byte by byte at worst; never asks for a byte behind it.
    fn read(header: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
        for step in [1, usize::MAX] {
            let mut come = 0;
            loop {
                match ProxyHeader::read(&header[..come]) {
                    Ok(ProxyHeader::More(more)) => {
                        assert!(more > 0 && come + more <= header.len(), "{header:?} {come}");
                        come += more.min(step);
                    }
                    read if step == 1 && read.is_ok() => {
                        assert_eq!(come, header.len());
                        break;
                    }
                    read => return read,
                }
            }
        }
        unreachable!("the second pass returns")
    }

    fn client(ip: &str) -> ProxyHeader {
        ProxyHeader::Client(ip.parse().expect("an address"))
    }

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [BINARY, &[command, family], &length, rest].concat()
    }

    #[test]
    fn lines_name_the_client_to_the_byte() {
        for (line, expected) in [
            (
                "PROXY TCP4 192.0.2.7 10.0.0.1 56324 443",
                client("192.0.2.7"),
            ),
            ("PROXY TCP4 1.1.1.1 1.1.1.1 1 1", client("1.1.1.1")),
            ("PROXY TCP6 2001:db8::7 ::1 65535 0", client("2001:db8::7")),
            ("PROXY TCP6 :: :: 1 1", client("::")),
            ("PROXY TCP6 ::ffff:192.0.2.7 ::1 1 1", client("192.0.2.7")),
            (
                "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
                 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535",
                client("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ),
            ("PROXY UNKNOWN", ProxyHeader::NoClient),
            ("PROXY UNKNOWN ffff::1 x 1 2 3", ProxyHeader::NoClient),
        ] {
            assert_eq!(
                read(format!("{line}\r\n").as_bytes()),
                Ok(expected),
                "{line}"
            );
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "GET / HTTP/1.1\r\n",
            "proxy TCP4 192.0.2.7 10.0.0.1 1 2\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\rx",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 +443\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 0443\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 65536 443\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 \r\n",
            "PROXY TCP4 192.0.2.7  10.0.0.1 56324 443\r\n",
            "PROXY TCP4 192.0.2.07 10.0.0.1 56324 443\r\n",
            "PROXY TCP4 2001:db8::7 2001:db8::8 56324 443\r\n",
            "PROXY TCP6 192.0.2.7 10.0.0.1 56324 443\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 443 \r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324      \r\n",
            "PROXY UNKNOWNx\r\n",
            "PROXY UDP4 192.0.2.7 10.0.0.1 56324 443\r\n",
            "PROXY  TCP4 192.0.2.7 10.0.0.1 56324 443\r\n",
        ] {
            // What comes behind it does not help.
            assert!(read(format!("{line}xx").as_bytes()).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_line_has_at_most_107_bytes_however_it_comes() {
        for length in 100..115 {
            let header = format!("PROXY UNKNOWN {}\r\n", "x".repeat(length - 16));
            assert_eq!(header.len(), length);
            if length <= LONGEST_TEXT {
                assert_eq!(read(header.as_bytes()), Ok(ProxyHeader::NoClient));
            } else {
                // By every size of the pieces.
                for come in 0..=length {
                    let read = ProxyHeader::read(&header.as_bytes()[..come]);
                    let ends = matches!(read, Ok(ProxyHeader::NoClient));
                    assert!(!ends, "{come} of {length}");
                }
            }
        }
    }

    #[test]
    fn binary_headers_name_the_client_and_nothing_else_passes() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 1, 2, 3, 4];
        let mut v6 = [0; 36];
        v6[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        let with_field = |field: &[u8]| v2(0x21, 0x11, &[&v4, field].concat());
        for (header, expected) in [
            (v2(0x21, 0x11, &v4), client("192.0.2.7")),
            (v2(0x21, 0x21, &v6), client("2001:db8::")),
            (
                with_field(&[4, 0, 0, 0xea, 0, 2, 1, 2]),
                client("192.0.2.7"),
            ),
            (v2(0x21, 0x31, &[0; 216]), ProxyHeader::NoClient),
            (v2(0x21, 0x00, &[]), ProxyHeader::NoClient),
            (v2(0x20, 0x00, &[]), ProxyHeader::NoClient),
            (v2(0x20, 0x11, &v4), ProxyHeader::NoClient),
            (v2(0x20, 0xff, &[1]), ProxyHeader::NoClient),
        ] {
            assert_eq!(read(&header), Ok(expected), "{header:?}");
        }
        for header in [
            v2(0x11, 0x11, &v4),
            v2(0x22, 0x11, &v4),
            v2(0x21, 0x12, &v4),
            v2(0x21, 0x10, &v4),
            v2(0x21, 0x41, &v4),
            v2(0x21, 0x11, &v4[..11]),
            v2(0x21, 0x21, &v6[..35]),
            v2(0x21, 0x31, &[0; 215]),
            with_field(&[4]),
            with_field(&[4, 0, 2, 1]),
        ] {
            assert!(read(&header).is_err(), "{header:?}");
        }
    }
}
