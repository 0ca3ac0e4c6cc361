//! Bodies that fit nowhere: both ways at once, and what the proxy holds of them.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::cases::noise;
use super::servers::{Kind, Server};
use crate::support::wire::{Framing, Io, Wire};
use crate::support::{Config, Proxy, Store};

const MIB: u64 = 1 << 20;

/// How long the bodies are: 1 GiB each way with `FENCEPOST_LONG=1`.
fn length() -> u64 {
    if std::env::var_os("FENCEPOST_LONG").is_some() {
        1024 * MIB
    } else {
        96 * MIB
    }
}

/// The bytes of a body are those of this block, again and again; its length is no power of two, so that
/// nothing can be lost or doubled in blocks.
fn block() -> Vec<u8> {
    noise(65_521)
}

/// Compares a body with what it ought to be, as it comes.
struct Check {
    block: Vec<u8>,
    at: usize,
    length: u64,
}

impl Check {
    fn new() -> Self {
        Self {
            block: block(),
            at: 0,
            length: 0,
        }
    }

    fn take(&mut self, mut piece: &[u8]) {
        self.length += piece.len() as u64;
        while !piece.is_empty() {
            let now = piece.len().min(self.block.len() - self.at);
            let same = piece[..now] == self.block[self.at..self.at + now];
            assert!(same, "other bytes before byte {}", self.length);
            self.at = (self.at + now) % self.block.len();
            piece = &piece[now..];
        }
    }
}

async fn write(stream: &mut (impl tokio::io::AsyncWrite + Unpin), length: u64, chunked: bool) {
    let block = block();
    let mut left = length;
    while left > 0 {
        let now = left.min(block.len() as u64);
        let piece = &block[..usize::try_from(now).expect("a block's length")];
        if chunked {
            let head = format!("{now:x}\r\n");
            stream
                .write_all(head.as_bytes())
                .await
                .expect("it is taken");
        }
        stream.write_all(piece).await.expect("it is taken");
        if chunked {
            stream.write_all(b"\r\n").await.expect("it is taken");
        }
        left -= now;
    }
    if chunked {
        stream.write_all(b"0\r\n\r\n").await.expect("it is taken");
    }
}

/// Takes one upload, checks it, and answers with a body as long.
async fn upstream(listener: TcpListener) -> u64 {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    let chunked = String::from_utf8_lossy(&head)
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    let mut wire = Wire::new(Io::Tcp(stream));
    let framing = if chunked {
        Framing::Chunked
    } else {
        Framing::Length(usize::try_from(length()).expect("64 bits"))
    };
    let mut check = Check::new();
    let read = wire.body(framing, |piece| check.take(piece)).await;
    read.expect("a whole upload");
    let how = if chunked {
        "Transfer-Encoding: chunked".to_owned()
    } else {
        format!("Content-Length: {}", length())
    };
    let head = format!("HTTP/1.1 200 OK\r\n{how}\r\n\r\n");
    wire.send(head.as_bytes()).await.expect("it is taken");
    write(&mut wire.into_io(), length(), chunked).await;
    check.length
}

/// One upload and one download as long.
async fn exchange(front: SocketAddr, chunked: bool) {
    let mut stream = TcpStream::connect(front).await.expect("it listens");
    let how = if chunked {
        "Transfer-Encoding: chunked".to_owned()
    } else {
        format!("Content-Length: {}", length())
    };
    let head =
        format!("PUT /e/0 HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 1\r\n{how}\r\n\r\n");
    stream
        .write_all(head.as_bytes())
        .await
        .expect("it is taken");
    write(&mut stream, length(), chunked).await;
    let mut wire = Wire::new(Io::Tcp(stream));
    let head = wire.head().await.expect("an answer").expect("not the end");
    assert_eq!(head.word(1), "200", "{head:?}");
    let mut check = Check::new();
    let read = wire.body(head.response_framing(false), |piece| check.take(piece));
    read.await.expect("a whole answer");
    assert_eq!(check.length, length());
}

/// The proxy holds a bounded part of the bodies: far less than one, and not more for long ones.
async fn bounded(chunked: bool, server: Option<(Kind, &str)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = listener.local_addr().expect("it is bound");
    let server = match server {
        None => None,
        Some((kind, test)) => match Server::start(kind, to, test).await {
            None => return,
            server => server,
        },
    };
    let to = server.as_ref().map_or(to, |server| server.address);
    let config = Config::to(&format!("http://{to}"), &Store::sqlite())
        .with("routes: [{ path: '/e/{*rest}', resource: 'e:{rest}', body: { timeout: 600s } }]");
    let mut proxy = Proxy::start(&config).await;
    let before = proxy.process().peak_memory();
    let upstream = tokio::spawn(upstream(listener));
    exchange(proxy.data(), chunked).await;
    assert_eq!(upstream.await.expect("no panic"), length());
    let grown = proxy.process().peak_memory() - before;
    eprintln!(
        "{} MiB each way, chunked: {chunked}, server behind: {}: {} KiB more at the peak than the {} KiB before",
        length() / MIB,
        server.is_some(),
        grown / 1024,
        before / 1024
    );
    assert!(grown < 24 * MIB, "{grown} bytes more than before");
}

#[tokio::test]
async fn long_bodies_with_a_length_are_not_held() {
    bounded(false, None).await;
}

#[tokio::test]
async fn long_bodies_in_chunks_are_not_held() {
    bounded(true, None).await;
}

#[tokio::test]
async fn long_bodies_in_front_of_nginx_are_not_held() {
    let test = "echo::long::long_bodies_in_front_of_nginx_are_not_held";
    bounded(false, Some((Kind::Nginx, test))).await;
}

#[tokio::test]
async fn long_bodies_in_front_of_haproxy_are_not_held() {
    let test = "echo::long::long_bodies_in_front_of_haproxy_are_not_held";
    bounded(true, Some((Kind::HaProxy, test))).await;
}
