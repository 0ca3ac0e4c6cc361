//! Clients that ask and do not take: their connection, or their stream, is reset, and the exchange
//! with the upstream runs to its end all the same.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::http2::{
    DATA, END_STREAM, Frame, HEADERS, Http2, RST_STREAM, WINDOW_UPDATE, code, fenced_head, frame,
    head,
};
use crate::support::{Must, Proxy, Step, Upstream, fenced, get, put, soon};

const CANCEL: u32 = 8;

/// Neither the drain nor the settling could let a newer token through within the wait, and one
/// place is all there is.
const STRICT: &str = "
    limits: { write_timeout: 500ms, in_flight: 1 }
    barrier: { wait: 25s, grace: 300s, settle: 300s }";

fn long() -> Step {
    Step::answer("200 OK", "", &"x".repeat(24 << 20))
}

/// The stalled request's permit has settled, and its place is free.
async fn assert_let_go(upstream: &Upstream, proxy: &Proxy) {
    proxy.until_forwarded(put("/orders/7").token(42)).await;
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_reset() {
    let (upstream, proxy) = fenced(STRICT).await;
    upstream.on_token(41, [long()]);
    let mut stalled = proxy.begin(&put("/orders/7").token(41), b"").await;
    let head = soon("the answer's head", stalled.head()).must().await;
    proxy.until_reached("write-timeout", 1).await;
    assert_let_go(&upstream, &proxy).await;
    let rest = soon(
        "the rest",
        stalled.wire.body(head.response_framing(false), |_| {}),
    )
    .await;
    rest.expect_err("reset, not ended as if it were whole");
}

/// Slow is not stalled: what is taken now and then is taken.
#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_it() {
    let (upstream, proxy) = fenced("limits: { write_timeout: 2s }").await;
    let megabytes = 4;
    upstream.next([Step::answer("200 OK", "", &"x".repeat(megabytes << 20))]);
    let mut reader = TcpStream::connect(proxy.data()).must().await;
    reader
        .write_all(&put("/orders/7").token(1).bytes())
        .must()
        .await;
    let (mut read, mut piece) = (0, vec![0; 64 << 10]);
    while read < megabytes << 20 {
        let count = soon("more", reader.read(&mut piece)).must().await;
        assert!(count > 0, "the end after {read} bytes");
        read += count;
        // In all it takes longer than the limit.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(proxy.reached("write-timeout").await, 0);
}

/// A stream whose window stays closed, on a connection that is otherwise well.
#[tokio::test]
async fn a_stream_that_takes_nothing_of_its_answer_is_reset_and_its_connection_lives() {
    for (path, token) in [("/orders/7", Some("41")), ("/elsewhere", None)] {
        let (upstream, proxy) = fenced(STRICT).await;
        upstream.next([long()]);
        let mut client = granting(&proxy, 0).await;
        ask(&mut client, path, token).await;
        assert_eq!(next_of(&mut client, 1).await.kind, HEADERS, "{path}");
        let reset = next_of(&mut client, 1).await;
        assert_eq!((reset.kind, code(&reset.payload)), (RST_STREAM, CANCEL));
        proxy.until_reached("write-timeout", 1).await;
        if token.is_some() {
            assert_let_go(&upstream, &proxy).await;
        }
        // Its place is free, and the connection carries on.
        proxy.until_forwarded(get("/another")).await;
        ask(&mut client, "/another", None).await;
        assert_eq!(next_of(&mut client, 3).await.kind, HEADERS);
    }
}

/// A window that opens bit by bit lets the whole answer through.
#[tokio::test]
async fn an_answer_that_is_taken_bit_by_bit_comes_whole() {
    let (upstream, proxy) = fenced("limits: { write_timeout: 20s }").await;
    upstream.next([Step::answer("200 OK", "", &"x".repeat(50_000))]);
    let mut client = granting(&proxy, 1).await;
    ask(&mut client, "/orders/7", Some("41")).await;
    assert_eq!(next_of(&mut client, 1).await.kind, HEADERS);
    let mut read = 0;
    loop {
        let data = next_of(&mut client, 1).await;
        assert_eq!(data.kind, DATA);
        read += data.payload.len();
        if data.flags & END_STREAM != 0 {
            break;
        }
        let more = frame(WINDOW_UPDATE, 0, 1, &5000_u32.to_be_bytes());
        client.send(&more).must().await;
    }
    assert_eq!(read, 50_000);
}

/// A client that grants each stream this many bytes.
async fn granting(proxy: &Proxy, bytes: u32) -> Http2 {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    Http2::with_settings(proxy.data(), &[(INITIAL_WINDOW_SIZE, bytes)]).await
}

/// Sends a write with this token, or a read without one.
async fn ask(client: &mut Http2, path: &str, token: Option<&str>) {
    let fields = token.map_or_else(|| head("GET", path), |token| fenced_head(path, token));
    client.head(&fields, true).await;
}

/// The next frame of a stream.
async fn next_of(client: &mut Http2, stream: u32) -> Frame {
    client
        .until("a frame", |frame| frame.stream == stream)
        .await
}
