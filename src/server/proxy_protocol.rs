//! Reads the PROXY header in front of a connection (`listen_proxy_protocol`), and not a byte more:
//! the next one may be of a TLS handshake.

use std::io;
use std::net::IpAddr;

use tokio::io::AsyncReadExt as _;

use crate::socket::Socket;
use crate::wire::proxy_header::{ProxyHeader, ProxyHeaderError};

/// The reason why a header was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoHeader {
    #[error(transparent)]
    Malformed(#[from] ProxyHeaderError),
    #[error("the connection ended in its PROXY header")]
    CutShort,
    /// As health checks of TCP do.
    #[error("the connection ended before its first byte")]
    Nothing,
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// Reads the header. `None`: it names no client, and the socket's own address is the client's.
pub(super) async fn read(socket: &mut Socket) -> Result<Option<IpAddr>, NoHeader> {
    let mut bytes = Vec::with_capacity(128);
    loop {
        let more = match ProxyHeader::read(&bytes)? {
            ProxyHeader::Client(ip) => return Ok(Some(ip)),
            ProxyHeader::NoClient => return Ok(None),
            ProxyHeader::More(more) => more as u64,
        };
        if (&mut *socket).take(more).read_buf(&mut bytes).await? == 0 {
            return Err(if bytes.is_empty() {
                NoHeader::Nothing
            } else {
                NoHeader::CutShort
            });
        }
    }
}
