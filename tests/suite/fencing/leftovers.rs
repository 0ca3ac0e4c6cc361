//! Bytes, or an end, that come over an idle connection to the upstream. They answer no request, so
//! the next request must go over another connection: its permit would otherwise end with an answer
//! that is not its own (guarantee G2).
//!
//! They come while the proxy is stopped, behind the next request. What comes just before a request is
//! sent, so that its worker has not heard of it, is seen too: a test inside has that.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::bare::BareUpstream;
use crate::support::path::unacknowledged;
use crate::support::process::on_one_core;
use crate::support::tls::{Ca, Files, server};
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, eventually, forwarded, get, put, soon,
};

/// An answer, or an end. `config` makes the configuration of a proxy in front of the upstream, with a
/// store of its own.
async fn are_not_used(upstream: &Upstream, config: impl Fn() -> Config) {
    on_one_core();
    for leftover in [Step::answer("200 OK", "", "left over"), Step::Close] {
        let proxy = Proxy::start(&config().with("{ upstream: { idle_timeout: 300s } }")).await;
        // One connection for fenced requests, one for the others: what is quiet is used again.
        let opened = upstream.connections() + 2;
        for token in 1..=5 {
            proxy.forward(put("/orders/7").token(token)).await;
            proxy.forward(get("/orders/7")).await;
        }
        assert_eq!(upstream.connections(), opened);
        let gate = Gate::shut();
        let late = [Step::ok(), Step::Wait(gate.clone()), leftover.clone()];
        upstream.on_token(41, late);
        let request = put("/orders/7").token(41);
        let first = upstream.count();
        let mut exchange = proxy.begin(&request, b"").await;
        exchange.finish().await.assert_forwarded();
        let requests = upstream.count();

        proxy.pause().await;
        exchange.wire.send(&request.bytes()).await.expect("open");
        gate.open();
        upstream
            .until("what is left over", |all| all[first].ended.is_some())
            .await;
        upstream.next([Step::answer("200 OK", "", "its own")]);
        proxy.resume();

        let answer = exchange.finish().await;
        assert_eq!(answer.assert_forwarded().text(), "its own", "{leftover:?}");
        assert_eq!(upstream.count(), requests + 1);
        assert_eq!(upstream.connections(), opened + 1);
        // Nothing is unknown of the resource.
        proxy.forward(put("/orders/7").token(42)).await;
    }
}

#[tokio::test]
async fn over_tcp() {
    let upstream = Upstream::start().await;
    are_not_used(&upstream, || Config::new(&upstream, &Store::sqlite())).await;
}

/// The configuration in front of `url`, whose CA is in this file.
fn trusting(url: &str, ca: &Path) -> Config {
    let tls = format!("upstream: {{ tls: {{ ca_file: {} }} }}", ca.display());
    Config::to(url, &Store::sqlite()).with(&tls)
}

/// A server sends session tickets behind the handshake (RFC 8446, section 4.6.1), which lie there
/// unread when the connection is taken. They are no reason to close it.
#[tokio::test]
async fn over_tls() {
    let (ca, files) = (Ca::new("the upstream's CA"), Files::new());
    let ca_file = files.put("ca.crt", ca.pem());
    let mut config = server(&ca.server(&["localhost"]), None, &[]);
    config.send_tls13_tickets = 4;
    let upstream = Upstream::start_tls(config).await;
    are_not_used(&upstream, || trusting(upstream.url(), &ca_file)).await;
}

/// The beginning of a TLS record shows no byte of its content, and the rest comes behind the next
/// request. It comes by itself, or together with the answer before it.
#[tokio::test]
async fn a_part_of_a_tls_record_is_left_over() {
    let (ca, files) = (Ca::new("the upstream's CA"), Files::new());
    let ca_file = files.put("ca.crt", ca.pem());
    let upstream = BareUpstream::start().await;
    let acceptor = TlsAcceptor::from(Arc::new(server(&ca.server(&["localhost"]), None, &[])));
    let url = format!("https://localhost:{}", upstream.address().port());
    let proxy = Proxy::start(&trusting(&url, &ca_file)).await;
    let accept = || async {
        let handshake = acceptor.accept(upstream.accept().await).await;
        handshake.expect("a handshake")
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
        forwarded(first).await;
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
        read_head(&mut other).await;
        other.write_all(ANSWER.as_bytes()).await.expect("taken");
        other.flush().await.expect("taken");
        assert_eq!(forwarded(second).await.text(), "own", "{together}");
    }
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown";

async fn read_head(stream: &mut TlsStream<TcpStream>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = soon("a head", stream.read_u8()).await;
        head.push(byte.expect("open"));
    }
}
