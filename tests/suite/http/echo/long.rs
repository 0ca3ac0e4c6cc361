//! Bodies that fit nowhere: both ways at once, and what the proxy holds of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cases::noise;
use super::servers::{RealServer, ServerKind};
use crate::support::wire::{Wire, chunk};
use crate::support::{Config, Proxy, Step, Store, Upstream};

const MIB: u64 = 1 << 20;

/// How long the bodies are: 1 GiB each way with `FENCEPOST_LONG=1`.
fn length() -> u64 {
    if std::env::var_os("FENCEPOST_LONG").is_some() {
        1024 * MIB
    } else {
        96 * MIB
    }
}

/// The bytes of a body are those of this block, again and again; its length is no power of two, so
/// that nothing can be lost or doubled in blocks.
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

/// A body of [`length`]: the bytes that stand in it again and again, for how long, and what ends
/// it.
fn body(chunked: bool) -> (Vec<u8>, u64, Vec<u8>) {
    let block = block();
    let (times, rest) = (length() / block.len() as u64, length() % block.len() as u64);
    let rest = &block[..usize::try_from(rest).expect("less than a block")];
    if chunked {
        let end = [chunk(rest), b"0\r\n\r\n".to_vec()].concat();
        let block = chunk(&block);
        let all = times * block.len() as u64;
        (block, all, end)
    } else {
        let all = times * block.len() as u64;
        (block.clone(), all, rest.to_vec())
    }
}

fn framing(chunked: bool) -> String {
    if chunked {
        "Transfer-Encoding: chunked".to_owned()
    } else {
        format!("Content-Length: {}", length())
    }
}

/// Checks what comes, and answers with a body as long; how long the uploads were.
async fn upstream(chunked: bool) -> (Upstream, Arc<AtomicU64>) {
    let upstream = Upstream::start().await;
    let checked = Arc::new(AtomicU64::new(0));
    let (told, mut check) = (Arc::clone(&checked), Check::new());
    upstream.pour_bodies_into(move |piece| {
        check.take(piece);
        told.store(check.length, Ordering::Relaxed);
    });
    let (block, length, end) = body(chunked);
    upstream.next([
        Step::raw(&format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", framing(chunked))),
        Step::Repeat(block, length),
        Step::Send(end),
    ]);
    (upstream, checked)
}

/// One upload and one download as long.
async fn exchange(front: SocketAddr, chunked: bool) {
    let mut wire = Wire::connect(front).await.expect("it listens");
    let how = framing(chunked);
    let head =
        format!("PUT /e/0 HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 1\r\n{how}\r\n\r\n");
    wire.send(head.as_bytes()).await.expect("it is taken");
    let (block, all, end) = body(chunked);
    for _ in 0..all / block.len() as u64 {
        wire.send(&block).await.expect("it is taken");
    }
    wire.send(&end).await.expect("it is taken");
    let head = wire.head().await.expect("an answer").expect("not the end");
    assert_eq!(head.word(1), "200", "{head:?}");
    let mut check = Check::new();
    let read = wire.body(head.response_framing(false), |piece| check.take(piece));
    read.await.expect("a whole answer");
    assert_eq!(check.length, length());
}

/// The proxy holds a bounded part of the bodies: far less than one, and not more for long ones.
async fn bounded(chunked: bool, server: Option<ServerKind>) {
    let (upstream, checked) = upstream(chunked).await;
    let to = upstream.address();
    let server = match server {
        None => None,
        Some(kind) => match RealServer::start(kind, to).await {
            None => return,
            server => server,
        },
    };
    let to = server.as_ref().map_or(to, |server| server.address);
    let config = Config::to(&format!("http://{to}"), &Store::sqlite())
        .with("routes: [{ path: '/e/{*rest}', resource: 'e:{rest}', body: { timeout: 600s } }]");
    let mut proxy = Proxy::start(&config).await;
    let before = proxy.process().peak_memory();
    exchange(proxy.data(), chunked).await;
    assert_eq!(checked.load(Ordering::Relaxed), length());
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
    bounded(false, Some(ServerKind::Nginx)).await;
}

#[tokio::test]
async fn long_bodies_in_front_of_haproxy_are_not_held() {
    bounded(true, Some(ServerKind::HaProxy)).await;
}
