//! Bytes, or an end, that come over an idle connection to the upstream. They answer no request, so
//! the next request must go over another connection: its permit would otherwise end with an answer
//! that is not its own (guarantee G2).
//!
//! They come while the proxy is stopped, behind the next request and so many others that its worker
//! does not hear of them before it sends that request.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::client::Exchange;
use crate::support::path::unacknowledged;
use crate::support::process::{many_descriptors, on_one_core};
use crate::support::tls::{Ca, Files, server};
use crate::support::wire::Wire;
use crate::support::{Config, Gate, Proxy, Step, Store, Upstream, eventually, get, put, soon};

/// More than a worker takes from the kernel at once (1,024).
const OTHERS: usize = 1_100;

/// What comes over the idle connection.
#[derive(Clone, Copy, Debug)]
enum Leftover {
    Answer,
    End,
}

async fn is_not_used(upstream: &Upstream, config: Config, leftover: Leftover) {
    on_one_core();
    let _ = many_descriptors();
    let config = config.with(
        "{ upstream: { idle_timeout: 300s }, limits: { connections: 3000, \
         connections_per_client: none, head_timeout: 300s, idle_timeout: 300s } }",
    );
    let proxy = Proxy::start(&config).await;
    let gate = Gate::shut();
    let last = match leftover {
        Leftover::Answer => Step::answer("200 OK", "", "left over"),
        Leftover::End => Step::Close,
    };
    upstream.on_token(41, [Step::ok(), Step::Wait(gate.clone()), last]);
    let request = put("/orders/7").token(41);
    let mut exchange = proxy.begin(&request, b"").await;
    exchange.finish().await.assert_forwarded();
    let mut others = Vec::new();
    for _ in 0..OTHERS {
        others.push(Wire::connect(proxy.data()).await.expect("it listens"));
    }
    // Connections are taken in order, so the worker waits for all of them.
    let read = get("/orders/8");
    let mut newest = Exchange::over(others.pop().expect("the newest"), &read);
    newest.wire.send(&read.bytes()).await.expect("open");
    newest.finish().await.assert_forwarded();
    let (requests, connections) = (upstream.count(), upstream.connections());

    proxy.pause().await;
    exchange.wire.send(&request.bytes()).await.expect("open");
    for other in &mut others {
        other.send(b"G").await.expect("open");
    }
    gate.open();
    upstream
        .until("what is left over", |all| all[0].ended.is_some())
        .await;
    upstream.next([Step::answer("200 OK", "", "its own")]);
    proxy.resume();

    let answer = exchange.finish().await;
    assert_eq!(answer.assert_forwarded().text(), "its own", "{leftover:?}");
    assert_eq!(upstream.count(), requests + 1);
    assert_eq!(upstream.connections(), connections + 1);
    // Nothing is unknown of the resource.
    proxy.forward(put("/orders/7").token(42)).await;
}

#[tokio::test]
async fn over_tcp() {
    for leftover in [Leftover::Answer, Leftover::End] {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &Store::sqlite());
        is_not_used(&upstream, config, leftover).await;
    }
}

#[tokio::test]
async fn over_a_unix_socket() {
    for leftover in [Leftover::Answer, Leftover::End] {
        let dir = TempDir::new().expect("a temporary directory");
        let upstream = Upstream::start_unix(&dir.path().join("upstream.sock"));
        let config = Config::new(&upstream, &Store::sqlite());
        is_not_used(&upstream, config, leftover).await;
    }
}

fn trusting(upstream: &Upstream, ca: &Path) -> Config {
    let tls = format!("upstream: {{ tls: {{ ca_file: {} }} }}", ca.display());
    Config::new(upstream, &Store::sqlite()).with(&tls)
}

