//! Tests of the lease that a connection is under.

use http::Request;
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::boot_clock::BootClock;
use crate::config::UnknownStatuses;
use crate::proxy::body::Upload;
use crate::store::InstanceId;

fn lease() -> Arc<Lease> {
    let clock = BootClock::from_fn(|| Duration::ZERO);
    let term = Some(Duration::from_secs(5));
    let lease = Lease::new(clock, term, InstanceId::from_bits(1));
    lease.renewed(Duration::ZERO);
    Arc::new(lease)
}

fn upstream(address: &str, lease: &Arc<Lease>) -> Upstream {
    let settings = UpstreamSettings {
        url: UpstreamUrl::Http(address.to_owned()),
        host: HostPolicy::Preserve,
        connect_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        undelivered: Duration::from_secs(5),
        unknown: UnknownStatuses::default(),
        http2: false,
        http2_connections: 1,
        tls: crate::config::UpstreamTlsSettings::default(),
    };
    let metrics = Arc::new(Metrics::new(&[]));
    Upstream::new(&settings, lease, &metrics).expect("an upstream")
}

fn request(upstream: &Upstream) -> Request<UpstreamBody> {
    let body = Upload::empty().send(CancellationToken::new());
    let mut request = Request::new(body);
    *request.uri_mut() = upstream.uri(PathAndQuery::from_static("/"));
    request
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
        let guard = LeaseGuard::new(&lease(), 0, undelivered);
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
    let upstream = upstream("127.0.0.1:1", &lease);
    let within = Duration::ZERO;
    assert!(upstream.reserve(0, within).await.is_ok());
    lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    assert!(upstream.reserve(1, within).await.is_ok());
    let ended = upstream.reserve(0, within).await;
    assert!(matches!(ended, Err(ReserveError::Ended)));
}

#[tokio::test]
async fn a_connection_that_is_made_after_a_rejoin_writes_nothing_for_an_earlier_permit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let lease = lease();
    let upstream = upstream(&address, &lease);
    let reserved = upstream.reserve(0, Duration::ZERO).await.expect("a client");
    lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
    let (pending, _hold) = reserved.send(request(&upstream), false);
    let sent = tokio::spawn(pending.response());
    let (mut socket, _) = listener.accept().await.expect("a connection");
    let mut read = Vec::new();
    let _ = socket.read_to_end(&mut read).await;
    assert!(read.is_empty(), "{}", String::from_utf8_lossy(&read));
    assert!(sent.await.expect("no panic").is_err());
}
