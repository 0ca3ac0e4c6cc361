//! Connections that are left undone: the probes are answered all the same, and the kernel holds
//! little of each.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::refused;
use crate::support::{eventually, fenced, get, soon};

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
    assert!(refused(&proxy, "connections").await >= 1.0);
}

/// The bytes of the server's side of a connection that its client has not taken, in
/// bytes.
fn unsent(server: SocketAddr, client: SocketAddr) -> Option<u64> {
    let port = |field: &str| u16::from_str_radix(field.split_once(':')?.1, 16).ok();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ends = (port(fields[1])?, port(fields[2])?);
        let queue = u64::from_str_radix(fields[4].split_once(':')?.0, 16).ok()?;
        (ends == (server.port(), client.port())).then_some(queue)
    })
}

#[tokio::test]
async fn the_kernel_holds_little_of_an_answer_that_is_never_read() {
    let (_upstream, proxy) = fenced("{}").await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .set_recv_buffer_size(4096)
        .expect("a live socket takes options");
    let mut deaf = soon("a connection", socket.connect(proxy.admin()))
        .await
        .expect("a connection");
    let client = deaf.local_addr().expect("an address");
    let asked = get("/metrics").bytes().repeat(500);
    // The server stops reading when it cannot write.
    let asking = tokio::spawn(async move {
        let _ = deaf.write_all(&asked).await;
        std::future::pending::<()>().await;
    });
    let mut before = 0;
    let held = eventually("the server to have written what it can", || {
        let now = unsent(proxy.admin(), client).unwrap_or_default();
        let still = now > 0 && now == before;
        before = now;
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            still.then_some(now)
        }
    })
    .await;
    assert!(held <= 256 << 10, "{held} bytes");
    asking.abort();
}
