//! Tests of the lease that a connection is under, and of its age over HTTP/2.

use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::socket::UpstreamSocket;
use super::*;
use crate::body::RequestBody;
use crate::boot_clock::BootClock;
use crate::config::{Positive, Span};
use crate::http1::Fields;
use crate::http1::{RequestHead, Target};
use crate::socket::Socket;
use crate::store::InstanceId;

fn lease() -> Arc<Lease> {
    let clock = BootClock::from_fn(|| Duration::ZERO);
    let term = Duration::from_secs(5);
    let lease = Lease::new(clock, term, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    Arc::new(lease)
}

pub(super) fn settings(url: UpstreamUrl) -> UpstreamSettings {
    let mut settings = UpstreamSettings::default();
    settings.url = url;
    settings.connect_timeout = Positive::seconds(5);
    settings.timeout = Positive::seconds(5);
    settings.idle_timeout = Span(Duration::from_hours(1));
    settings
}

/// To a port of this host, without TLS.
pub(super) fn connecting(port: u16, idle_timeout: Duration) -> Connecting {
    let authority = Authority::try_from(format!("127.0.0.1:{port}")).expect("an address");
    let mut settings = settings(UpstreamUrl::Http(authority.to_string()));
    settings.connect_timeout = Positive::seconds(20);
    settings.idle_timeout = Span(idle_timeout);
    Connecting::new(&settings, &authority, None, &Arc::new(Metrics::new(&[])))
}

fn upstream(url: UpstreamUrl, lease: &Arc<Lease>) -> Upstream {
    let settings = settings(url);
    let metrics = Arc::new(Metrics::new(&[]));
    Upstream::new(&settings, lease, &metrics).expect("an upstream")
}

fn request() -> UpstreamRequest {
    let target = Target::new(PathAndQuery::from_static("/"), None);
    let fields = Fields::default();
    UpstreamRequest {
        head: RequestHead::new(Method::GET, target, Version::HTTP_11, fields),
        body: RequestBody::empty().send(Arc::default(), true),
    }
}

/// A single probe that is lost on a silent connection must not end it.
#[tokio::test]
async fn several_probes_go_out_before_the_user_timeout() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("its address");
    for (undelivered, every) in [(10_000, 2), (100, 1)] {
        let undelivered = Duration::from_millis(undelivered);
        let stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("a connection");
        let guard = LeaseGuard {
            lease: lease(),
            incarnation: 0,
            undelivered,
        };
        guard
            .prepare(&stream)
            .expect("the kernel knows the options");
        let socket = socket2::SockRef::from(&stream);
        assert_eq!(
            socket.tcp_user_timeout().expect("it is set"),
            Some(undelivered)
        );
        let every = Duration::from_secs(every);
        assert_eq!(socket.tcp_keepalive_time().expect("it is set"), every);
        assert_eq!(socket.tcp_keepalive_interval().expect("it is set"), every);
    }
}

#[tokio::test]
async fn a_permit_of_an_earlier_incarnation_gets_no_connection_of_a_later_one() {
    let lease = lease();
    let upstream = upstream(UpstreamUrl::Http("127.0.0.1:1".to_owned()), &lease);
    assert!(upstream.reserve(Some(0)).await.is_ok());
    lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    assert!(upstream.reserve(Some(1)).await.is_ok());
    assert!(upstream.reserve(Some(0)).await.is_err());
}

#[tokio::test]
async fn a_connection_that_is_made_after_a_rejoin_writes_nothing_for_an_earlier_permit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let lease = lease();
    let upstream = upstream(UpstreamUrl::Http(address), &lease);
    let reserved = upstream.reserve(Some(0)).await.expect("a client");
    lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    let sent = tokio::spawn(upstream.send(reserved, request()));
    let (mut socket, _) = listener.accept().await.expect("a connection");
    let mut read = Vec::new();
    let _ = socket.read_to_end(&mut read).await;
    assert!(read.is_empty(), "{}", String::from_utf8_lossy(&read));
    assert!(sent.await.expect("no panic").is_err());
}

/// The rest of it stays in the HTTP/2 library, which would send it later.
#[tokio::test]
async fn a_write_that_the_lease_refuses_leaves_something_unsent() {
    let (ours, _theirs) = tokio::net::UnixStream::pair().expect("a pair");
    let lease = lease();
    let guard = LeaseGuard {
        lease: Arc::clone(&lease),
        incarnation: 0,
        undelivered: Duration::ZERO,
    };
    let counted = Metrics::new(&[]).route("r").in_flight();
    let mut socket = UpstreamSocket::new(Socket::Right(ours), Some(guard), counted);
    assert_eq!(socket.write(b"one").await.expect("written"), 3);
    assert!(!socket.lock().blocked);
    lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    socket.write(b"two").await.expect_err("refused");
    assert!(socket.lock().blocked);
    assert_eq!(socket.lock().written, 3);
}

fn send(upstream: &Arc<Upstream>) -> tokio::task::JoinHandle<StatusCode> {
    let upstream = Arc::clone(upstream);
    tokio::spawn(async move {
        let reserved = upstream.reserve(None).await.expect("a connection");
        let sent = upstream.send(reserved, request()).await;
        let response = sent.expect("a response");
        let status = response.status();
        response.body.collect().await.expect("whole");
        status
    })
}

/// The upstream's name may have another address by now. What is open on a connection goes on.
#[tokio::test]
async fn an_old_http_2_connection_takes_no_new_request() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let upstream = Arc::new(upstream(UpstreamUrl::H2c(address), &lease()));
    let (tx, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for connection in 0.. {
            let (socket, _) = listener.accept().await.expect("a connection");
            let tx = tx.clone();
            tokio::spawn(async move {
                let mut served = h2::server::handshake(socket).await.expect("HTTP/2");
                while let Some(Ok((_, respond))) = served.accept().await {
                    let _ = tx.send((connection, respond));
                }
            });
        }
    });
    let mut begun = async || {
        let sent = send(&upstream);
        let (connection, respond) = arrived.recv().await.expect("a request");
        (connection, respond, sent)
    };
    let finished = async |(connection, mut respond, sent): Begun| {
        let responded = respond.send_response(Response::new(()), true);
        responded.expect("an open stream");
        assert_eq!(sent.await.expect("no panic"), StatusCode::OK);
        connection
    };
    let (idle, open) = (begun().await, begun().await);
    assert_eq!(finished(idle).await, 0);
    assert_eq!(finished(begun().await).await, 0);
    tokio::time::pause();
    // Timers count whole milliseconds.
    tokio::time::advance(connect::MAX_AGE + Duration::from_millis(2)).await;
    tokio::time::resume();
    assert_eq!(finished(begun().await).await, 2);
    assert_eq!(finished(open).await, 1);
}

/// The connection that has a request, the answer to it, and its client.
type Begun = (
    i32,
    h2::server::SendResponse<bytes::Bytes>,
    tokio::task::JoinHandle<StatusCode>,
);
