//! The PROXY header in front of a connection: it ends where another reader finds its end, names the
//! client that this one finds, and no byte behind it is taken.

use std::net::IpAddr;

use ::proxy_header::{ParseConfig, ProxyHeader as OtherReader};
use fencepost::wire::proxy_header::{ProxyHeader, ProxyHeaderError};

use crate::{Seen, Target, Verdict, hold};

pub const TARGET: Target = Target {
    name: "proxy_header",
    check,
    dictionary: include_str!("../dictionaries/proxy_header.dict"),
};

/// Where version 2 has its command, and the command that names no client.
const COMMAND: (usize, u8) = (12, 0x20);

/// The function under test.
pub type Read = dyn Fn(&[u8]) -> Result<ProxyHeader, ProxyHeaderError>;

fn check(data: &[u8]) -> Verdict {
    check_of(&ProxyHeader::read, data)
}

/// The client, and how many bytes were taken. `None`: refused, or cut short.
fn taken(read: &Read, data: &[u8], step: usize) -> Option<(Option<IpAddr>, usize)> {
    let mut come = 0;
    loop {
        match read(&data[..come]).ok()? {
            ProxyHeader::More(more) => come += more.min(step),
            ProxyHeader::Client(ip) => return Some((Some(ip), come)),
            ProxyHeader::NoClient => return Some((None, come)),
        }
        if come > data.len() {
            return None;
        }
    }
}

pub fn check_of(read: &Read, data: &[u8]) -> Verdict {
    let found = taken(read, data, usize::MAX);
    let again = taken(read, data, 1);
    hold!(
        found == again,
        "at once {found:?}, and byte by byte {again:?}"
    );
    let Some((client, length)) = found else {
        return Ok(Seen::Refused);
    };
    let binary = data.starts_with(b"\r");
    if binary && data.get(COMMAND.0) == Some(&COMMAND.1) {
        hold!(client.is_none(), "a LOCAL connection has a client");
        return Ok(Seen::Accepted);
    }
    // That reader is more lenient, so it has to accept all of these.
    let theirs = OtherReader::parse(data, ParseConfig::default());
    let theirs = theirs.ok().map(|(header, length)| {
        let address = header.proxied_address();
        (address.map(|one| one.source.ip().to_canonical()), length)
    });
    hold!(
        theirs == Some((client, length)),
        "{client:?} in {length} bytes, and by another reader {theirs:?}"
    );
    Ok(Seen::Accepted)
}
