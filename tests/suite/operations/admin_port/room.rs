//! Connections that are left undone: the probes are answered all the same.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::refused;
use crate::support::{fenced, get};

/// The kubelet waits one second at the least; and tries three times. The deadline of a head is
/// beyond all three.
const PATIENCE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn connections_that_are_left_undone_keep_no_probe_out() {
    let (_upstream, proxy) = fenced("{}").await;
    for begun in [
        "",
        "GET /livez HTTP/1.1\r\nHost:",
        "POST /v1/marks/a/advance HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    ] {
        let mut undone = Vec::new();
        for _ in 0..400 {
            let mut stream = TcpStream::connect(proxy.admin())
                .await
                .expect("the kernel accepts");
            // One that has made room for others takes no more.
            let _ = stream.write_all(begun.as_bytes()).await;
            undone.push(stream);
        }
        for probe in ["/livez", "/readyz", "/metrics"] {
            let mut answered = false;
            for _ in 0..3 {
                let asked = get(probe);
                let answer = tokio::time::timeout(PATIENCE, asked.attempt(proxy.admin()));
                let answer = answer.await.ok().and_then(Result::ok);
                answered |= answer.is_some_and(|answer| answer.status() == 200);
            }
            assert!(answered, "{probe} beside {begun:?}");
        }
        drop(undone);
    }
    // How many, is up to the speed of the machine: heads that take too long are closed as well.
    assert!(refused(&proxy, "connections").await >= 1);
}
