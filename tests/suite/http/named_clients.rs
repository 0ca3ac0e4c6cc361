//! Clients that others name: the PROXY protocol in front of a connection, and `X-Forwarded-For` of
//! trusted proxies.

use std::net::Ipv4Addr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::support::client::Exchange;
use crate::support::tls::{Ca, Files, TlsClient};
use crate::support::wire::{Io, Wire};
use crate::support::{
    Answer, Config, Gate, Proxy, Request, Step, Store, Upstream, get, post, put, soon,
};

const LIMITS: &str = "fencepost_limit_reached_total";
/// A load balancer's address in the tests.
const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

async fn started(more: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite()).with(more)).await;
    (upstream, proxy)
}

fn line(ip: &str) -> Vec<u8> {
    format!("PROXY TCP4 {ip} 10.0.0.1 56324 443\r\n").into_bytes()
}

/// Version 2, with a command and the addresses of a family.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
    let start = b"\r\n\r\n\0\r\nQUIT\n";
    [&start[..], &[command, family], &length, rest].concat()
}

/// A connection that begins with a header, in one write with its request.
async fn begin(proxy: &Proxy, header: &[u8], request: &Request) -> Exchange {
    let wire = Wire::connect(proxy.data()).await.expect("it listens");
    let mut exchange = Exchange::over(wire, request);
    let bytes = [header, &request.bytes()].concat();
    exchange.wire.send(&bytes).await.expect("it is taken");
    exchange
}

async fn send(proxy: &Proxy, header: &[u8], request: &Request) -> Answer {
    begin(proxy, header, request).await.finish().await
}

/// Nothing is answered.
async fn is_closed(proxy: &Proxy, header: &[u8]) {
    let mut exchange = begin(proxy, header, &put("/orders/7").token(1)).await;
    let closed = soon("the close", exchange.wire.some()).await;
    assert!(
        closed.is_err() || closed.is_ok_and(|bytes| bytes.is_empty()),
        "{}",
        header.escape_ascii()
    );
}

async fn reached(proxy: &Proxy, limit: &str, times: f64) {
    let counted = |count| f64::abs(count - times) < 0.5;
    proxy
        .until_metric(LIMITS, &[("limit", limit)], counted)
        .await;
}

async fn logs_refusal_of(proxy: &Proxy, client: &str) {
    proxy
        .logged("the refusal", |line| {
            line["outcome"] == "stale-token" && line["client"] == client
        })
        .await;
}

