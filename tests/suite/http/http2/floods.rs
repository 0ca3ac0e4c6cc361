//! Clients that send what is allowed, in numbers that are not: their connections end, the memory
//! does not grow, and everybody else is served meanwhile.

use futures_util::future::join_all;

use super::{fenced, good, is_refusal, is_served};
use crate::support::Proxy;
use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, Outcome, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, head,
};

/// The most that a flood may make the process grow by.
const ROOM: u64 = 48 << 20;
/// The configuration where nothing but the limits ends a connection.
const BRIEF: &str =
    "{ limits: { idle_timeout: 1s, head_timeout: 1s, write_timeout: 2s }, body: { timeout: 1s } }";

/// Plays `flood` beside a healthy client, and looks at the memory.
async fn ends<T>(proxy: &mut Proxy, what: &str, flood: impl Future<Output = T>) -> T {
    is_served(proxy).await;
    let before = proxy.process().memory();
    let mut flood = std::pin::pin!(flood);
    let codes = loop {
        tokio::select! {
            codes = &mut flood => break codes,
            () = is_served(proxy) => {}
        }
    };
    is_served(proxy).await;
    let grown = proxy.process().peak_memory().saturating_sub(before);
    assert!(grown < ROOM, "{what}: {grown} bytes more");
    codes
}

/// Requests that are each followed by `then`.
fn many(count: u32, then: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let head = block(&head("GET", "/orders/7"));
    let mut bytes = Vec::new();
    for n in 0..count {
        let id = 2 * n + 1;
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &head));
        bytes.extend(then(id));
    }
    bytes
}

#[tokio::test]
async fn streams_that_are_opened_to_be_reset_by_either_side() {
    // An increment of 0 is an error of the stream (RFC 9113, 6.9): the proxy resets it.
    for (what, kind, payload) in [
        ("rapid reset", RST_STREAM, 8_u32),
        ("made you reset", WINDOW_UPDATE, 0),
    ] {
        let (upstream, mut proxy) = fenced("{}").await;
        let client = Http2::open(proxy.data()).await;
        let resets = many(20_000, |id| frame(kind, 0, id, &payload.to_be_bytes()));
        let codes = ends(&mut proxy, what, client.flood(resets, false)).await;
        let refused = !codes.is_empty() && !codes.contains(&0);
        assert!(refused || kind == RST_STREAM, "{what}: {codes:?}");
        let reached = upstream.count();
        assert!(
            reached < 5_000,
            "{what}: {reached} of 20000 reached the upstream"
        );
    }
}

#[tokio::test]
async fn a_head_without_an_end() {
    let (upstream, mut proxy) = fenced("{}").await;
    let field = block(&[("x-more", &[b'a'; 1000])]);
    for (what, more) in [("full", &field[..]), ("empty", b"")] {
        let mut client = Http2::open(proxy.data()).await;
        let stream = client.id();
        let head = frame(HEADERS, END_STREAM, stream, &block(&good("/orders/7")));
        client.send(&head).await.expect("a live connection");
        let flood = client.flood(frame(CONTINUATION, 0, stream, more).repeat(50), true);
        let codes = ends(&mut proxy, what, flood).await;
        assert!(
            !codes.is_empty() && !codes.contains(&0),
            "{what}: {codes:?}"
        );
    }
    assert!(upstream.tokens("order:7").is_empty());
}

#[tokio::test]
async fn a_head_that_unfolds_to_megabytes() {
    let (upstream, mut proxy) = fenced("{}").await;
    let mut client = Http2::open(proxy.data()).await;
    let bombs = async {
        for round in 0..50 {
            let mut bomb = block(&good("/orders/7"));
            // One field of 4,000 bytes into the table (RFC 7541, 6.2.1), and then 10,000 times it.
            bomb.extend([0x40, 1, b'x', 127, 0xa1, 0x1e]);
            bomb.extend([b'a'; 4000]);
            bomb.extend([0xbe; 10_000]);
            let stream = client.id();
            let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb);
            if client.send(&head).await.is_err() {
                break;
            }
            let answer = client.answer(stream).await;
            assert!(is_refusal(&answer), "{round}: {answer:?}");
            if !matches!(answer, Outcome::Status(_)) {
                break;
            }
        }
    };
    ends(&mut proxy, "bombs", bombs).await;
    assert!(upstream.tokens("order:7").is_empty());
}

#[tokio::test]
async fn frames_that_ask_for_nothing() {
    let (_upstream, mut proxy) = fenced(BRIEF).await;
    let settings = [0, 3, 0, 0, 0, 100];
    for (what, bytes) in [
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("settings", frame(SETTINGS, 0, 0, &settings)),
        ("empty settings", frame(SETTINGS, 0, 0, &[])),
        ("priorities", frame(PRIORITY, 0, 9, &[0, 0, 0, 0, 1])),
        ("windows", frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("unknown frames", frame(0xbe, 0, 0, &[0; 64])),
    ] {
        // Nothing of this is a request: the connection is idle.
        let client = Http2::open(proxy.data()).await;
        ends(&mut proxy, what, client.flood(bytes.repeat(50), true)).await;
    }
}

#[tokio::test]
async fn data_without_content() {
    let (upstream, mut proxy) = fenced(BRIEF).await;
    let mut client = Http2::open(proxy.data()).await;
    let stream = client.head(&good("/orders/7"), false).await;
    let empty = frame(DATA, 0, stream, b"").repeat(50);
    ends(&mut proxy, "empty DATA", client.flood(empty, true)).await;
    // With nothing but padding in it.
    let mut client = Http2::open(proxy.data()).await;
    let stream = client.head(&good("/orders/7"), false).await;
    let padded = frame(DATA, 8, stream, &[255; 256]).repeat(50);
    ends(&mut proxy, "padding", client.flood(padded, true)).await;
    assert!(upstream.tokens("order:7").is_empty());
}

#[tokio::test]
async fn a_body_byte_by_byte() {
    let (upstream, mut proxy) = fenced("{}").await;
    let ones = frame(DATA, 0, 1, b"1").repeat(200_000);
    let to = proxy.data();
    let uploads = join_all([(); 4].map(|()| async {
        let mut client = Http2::open(to).await;
        client.head(&good("/orders/7"), false).await;
        // As far as the proxy takes them.
        let _ = client.send(&ones).await;
        client
    }));
    ends(&mut proxy, "byte by byte", uploads).await;
    assert!(upstream.tokens("order:7").is_empty());
}
