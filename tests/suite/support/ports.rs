//! Free ports for servers that cannot be told to take port 0.

use std::net::TcpListener;

/// A port of the loopback that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("the loopback has free ports")
        .port()
}