#[tokio::test]
async fn a_proxy_header_names_the_client_of_its_connection() {
    let (upstream, proxy) = started("listen_proxy_protocol: true").await;
    let v4 = [192, 0, 2, 8, 10, 0, 0, 1, 1, 2, 3, 4];
    let mut v6 = [0; 36];
    v6[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
    v6[15] = 7;
    let field = [&v4[..], &[0xea, 0, 2, 1, 2]].concat();
    for (header, client) in [
        (line("192.0.2.7"), "192.0.2.7"),
        (binary(0x21, 0x11, &field), "192.0.2.8"),
        (binary(0x21, 0x21, &v6), "2001:db8::7"),
        // These name no client.
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (binary(0x20, 0x00, &[]), "127.0.0.1"),
    ] {
        // What the client says of itself does not count.
        let read = get("/orders/7").header("X-Forwarded-For", "203.0.113.9");
        send(&proxy, &header, &read).await.assert_forwarded();
        let arrival = upstream.last();
        assert_eq!(
            arrival.head.get("x-forwarded-for"),
            Some(&*format!("203.0.113.9, {client}"))
        );
        proxy.send_named(&header, 9).await.assert_forwarded();
        let refused = proxy.send_named(&header, 1).await;
        refused.assert_problem(412, "stale-token");
        logs_refusal_of(&proxy, client).await;
    }
    reached(&proxy, "proxy-protocol", 0.0).await;
}

impl Proxy {
    async fn send_named(&self, header: &[u8], token: u64) -> Answer {
        send(self, header, &put("/orders/7").token(token)).await
    }
}

#[tokio::test]
async fn a_connection_without_a_valid_header_is_closed_and_counted() {
    let (upstream, proxy) =
        started("{ listen_proxy_protocol: true, limits: { head_timeout: 300ms } }").await;
    let datagram = binary(0x21, 0x12, &[0; 12]);
    let cut = binary(0x21, 0x11, &[0; 11]);
    let bad: [&[u8]; 6] = [
        b"",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 +443\r\n",
        b"PROXY TCP4 192.0.2.007 10.0.0.1 56324 443\r\n",
        &datagram,
        &cut,
    ];
    for header in bad {
        is_closed(&proxy, header).await;
    }
    reached(&proxy, "proxy-protocol", 6.0).await;
    let mut slow = Wire::connect(proxy.data()).await.expect("it listens");
    slow.send(b"PROXY TCP4 192.0").await.expect("it is taken");
    let closed = soon("the close", slow.some()).await;
    assert!(closed.is_err() || closed.is_ok_and(|bytes| bytes.is_empty()));
    reached(&proxy, "head-timeout", 1.0).await;
    // Health checks of TCP say nothing.
    drop(Wire::connect(proxy.data()).await.expect("it listens"));
    proxy
        .until_metric("fencepost_connections", &[], |open| open < 0.5)
        .await;
    reached(&proxy, "proxy-protocol", 6.0).await;
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_header_stands_in_front_of_tls() {
    let (ca, files) = (Ca::new("the test's CA"), Files::new());
    files.put_pair("tls", &ca.server(&["localhost"]));
    let (upstream, proxy) = started(&format!(
        "{{ listen_proxy_protocol: true, tls: {{ cert_file: {}, key_file: {} }} }}",
        files.path("tls.crt").display(),
        files.path("tls.key").display(),
    ))
    .await;
    let mut socket = TcpStream::connect(proxy.data()).await.expect("it listens");
    let header = line("192.0.2.7");
    socket.write_all(&header).await.expect("it is taken");
    let stream = TlsClient::trusting(&ca).over(socket).await;
    let stream = TlsStream::from(stream.expect("a handshake"));
    let request = put("/orders/7").token(1);
    let mut exchange = Exchange::over(Wire::new(Io::Tls(Box::new(stream))), &request);
    let sent = exchange.wire.send(&request.bytes()).await;
    sent.expect("it is taken");
    exchange.finish().await.assert_forwarded();
    let arrival = upstream.last();
    assert_eq!(arrival.head.get("x-forwarded-for"), Some("192.0.2.7"));
    // A handshake is no header.
    let without = TlsClient::trusting(&ca).wire(proxy.data()).await;
    assert!(without.is_err());
    reached(&proxy, "proxy-protocol", 1.0).await;
}

#[tokio::test]
async fn connections_count_for_the_client_that_the_header_names() {
    let (upstream, proxy) =
        started("{ listen_proxy_protocol: true, limits: { connections_per_client: 1 } }").await;
    let gate = Gate::shut();
    upstream.when(
        |head| head.word(1) == "/slow",
        [Step::Wait(gate.clone()), Step::ok()],
    );
    let mut held = begin(&proxy, &line("192.0.2.7"), &get("/slow")).await;
    upstream.reached(1).await;
    is_closed(&proxy, &line("192.0.2.7")).await;
    reached(&proxy, "connections-per-client", 1.0).await;
    proxy
        .until_metric("fencepost_connections", &[], |open| open < 1.5)
        .await;
    let other = send(&proxy, &line("192.0.2.8"), &get("/orders/7")).await;
    other.assert_forwarded();
    gate.open();
    held.finish().await.assert_forwarded();
    drop(held);
    proxy
        .until_metric("fencepost_connections", &[], |open| open < 0.5)
        .await;
    let again = send(&proxy, &line("192.0.2.7"), &get("/orders/7")).await;
    again.assert_forwarded();
}

#[tokio::test]
async fn only_a_trusted_proxy_may_send_a_header() {
    let (upstream, proxy) = started(
        "{ listen_proxy_protocol: true, trusted_proxies: [127.0.0.1, 10.0.0.0/8],
           claim: { addresses: [192.0.2.7] } }",
    )
    .await;
    let claim = post("/.well-known/fencing/claim")
        .header("X-Fencing-Resource", "order:7")
        .token(1);
    let named = send(&proxy, &line("192.0.2.7"), &claim).await;
    assert_eq!(named.status(), 204, "{}", named.text());
    let other = send(&proxy, &line("192.0.2.8"), &claim).await;
    other.assert_problem(403, "client-refused");
    // A proxy behind the load balancer names its client in turn; nobody else does.
    let naming = claim.clone().header("X-Forwarded-For", "192.0.2.7");
    let behind = send(&proxy, &line("10.1.2.3"), &naming).await;
    assert_eq!(behind.status(), 204, "{}", behind.text());
    let spoofed = send(&proxy, &line("192.0.2.8"), &naming).await;
    spoofed.assert_problem(403, "client-refused");
    // Another peer is not heard at all.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((BALANCER, 0).into()).expect("of this machine");
    let stream = socket.connect(proxy.data()).await.expect("it listens");
    let mut wire = Wire::new(Io::Tcp(stream));
    // The proxy may have closed already.
    let _ = wire
        .send(&[line("192.0.2.7"), claim.bytes()].concat())
        .await;
    let closed = soon("the close", wire.some()).await;
    assert!(closed.is_err() || closed.is_ok_and(|bytes| bytes.is_empty()));
    reached(&proxy, "proxy-protocol", 1.0).await;
    assert_eq!(upstream.count(), 0);
}

/// A client can begin `X-Forwarded-For` with any address. The proxy in front appends the one that
/// it has seen.
#[tokio::test]
async fn the_client_behind_trusted_proxies_is_read_from_the_right() {
    let (upstream, proxy) =
        started("{ trusted_proxies: [127.0.0.9, 10.0.0.0/8], claim: { addresses: [192.0.2.7] } }")
            .await;
    let claim = post("/.well-known/fencing/claim")
        .header("X-Fencing-Resource", "order:7")
        .token(5);
    for (from, forwarded, status, client) in [
        (BALANCER, "192.0.2.7, 198.51.100.1", 403, "198.51.100.1"),
        (
            BALANCER,
            "192.0.2.7, 198.51.100.1, 10.0.0.2",
            403,
            "198.51.100.1",
        ),
        (BALANCER, "192.0.2.7, unknown, 10.0.0.2", 403, "10.0.0.2"),
        (BALANCER, "192.0.2.7, ", 403, "127.0.0.9"),
        // Nobody trusts this peer.
        (Ipv4Addr::LOCALHOST, "192.0.2.7", 403, "127.0.0.1"),
        (BALANCER, "198.51.100.1, 192.0.2.7", 204, "192.0.2.7"),
        (BALANCER, "192.0.2.7, 10.0.0.2", 204, "192.0.2.7"),
    ] {
        let claim = claim.clone().header("X-Forwarded-For", forwarded);
        let answer = claim.send_from(from, proxy.data()).await;
        assert_eq!(answer.status(), status, "{forwarded}: {}", answer.text());
        if status == 204 {
            let stale = put("/orders/7")
                .token(1)
                .header("X-Forwarded-For", forwarded);
            let refused = stale.send_from(from, proxy.data()).await;
            refused.assert_problem(412, "stale-token");
            logs_refusal_of(&proxy, client).await;
        } else {
            proxy
                .logged("the refusal", |line| {
                    line["outcome"] == "client-refused"
                        && line["client"] == client
                        && line["forwarded_for"] == forwarded.trim()
                })
                .await;
        }
    }
    // The upstream still reads who has connected.
    let read = get("/orders/7").header("X-Forwarded-For", "192.0.2.7");
    let answer = read.send_from(BALANCER, proxy.data()).await;
    answer.assert_forwarded();
    let arrival = upstream.last();
    assert_eq!(
        arrival.head.get("x-forwarded-for"),
        Some("192.0.2.7, 127.0.0.9")
    );
}

#[tokio::test]
async fn shares_are_of_the_clients_behind_a_trusted_proxy() {
    let (upstream, proxy) = started(
        "{ trusted_proxies: [127.0.0.1],
           limits: { in_flight: 8, in_flight_per_client: 1, connections_per_client: 1 } }",
    )
    .await;
    let gate = Gate::shut();
    upstream.when(
        |head| head.word(1) == "/slow",
        [Step::Wait(gate.clone()), Step::ok()],
    );
    let of = |request: Request, client: &str| {
        // Each begins it with an address of its own choice.
        request.header(
            "X-Forwarded-For",
            format!("203.0.113.{}, {client}", client.len()),
        )
    };
    let mut held = proxy.begin(&of(get("/slow"), "192.0.2.7"), b"").await;
    upstream.reached(1).await;
    let more = proxy.send(of(get("/orders/7"), "192.0.2.7")).await;
    more.assert_problem(503, "overloaded");
    reached(&proxy, "in-flight-per-client", 1.0).await;
    let other = proxy.send(of(get("/orders/7"), "192.0.2.8")).await;
    other.assert_forwarded();
    gate.open();
    held.finish().await.assert_forwarded();
    // The connections of the proxy carry the requests of many.
    reached(&proxy, "connections-per-client", 0.0).await;
}
