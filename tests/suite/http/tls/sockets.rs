//! Unix sockets both ways, with TLS and without, and who may connect to them.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio_rustls::TlsStream;

use super::{TlsRig, forward_over, send_over};
use crate::support::wire::Wire;
use crate::support::{Config, Proxy, Store, Upstream, put};

async fn connect(path: &std::path::Path) -> UnixStream {
    UnixStream::connect(path).await.expect("it listens")
}

#[tokio::test]
async fn both_ends_may_be_sockets() {
    let dir = TempDir::new().expect("a temporary directory");
    // The path may have the longest name there is.
    let length = 107 - dir.path().as_os_str().len() - 1;
    let front = dir.path().join("s".repeat(length));
    let back = dir.path().join("back.sock");
    let upstream = Upstream::start_unix(&back);
    let config = Config::new(&upstream, &Store::sqlite())
        .with(&format!("{{ listen: 'unix:{}' }}", front.display()));
    let proxy = Proxy::start(&config).await;
    let mut wire = Wire::new(connect(&front).await);
    for token in [1, 2] {
        wire = forward_over(wire, &put("/orders/7").token(token).body("content")).await;
    }
    let (answer, _) = send_over(wire, &put("/orders/7").token(1)).await;
    answer.assert_problem(412, "stale-token");
    assert_eq!(upstream.tokens("order:7"), [1, 2]);
    let arrival = upstream.last();
    assert_eq!(arrival.text(), "content");
    assert_eq!(arrival.head.get("host"), Some("app.test"));
    assert_eq!(arrival.head.get("x-forwarded-proto"), Some("http"));
    let line = proxy.log_of("outcome", "stale-token").await;
    assert_eq!(line["client"], "unix");
}

#[tokio::test]
async fn tls_works_over_a_socket_and_names_peers_there() {
    let rig = TlsRig::new().await;
    let dir = TempDir::new().expect("a temporary directory");
    let front = dir.path().join("front.sock");
    let config = rig
        .mutual("required")
        .with(&format!("{{ listen: 'unix:{}' }}", front.display()))
        .route("{ require_client: [worker.pay.svc] }");
    let _proxy = Proxy::start(&config).await;
    for (name, status) in [("worker.pay.svc", 200), ("other.pay.svc", 403)] {
        let client = rig.named(&[name]);
        let stream = client.over(connect(&front).await).await;
        let stream = TlsStream::from(stream.expect("a handshake"));
        let wire = Wire::new(stream);
        let (answer, _) = send_over(wire, &put("/orders/7").token(1)).await;
        assert_eq!(answer.status(), status, "{name}: {}", answer.text());
    }
    let arrival = rig.upstream.only();
    assert_eq!(arrival.head.get("x-forwarded-proto"), Some("https"));
}

#[tokio::test]
async fn the_directory_decides_who_may_connect_and_only_one_process_listens() {
    let upstream = Upstream::start().await;
    let dir = TempDir::new().expect("a temporary directory");
    let front = dir.path().join("front.sock");
    let listen = format!("{{ listen: 'unix:{}' }}", front.display());
    let [config, other] = [(); 2].map(|()| Config::new(&upstream, &Store::sqlite()).with(&listen));
    let mut proxy = Proxy::start(&config).await;
    let found = std::fs::metadata(&front).expect("it is there");
    assert_eq!(found.permissions().mode() & 0o777, 0o666);
    // A second process takes nothing away, and leaves nothing beside the socket.
    Proxy::refused_for(&other, &["another process listens there"]).await;
    let _still = connect(&front).await;
    let files = std::fs::read_dir(dir.path()).expect("it is there").count();
    assert_eq!(files, 1);
    // The socket that a killed run has left is taken over.
    proxy.kill9();
    let _again = Proxy::start(&config).await;
    let wire = Wire::new(connect(&front).await);
    forward_over(wire, &put("/orders/7").token(1)).await;
}
