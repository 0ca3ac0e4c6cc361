//! Many clients, slow clients, long bodies: the memory stays bounded, and a client that behaves is
//! served throughout.
//!
//! Short by default. `FENCEPOST_LONG=1` plays the long form: 10,000 idle connections, 1 GiB bodies,
//! a minute of each attack (`FENCEPOST_LONG=1 benches/run.sh --only edge` does that with the
//! release build). The measurements are printed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::echo::noise;
use crate::support::client::Exchange;
use crate::support::http2::{Http2, Outcome, fenced_head};
use crate::support::process::many_descriptors;
use crate::support::wire::chunk;
use crate::support::{Config, Must, Proxy, Step, Store, Upstream, put};

/// The short form's number, or the long one's.
fn scale<T>(short: T, long: T) -> T {
    if std::env::var_os("FENCEPOST_LONG").is_some() {
        long
    } else {
        short
    }
}

/// Bytes that each idle connection may cost.
const PER_CONNECTION: u64 = 40 << 10;
/// The most that the process may grow, whatever else goes on.
const ROOM: u64 = 64 << 20;

/// A proxy before an upstream that keeps no body, and answers as many bytes as the query asks for.
async fn started(more: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    upstream.pour_bodies_into(|_, _| {});
    upstream.otherwise(|head| {
        let Some((path, size)) = head.word(1).split_once('=') else {
            return vec![Step::ok()];
        };
        let size = size.parse().expect("a number");
        let (framing, piece, times, end) = body(path.ends_with("chunks"), size);
        let length = piece.len() as u64 * times;
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        vec![
            Step::raw(&head),
            Step::Repeat(piece, length),
            Step::raw(end),
        ]
    });
    // Each healthy request is a commit, and the disk may be somebody else's for a while.
    let config = Config::new(&upstream, &Store::sqlite())
        .with("store: { timeout: 25s }")
        .with(more);
    let proxy = Proxy::start(&config).await;
    (upstream, proxy)
}

/// A client that sends a fenced request every 100 ms.
struct Healthy {
    stop: CancellationToken,
    task: JoinHandle<(usize, Duration)>,
    memory_before: u64,
}