#[tokio::test]
async fn over_tls() {
    let (ca, files) = (Ca::new("the upstream's CA"), Files::new());
    let ca_file = files.put("ca.crt", ca.pem());
    for leftover in [Leftover::Answer, Leftover::End] {
        let pair = ca.server(&["localhost"]);
        let upstream = Upstream::start_tls(server(&pair, None, &[])).await;
        let config = trusting(&upstream, &ca_file);
        is_not_used(&upstream, config, leftover).await;
    }
}

/// A server sends session tickets behind the handshake (RFC 8446, section 4.6.1), which lie there
/// unread when the connection is taken. They are no reason to close it.
#[tokio::test]
async fn tickets_of_tls_are_not_left_over() {
    let (ca, files) = (Ca::new("the upstream's CA"), Files::new());
    let ca_file = files.put("ca.crt", ca.pem());
    let mut config = server(&ca.server(&["localhost"]), None, &[]);
    config.send_tls13_tickets = 4;
    let upstream = Upstream::start_tls(config).await;
    let proxy = Proxy::start(&trusting(&upstream, &ca_file)).await;
    for token in 1..=5 {
        proxy.forward(put("/orders/7").token(token)).await;
        proxy.forward(get("/orders/7")).await;
    }
    // One for fenced requests, one for the others.
    assert_eq!(upstream.connections(), 2);
}

/// The beginning of a TLS record shows no byte of its content, and the rest comes behind the next
/// request. It comes by itself, or together with the answer before it.
#[tokio::test]
async fn a_part_of_a_tls_record_is_left_over() {
    let (ca, files) = (Ca::new("the upstream's CA"), Files::new());
    let ca_file = files.put("ca.crt", ca.pem());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let acceptor = TlsAcceptor::from(Arc::new(server(&ca.server(&["localhost"]), None, &[])));
    let tls = format!("upstream: {{ tls: {{ ca_file: {} }} }}", ca_file.display());
    let url = format!("https://localhost:{port}");
    let proxy = Proxy::start(&Config::to(&url, &Store::sqlite()).with(&tls)).await;
    let accept = || async {
        let (socket, _) = soon("a connection", listener.accept()).await.expect("open");
        acceptor.accept(socket).await.expect("a handshake")
    };
    for (together, token) in [(false, 40), (true, 50)] {
        let path = format!("/orders/{token}");
        let first = proxy.start_request(put(&path).token(token));
        let mut idle = accept().await;
        read_head(&mut idle).await;
        let (socket, session) = idle.get_mut();
        socket.set_nodelay(true).expect("open");
        let mut record = |text: &str| {
            let mut record = Vec::new();
            let written = session.writer().write_all(text.as_bytes());
            written.expect("room");
            session.write_tls(&mut record).expect("it is memory");
            record
        };
        let (own, foreign) = (record(ANSWER), record(&ANSWER.replace("own", "BAD")));
        let begin = if together { 10 } else { 0 };
        let sent = [&own, &foreign[..begin]].concat();
        socket.write_all(&sent).await.expect("taken");
        first.await.expect("no panic").assert_forwarded();
        socket.write_all(&foreign[begin..10]).await.expect("taken");
        let here = socket.local_addr().expect("open");
        let there = socket.peer_addr().expect("open");
        eventually("the part to arrive", || async {
            (unacknowledged(Some(here), there) == Some(0)).then_some(())
        })
        .await;

        let second = proxy.start_request(put(&path).token(token + 1));
        let mut other = accept().await;
        // The connection may be gone.
        let _ = socket.write_all(&foreign[10..]).await;
        serve(&mut other).await;
        let answered = second.await.expect("no panic");
        assert_eq!(answered.assert_forwarded().text(), "own", "{together}");
        drop(other);
    }
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown";

/// Answers one request.
async fn serve(stream: &mut TlsStream<TcpStream>) {
    read_head(stream).await;
    stream.write_all(ANSWER.as_bytes()).await.expect("taken");
    stream.flush().await.expect("taken");
}

async fn read_head(stream: &mut TlsStream<TcpStream>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = soon("a head", stream.read_u8()).await;
        head.push(byte.expect("open"));
    }
}
