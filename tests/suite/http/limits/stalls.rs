//! Clients that ask and do not take: their connection, or their stream, is reset, and the exchange with the
//! upstream runs to its end all the same.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{limited, until_reached};
use crate::support::{Proxy, Step, Upstream, put, soon};

/// Neither the drain nor the settling could let a newer token through within the wait, and one place is all
/// there is.
const STRICT: &str = "
    limits: { write_timeout: 500ms, in_flight: 1 }
    barrier: { wait: 25s, grace: 300s, settle: 300s }";

fn long() -> Step {
    Step::answer("200 OK", "", &"x".repeat(24 << 20))
}

/// The stalled request's permit has settled, and its place is free.
async fn assert_let_go(upstream: &Upstream, proxy: &Proxy) {
    crate::support::eventually("a newer token to pass", || async {
        let answer = proxy.send(put("/orders/7").token(42)).await;
        (answer.status() == 200).then_some(())
    })
    .await;
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_reset() {
    let (upstream, proxy) = limited(STRICT).await;
    upstream.on_token(41, [long()]);
    let mut stalled = proxy.begin(&put("/orders/7").token(41), b"").await;
    let head = soon("the answer's head", stalled.head())
        .await
        .expect("a head");
    until_reached(&proxy, "write-timeout").await;
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
    let (upstream, proxy) = limited("limits: { write_timeout: 5s }").await;
    let megabytes = 4;
    upstream.next([Step::answer("200 OK", "", &"x".repeat(megabytes << 20))]);
    let mut reader = TcpStream::connect(proxy.data())
        .await
        .expect("a connection");
    reader
        .write_all(&put("/orders/7").token(1).bytes())
        .await
        .expect("taken");
    let (mut read, mut piece) = (0, vec![0; 32 << 10]);
    while read < megabytes << 20 {
        let count = soon("more", reader.read(&mut piece))
            .await
            .expect("no reset");
        assert!(count > 0, "the end after {read} bytes");
        read += count;
        // In all it takes longer than the limit.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(super::reached(&proxy, "write-timeout").await < 0.5);
}

/// A stream whose window stays closed, on a connection that is otherwise well.
#[tokio::test]
async fn a_stream_that_takes_nothing_of_its_answer_is_reset_and_its_connection_lives() {
    for way in ["/orders/7", "/elsewhere"] {
        let (upstream, proxy) = limited(STRICT).await;
        upstream.next([long()]);
        let mut client = H2::connect(&proxy).await;
        let (method, token) = if way == "/elsewhere" {
            ("GET", None)
        } else {
            ("PUT", Some("41"))
        };
        client.ask(1, method, way, token).await;
        let (kind, _) = client.next_of(1).await;
        assert_eq!(kind, HEADERS, "{way}: the answer's head");
        let (kind, payload) = client.next_of(1).await;
        assert_eq!(
            (kind, payload),
            (RST_STREAM, vec![0, 0, 0, 8]),
            "{way}: CANCEL"
        );
        until_reached(&proxy, "write-timeout").await;
        if token.is_some() {
            assert_let_go(&upstream, &proxy).await;
        }
        // Its place is free, and the connection carries on.
        crate::support::eventually("another stream to be answered", || async {
            let answer = proxy.send(crate::support::get("/another")).await;
            (answer.status() == 200).then_some(())
        })
        .await;
        client.ask(3, "GET", "/another", None).await;
        assert_eq!(client.next_of(3).await.0, HEADERS);
    }
}

/// One byte of window is enough for hyper to hand a whole small answer over to h2, with its end: it is watched all
/// the same, whoever answers.
#[tokio::test]
async fn an_answer_that_waits_for_its_last_bytes_is_watched_too() {
    for (way, token) in [
        ("/orders/7", Some("41")),
        ("/elsewhere", None),
        ("/orders/8", Some("x")),
    ] {
        let (_upstream, proxy) = limited(STRICT).await;
        let mut client = H2::with_window(&proxy, 1).await;
        client.ask(1, "PUT", way, token).await;
        assert_eq!(
            client.next_of(1).await.0,
            HEADERS,
            "{way}: the answer's head"
        );
        let (kind, payload) = client.next_of(1).await;
        assert_eq!((kind, payload.len()), (DATA, 1), "{way}");
        let (kind, payload) = client.next_of(1).await;
        assert_eq!(
            (kind, payload),
            (RST_STREAM, vec![0, 0, 0, 8]),
            "{way}: CANCEL"
        );
        until_reached(&proxy, "write-timeout").await;
    }
}

/// What is granted later is taken later, up to the end.
#[tokio::test]
async fn an_answer_that_is_taken_bit_by_bit_comes_whole() {
    let (upstream, proxy) = limited("limits: { write_timeout: 20s }").await;
    upstream.next([Step::answer("200 OK", "", &"x".repeat(50_000))]);
    let mut client = H2::with_window(&proxy, 1).await;
    client.ask(1, "PUT", "/orders/7", Some("41")).await;
    assert_eq!(client.next_of(1).await.0, HEADERS);
    let mut read = 0;
    while read < 50_000 {
        let (kind, payload) = client.next_of(1).await;
        assert_eq!(kind, DATA);
        read += payload.len();
        client
            .send(WINDOW_UPDATE, 0, 1, &5000_u32.to_be_bytes())
            .await;
    }
    assert_eq!(client.next_of(1).await, (DATA, Vec::new()), "the end");
}

const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

/// As much of HTTP/2 (RFC 9113) as it takes to open a stream and to grant it nothing.
struct H2(TcpStream);

impl H2 {
    async fn connect(proxy: &Proxy) -> Self {
        Self::with_window(proxy, 0).await
    }

    /// Grants each stream so many bytes.
    async fn with_window(proxy: &Proxy, bytes: u8) -> Self {
        let stream = TcpStream::connect(proxy.data())
            .await
            .expect("a connection");
        let mut client = Self(stream);
        client
            .0
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .expect("taken");
        // SETTINGS_INITIAL_WINDOW_SIZE: 0.
        client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, bytes]).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.0.write_all(&frame).await.expect("the frame is taken");
    }

    /// A request without a body, every field a literal that is not indexed (RFC 7541, 6.2.2).
    async fn ask(&mut self, stream: u32, method: &str, path: &str, token: Option<&str>) {
        let mut block = Vec::new();
        let mut field = |name: &str, value: &str| {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("short"));
                block.extend_from_slice(text.as_bytes());
            }
        };
        field(":method", method);
        field(":scheme", "http");
        field(":authority", "app.test");
        field(":path", path);
        if let Some(token) = token {
            field("x-fencing-token", token);
        }
        // END_STREAM, END_HEADERS.
        self.send(HEADERS, 5, stream, &block).await;
    }

    /// The next frame of a stream; settings are acknowledged on the way.
    async fn next_of(&mut self, wanted: u32) -> (u8, Vec<u8>) {
        loop {
            let mut head = [0; 9];
            soon("a frame", self.0.read_exact(&mut head))
                .await
                .expect("the connection lives");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).expect("short")];
            soon("its payload", self.0.read_exact(&mut payload))
                .await
                .expect("whole");
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            if head[3] == SETTINGS && head[4] & 1 == 0 {
                self.send(SETTINGS, 1, 0, &[]).await;
            }
            if stream == wanted {
                return (head[3], payload);
            }
        }
    }
}
