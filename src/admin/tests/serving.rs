//! The listener: sockets, shutdown, and connections that stall.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::fixture::{Admin, SECRET};
use crate::admin::serve;
use crate::socket::Listener;

/// One request over a connection, closed by the server.
async fn exchange<S: AsyncReadExt + AsyncWriteExt + Unpin>(mut stream: S, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("received");
    answer
}

#[tokio::test]
async fn serves_over_tcp_and_unix_until_shut_down() {
    let admin = Admin::new().await;
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = tcp.local_addr().expect("an address");
    let path = admin.dir.path().join("admin.sock");
    let unix = UnixListener::bind(&path).expect("bound");
    let (stop, stopped) = tokio::sync::watch::channel(());
    let servers: Vec<_> = [Listener::Tcp(tcp), Listener::Unix(unix)]
        .into_iter()
        .map(|listener| {
            let mut stopped = stopped.clone();
            let stopped = async move {
                let _ = stopped.changed().await;
            };
            tokio::spawn(serve(listener, admin.state.clone(), stopped))
        })
        .collect();

    let get = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let stream = TcpStream::connect(address).await.expect("connected");
    let answer = exchange(stream, get).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let post = |token: u32| {
        format!(
            "POST /v1/marks/a/advance HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Bearer {SECRET}\r\nContent-Length: 14\r\n\r\n{{\"token\":\"{token}\"}}"
        )
    };
    let stream = TcpStream::connect(address).await.expect("connected");
    let answer = exchange(stream, &post(44)).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let stream = UnixStream::connect(&path).await.expect("connected");
    let answer = exchange(stream, &post(45)).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let audit = admin.audit();
    assert!(audit[0].contains("admin API, 127.0.0.1:"), "{}", audit[0]);
    assert!(audit[1].contains("admin API, unix, uid "), "{}", audit[1]);

    // An idle connection does not hold up the shutdown.
    let mut idle = TcpStream::connect(address).await.expect("connected");
    stop.send(()).expect("somebody listens");
    for server in servers {
        server.await.expect("ends without a panic");
    }
    assert!(TcpStream::connect(address).await.is_err());
    let mut rest = Vec::new();
    // Closed or reset: either way it is over.
    let _ = idle.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

/// Serves until the test ends.
async fn served(admin: &Admin) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let state = admin.state.clone();
    tokio::spawn(serve(
        Listener::Tcp(listener),
        state,
        std::future::pending(),
    ));
    address
}

/// Time is paused, so it jumps to the next timer whenever everybody waits.
#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_cut_off() {
    let admin = Admin::new().await;
    let address = served(&admin).await;
    for start in [
        "",
        "GET /livez HTTP/1.1\r\nHost:",
        "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(start.as_bytes()).await.expect("sent");
        let began = tokio::time::Instant::now();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("closed");
        assert!(began.elapsed() < Duration::from_secs(20), "{start:?}");
        assert_eq!(
            rest.starts_with("HTTP/1.1 200"),
            start.ends_with("\r\n\r\n"),
            "{rest}"
        );
    }
}

/// An answer that is never read does not hold its connection.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_cut_off() {
    let admin = Admin::new().await;
    let address = served(&admin).await;
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("taken");
    let mut deaf = socket.connect(address).await.expect("connected");
    let asked = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    deaf.write_all(asked.as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(admin.refused("write-timeout").await, 1);
}
