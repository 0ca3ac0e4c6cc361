//! An upstream that does nothing by itself: the test takes its connections, and reads and writes
//! them, over HTTP/1 ([`crate::support::wire`]) or HTTP/2 ([`crate::support::http2`]).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::Must;
use super::http2::Http2;
use super::upstream::response;
use super::wait::soon;
use super::wire::{Head, Wire};

pub struct BareUpstream(TcpListener);

/// An address that answers no SYN: the queue of its listener is full.
pub struct Silent {
    _listener: TcpListener,
    _queued: TcpStream,
}

impl Silent {
    /// `None`: the port is taken.
    pub async fn at(address: SocketAddr) -> Option<Self> {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(address).ok()?;
        let listener = socket.listen(0).expect("it listens");
        let queued = TcpStream::connect(address).must().await;
        let second = TcpStream::connect(address);
        let second = tokio::time::timeout(Duration::from_millis(100), second).await;
        assert!(second.is_err(), "a full queue answers no SYN");
        Some(Self {
            _listener: listener,
            _queued: queued,
        })
    }
}

impl BareUpstream {
    pub async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").must().await)
    }

    /// One whose kernel takes no more than some kilobytes that are not read.
    pub fn narrow() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("an option");
        let any = "127.0.0.1:0".parse().expect("an address");
        socket.bind(any).expect("the loopback has free ports");
        Self(socket.listen(16).expect("it listens"))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    /// The proxy's `upstream.url` for HTTP/1.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The proxy's `upstream.url` for HTTP/2.
    pub fn h2c(&self) -> String {
        format!("h2c://{}", self.address())
    }

    /// The next connection.
    pub async fn accept(&self) -> TcpStream {
        soon("a connection", self.0.accept()).must().await.0
    }

    /// The next connection, for HTTP/1.
    pub async fn wire(&self) -> Wire {
        Wire::new(self.accept().await)
    }

    /// The next connection, its preface read and these SETTINGS sent.
    pub async fn accept_http2(&self, settings: &[(u16, u32)]) -> Http2 {
        Http2::serve_over(self.accept().await, settings).await
    }

    /// Answers the next request, over a connection of its own, with a small 200; returns its head.
    pub async fn serve(&self) -> Head {
        let mut wire = self.wire().await;
        let head = soon("a request", wire.head()).must().await;
        let answer = response("200 OK", "", "done\n");
        wire.send(answer.as_bytes()).must().await;
        head.expect("a head")
    }
}
