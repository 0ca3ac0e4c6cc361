//! Trailers that are malformed, or longer than they may be, towards either side. The library drops
//! what is wrong with them and takes the rest for a whole message.

use super::{good, is_served, started};
use crate::support::bare::BareUpstream;
use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, Outcome, block, frame,
};
use crate::support::{Config, Proxy, Store, put};

const PROTOCOL_ERROR: u32 = 1;

fn trailers(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
}

#[tokio::test]
async fn a_pseudo_header_field_in_trailers_ends_its_stream_and_no_other() {
    let (upstream, proxy) = started("{}").await;
    let mut client = Http2::open(proxy.data()).await;
    let other = client.head(&good("/orders/1"), false).await;
    client.data(other, b"abc", false).await;
    for fields in [
        &[(":method", &b"PUT"[..])][..],
        &[("x-sum", b"1"), (":path", b"/orders/1")],
    ] {
        let stream = client.head(&good("/orders/2"), false).await;
        client.data(stream, b"abc", false).await;
        let bytes = trailers(stream, &block(fields));
        client.send(&bytes).await.expect("it is taken");
        let answer = client.answer(stream).await;
        assert_eq!(answer, Outcome::Reset(PROTOCOL_ERROR), "{fields:?}");
    }
    let bytes = trailers(other, &block(&[("x-sum", b"1")]));
    client.send(&bytes).await.expect("it is taken");
    assert_eq!(client.answer(other).await, Outcome::Status(200));
    assert_eq!(upstream.only().target(), "/orders/1");
    is_served(&proxy).await;
}

/// In whatever form HPACK has the name, and in however many frames and pieces the block comes.
#[tokio::test]
async fn a_pseudo_header_field_is_known_in_every_form() {
    let (upstream, proxy) = started("{}").await;
    let mut client = Http2::open(proxy.data()).await;
    // The head puts `:path: /orders/2` into the table, where it becomes number 62.
    let mut fields = good("/");
    fields.retain(|(name, _)| *name != ":path");
    let mut head = [&[0x44, 9][..], b"/orders/2"].concat();
    head.extend(block(&fields));
    let (name, value) = (&b"\x40\x07:status"[..], &b"\x03200"[..]);
    for (form, block) in [
        ("the static table", vec![0x82]),
        (
            "a literal with a name of the static table",
            b"\x04\x02/8".to_vec(),
        ),
        ("a literal that goes into the table", [name, value].concat()),
        ("the dynamic table", vec![0xbe]),
        // b8 84 8d 36 a3: `:status`.
        (
            "Huffman's code",
            b"\x00\x85\xb8\x84\x8d\x36\xa3\x03200".to_vec(),
        ),
    ] {
        for cut in [0, 1, block.len() - 1, block.len()] {
            let stream = client.id();
            let sent = frame(HEADERS, END_HEADERS, stream, &head);
            client.send(&sent).await.expect("it is taken");
            let pieces = [
                frame(HEADERS, END_STREAM, stream, &block[..cut]),
                frame(CONTINUATION, END_HEADERS, stream, &block[cut..]),
            ];
            for byte in pieces.concat() {
                client.send(&[byte]).await.expect("it is taken");
            }
            let answer = client.answer(stream).await;
            assert_eq!(
                answer,
                Outcome::Reset(PROTOCOL_ERROR),
                "{form}, cut at {cut}"
            );
        }
    }
    assert_eq!(upstream.count(), 0);
    is_served(&proxy).await;
}

#[tokio::test]
async fn trailers_over_the_limits_are_refused() {
    let (upstream, proxy) = started("limits: { header_count: 20, header_bytes: 4KiB }").await;
    let (long, far_too_long) = (vec![b'x'; 4090], vec![b'x'; 9000]);
    let many = vec![("x-sum", &b"1"[..]); 21];
    for (fields, expected) in [
        (many, Outcome::Status(431)),
        (vec![("x-sum", &*long)], Outcome::Status(431)),
        // The library would take the trailers and drop this line.
        (
            vec![("x-sum", &*far_too_long)],
            Outcome::Reset(PROTOCOL_ERROR),
        ),
    ] {
        let mut client = Http2::open(proxy.data()).await;
        let stream = client.head(&good("/orders/2"), false).await;
        client.data(stream, b"abc", false).await;
        let bytes = trailers(stream, &block(&fields));
        client.send(&bytes).await.expect("it is taken");
        assert_eq!(client.answer(stream).await, expected);
    }
    assert_eq!(upstream.count(), 0);
    let metrics = proxy.metrics().await;
    for limit in ["header-count", "header-bytes"] {
        let reached = metrics.sum("fencepost_limit_reached_total", &[("limit", limit)]);
        assert!(reached > 0.5, "{limit}");
    }
    is_served(&proxy).await;
}

/// An upstream that speaks HTTP/2 by prior knowledge and ends every response with this block.
async fn ends_with(block: Vec<u8>) -> String {
    let upstream = BareUpstream::start().await;
    let url = upstream.h2c();
    tokio::spawn(async move {
        loop {
            let mut peer = upstream.accept_http2(&[]).await;
            let block = block.clone();
            tokio::spawn(async move {
                while let Ok(seen) = peer.frame().await {
                    if !matches!(seen.kind, HEADERS | DATA) || seen.flags & END_STREAM == 0 {
                        continue;
                    }
                    let mut answer = vec![
                        frame(HEADERS, END_HEADERS, seen.stream, &[0x88]),
                        frame(DATA, 0, seen.stream, b"done"),
                        frame(HEADERS, END_STREAM, seen.stream, b""),
                    ];
                    // A frame has 16 KiB at the most.
                    let pieces = block.chunks(16 << 10);
                    answer.extend(pieces.map(|piece| frame(CONTINUATION, 0, seen.stream, piece)));
                    answer.push(frame(CONTINUATION, END_HEADERS, seen.stream, b""));
                    if peer.send(&answer.concat()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// A malformed response is not passed off as whole, and does not end its request.
#[tokio::test]
async fn a_response_whose_trailers_are_malformed_is_no_whole_one() {
    let long = vec![b'x'; 20 << 10];
    for (name, value, whole) in [
        ("x-sum", &b"1"[..], true),
        (":status", b"500", false),
        (":path", b"/", false),
        // The library would drop this line.
        ("x-long", &*long, false),
    ] {
        let fields = block(&[("x-first", b"1"), (name, value)]);
        let config = Config::to(&ends_with(fields).await, &Store::sqlite())
            .with("barrier: { wait: 200ms, settle: 300s }");
        let proxy = Proxy::start(&config).await;
        let answer = put("/orders/7").token(1).attempt(proxy.data()).await;
        assert_eq!(answer.is_ok(), whole, "{name}: {answer:?}");
        let next = put("/orders/7").token(2).attempt(proxy.data()).await;
        let waits = next.is_ok_and(|next| next.outcome() == Some("older-in-flight"));
        assert_eq!(waits, !whole, "{name}");
    }
}