impl Healthy {
    /// Starts it, once the proxy has served a request.
    async fn start(proxy: &mut Proxy) -> Self {
        proxy.forward(put("/orders/7").token(1)).await;
        let (to, memory_before) = (proxy.data(), proxy.process().memory());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let (mut served, mut slowest) = (0, Duration::ZERO);
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while !stopped.is_cancelled() {
                tick.tick().await;
                let began = Instant::now();
                let answer = put("/orders/healthy").token(served + 1).send(to).await;
                answer.assert_forwarded();
                served += 1;
                slowest = slowest.max(began.elapsed());
            }
            (served, slowest)
        });
        Self {
            stop,
            task,
            memory_before,
        }
    }

    /// Says how it fared.
    async fn end(self, what: &str, proxy: &mut Proxy) -> u64 {
        self.stop.cancel();
        let (served, slowest) = self.task.must().await;
        let process = proxy.process();
        let grown = process.peak_memory().saturating_sub(self.memory_before);
        println!(
            "load: {what}: {served} healthy requests, all served, the slowest in {} ms; memory at most {} MiB, {} MiB more than before",
            slowest.as_millis(),
            process.peak_memory() >> 20,
            grown >> 20,
        );
        grown
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections() {
    let count = scale(1_000, 10_000).min(many_descriptors() / 2);
    let (_upstream, mut proxy) = started(&format!(
        "limits: {{ connections: {}, idle_timeout: 600s, head_timeout: 600s }}",
        count + 100
    ))
    .await;
    let healthy = Healthy::start(&mut proxy).await;
    let mut idle = Vec::new();
    let mut idle_http2 = Vec::new();
    for n in 0..count {
        match n % 4 {
            // Nothing was ever sent on it.
            0 => idle.push(Exchange::open(proxy.data(), "PUT").must().await),
            1 => {
                let mut client = Http2::open(proxy.data()).await;
                let stream = client.head(&fenced_head("/orders/7", "1"), true).await;
                assert_eq!(client.answer(stream).await, Outcome::Status(200));
                idle_http2.push(client);
            }
            _ => {
                let mut kept = Exchange::open(proxy.data(), "PUT").must().await;
                ask_over(&mut kept).await;
                idle.push(kept);
            }
        }
    }
    let what = format!("{count} idle connections, a quarter of them HTTP/2");
    let grown = healthy.end(&what, &mut proxy).await;
    let bound = ROOM + PER_CONNECTION * u64::try_from(count).expect("a count");
    assert!(grown < bound, "{grown} bytes for {count}");
    // They are all still there, and served.
    for kept in idle.iter_mut().step_by(50) {
        ask_over(kept).await;
    }
    for client in idle_http2.iter_mut().step_by(50) {
        let stream = client.head(&fenced_head("/orders/7", "1"), true).await;
        assert_eq!(client.answer(stream).await, Outcome::Status(200));
    }
}

/// Asks over a connection, which stays open.
async fn ask_over(kept: &mut Exchange) {
    let request = put("/orders/7").token(1).bytes();
    kept.wire.send(&request).must().await;
    kept.finish().await.assert_forwarded();
}

/// A client that sends or reads a byte at a time for as long as it is let.
async fn slow(to: SocketAddr, kind: usize) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(to).await?;
    let mut byte = [0];
    let (head, rest): (&[u8], &[u8]) = match kind {
        0 => (b"", b"PUT /orders/slow HTTP/1.1\r\nHost: app.test\r\nX-Slow: "),
        1 => (
            b"PUT /orders/slow HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 1\r\nContent-Length: 1000000\r\n\r\n",
            b"",
        ),
        _ => (
            b"GET /orders/slow?size=67108864 HTTP/1.1\r\nHost: app.test\r\n\r\n",
            b"",
        ),
    };
    stream.write_all(head).await?;
    let mut rest = rest.iter().chain(std::iter::repeat(&b'x'));
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if kind < 2 {
            stream.write_all(&[*rest.next().expect("endless")]).await?;
        } else if stream.read(&mut byte).await? == 0 {
            return Ok(());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients() {
    let count = scale(64, 1_000);
    let (_upstream, mut proxy) = started(
        "{ limits: { head_timeout: 3s, write_timeout: 3s }, body: { timeout: 3s, progress_timeout: 3s } }",
    )
    .await;
    let healthy = Healthy::start(&mut proxy).await;
    let mut clients = JoinSet::new();
    for n in 0..count {
        clients.spawn(slow(proxy.data(), n % 3));
    }
    tokio::time::sleep(scale(Duration::from_secs(6), Duration::from_mins(1))).await;
    let what = format!("{count} clients slow with heads, bodies and reading");
    let grown = healthy.end(&what, &mut proxy).await;
    assert!(
        grown < ROOM + (512 << 10) * u64::try_from(count).expect("a count"),
        "{grown} bytes"
    );
    clients.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies() {
    let size = BLOCK as u64 * scale(1_025, 16_400);
    let (upstream, mut proxy) = started("body: { timeout: 600s }").await;
    let uploads = Arc::new(Mutex::new(BTreeMap::new()));
    let (checked, block) = (Arc::clone(&uploads), noise(BLOCK));
    upstream.pour_bodies_into(move |arrival, piece| {
        let mut checked = checked.lock().expect("no panic under it");
        check(&block, checked.entry(arrival).or_default(), piece);
    });
    let healthy = Healthy::start(&mut proxy).await;
    let mut transfers = JoinSet::new();
    for chunked in [false, true] {
        transfers.spawn(both_ways(proxy.data(), chunked, size));
    }
    let all = async {
        while let Some(moved) = transfers.join_next().await {
            let read = moved.expect("no panic").expect("a whole transfer");
            assert_eq!(read, size, "of a download");
        }
    };
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(500), all)
        .must()
        .await;
    let rate =
        f64::from(u32::try_from(size >> 20).expect("MiB")) * 4.0 / began.elapsed().as_secs_f64();
    let what = format!(
        "2 uploads and 2 downloads of {} MiB at once, {rate:.0} MiB/s",
        size >> 20
    );
    let grown = healthy.end(&what, &mut proxy).await;
    assert!(grown < 24 << 20, "{grown} bytes");
    let uploads = uploads.lock().expect("no panic under it");
    let lengths: Vec<u64> = uploads.values().copied().collect();
    assert_eq!(lengths, [size, size], "of the uploads");
}

/// The length of the block that a long body repeats. It is no power of two, so that nothing can be
/// lost or doubled in blocks unseen.
const BLOCK: usize = 65_521;

/// Compares the next piece of a long body with what it must be.
fn check(block: &[u8], read: &mut u64, mut piece: &[u8]) {
    while !piece.is_empty() {
        let due = &block[usize::try_from(*read % BLOCK as u64).expect("below its length")..];
        let now = piece.len().min(due.len());
        assert!(piece[..now] == due[..now], "other bytes after {read}");
        *read += now as u64;
        piece = &piece[now..];
    }
}

/// A long body, by its length or in chunks: what frames it, its bytes again and again, how often,
/// and what ends it.
fn body(chunked: bool, size: u64) -> (String, Vec<u8>, u64, &'static str) {
    let (piece, times) = (noise(BLOCK), size / BLOCK as u64);
    if chunked {
        let framing = "Transfer-Encoding: chunked".to_owned();
        (framing, chunk(&piece), times, "0\r\n\r\n")
    } else {
        (format!("Content-Length: {size}"), piece, times, "")
    }
}

/// An upload, and a download as long; returns how much came.
async fn both_ways(to: SocketAddr, chunked: bool, size: u64) -> std::io::Result<u64> {
    let way = if chunked { "chunks" } else { "size" };
    let request = put(&format!("/orders/{way}?{way}={size}")).token(1);
    let request = if chunked {
        request.chunks(&[], "")
    } else {
        request.header("Content-Length", size.to_string())
    };
    let mut exchange = Exchange::begin(to, &request, b"").await;
    let (_, piece, times, end) = body(chunked, size);
    for _ in 0..times {
        exchange.wire.send(&piece).await?;
    }
    exchange.wire.send(end.as_bytes()).await?;
    let head = exchange.head().await?;
    assert_eq!(head.word(1), "200", "{head:?}");
    let (mut read, block) = (0, noise(BLOCK));
    let framing = head.response_framing(false);
    let sink = |piece: &[u8]| check(&block, &mut read, piece);
    exchange.wire.body(framing, sink).await?;
    Ok(read)
}
