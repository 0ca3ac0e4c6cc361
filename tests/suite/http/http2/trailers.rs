//! Trailers of responses that are malformed or longer than they may be. The library drops some of
//! what is wrong with them, and hands over the rest as if it were all.

use crate::http::before;
use crate::support::bare::BareUpstream;
use crate::support::http2::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, block, frame};
use crate::support::put;

type Field<'a> = (&'a str, &'a [u8]);

/// An upstream that speaks HTTP/2 by prior knowledge and ends every response with these blocks as
/// trailers. Only the last one ends its stream. `head`: of the response, behind its status.
async fn ends_with(head: Vec<u8>, blocks: Vec<Vec<u8>>) -> String {
    let upstream = BareUpstream::start().await;
    let url = upstream.h2c();
    tokio::spawn(async move {
        loop {
            let mut peer = upstream.accept_http2(&[]).await;
            let (head, blocks) = (head.clone(), blocks.clone());
            tokio::spawn(async move {
                while let Ok(seen) = peer.frame().await {
                    if !matches!(seen.kind, HEADERS | DATA) || seen.flags & END_STREAM == 0 {
                        continue;
                    }
                    // A frame has 16 KiB at the most.
                    let section = |end, block: &[u8]| {
                        let mut frames = frame(HEADERS, end, seen.stream, b"");
                        for piece in block.chunks(16 << 10) {
                            frames.extend(frame(CONTINUATION, 0, seen.stream, piece));
                        }
                        frames.extend(frame(CONTINUATION, END_HEADERS, seen.stream, b""));
                        frames
                    };
                    let mut answer = vec![section(0, &[&[0x88], &head[..]].concat())];
                    answer.push(frame(DATA, 0, seen.stream, b"done"));
                    for (at, block) in blocks.iter().enumerate() {
                        let last = at + 1 == blocks.len();
                        answer.push(section(if last { END_STREAM } else { 0 }, block));
                    }
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
async fn a_response_whose_trailers_may_be_cut_is_no_whole_one() {
    let text = vec![b'x'; 300 << 10];
    let long = |kilobytes: usize| ("x-long", &text[..kilobytes << 10]);
    let sum: Field = ("x-sum", b"1");
    let (good, unavailable): (Field, Field) = (("grpc-status", b"0"), ("grpc-status", b"14"));
    let status: Field = (":status", b"500");
    let many = [&[good][..], &[long(20); 14], &[unavailable]].concat();
    let cases: [(&str, &[&[Field]], bool); 9] = [
        ("a short one", &[&[sum]], true),
        ("20 KiB", &[&[long(20)]], true),
        // The library drops a pseudo-header field, and passes the rest on.
        ("a status", &[&[status, sum]], true),
        ("a status behind a field", &[&[sum, status]], false),
        ("a connection's", &[&[("connection", b"close")]], false),
        ("two sections", &[&[good], &[unavailable]], false),
        ("70 KiB", &[&[good, long(70), unavailable]], false),
        // The library would keep the first status and drop the last one.
        ("280 KiB in many lines", &[&many], false),
        ("more than the library takes", &[&[long(300); 4]], false),
    ];
    for (what, sections, whole) in cases {
        let blocks = sections.iter().map(|fields| block(fields)).collect();
        let url = ends_with(Vec::new(), blocks).await;
        let proxy = before(&url, "barrier: { wait: 200ms, settle: 300s }").await;
        let answer = put("/orders/7").token(1).attempt(proxy.data()).await;
        assert_eq!(answer.is_ok(), whole, "{what}: {answer:?}");
        let next = put("/orders/7").token(2).attempt(proxy.data()).await;
        let waits = next.is_ok_and(|next| next.outcome() == Some("older-in-flight"));
        assert_eq!(waits, !whole, "{what}");
    }
}

#[tokio::test]
async fn a_long_head_passes_up_to_a_limit_that_can_be_raised() {
    for (size, more, wanted) in [
        (100 << 10, "{}", (200, None)),
        (300 << 10, "{}", (502, Some("outcome-unknown"))),
        (300 << 10, "upstream: { header_bytes: 1MiB }", (200, None)),
    ] {
        let value = vec![b'x'; 10 << 10];
        let fields = vec![("x-long", &value[..]); size / value.len()];
        let url = ends_with(block(&fields), vec![block(&[("x-sum", b"1")])]).await;
        let proxy = before(&url, more).await;
        let answer = proxy.send(put("/orders/7").token(1)).await;
        let seen = (answer.status(), answer.outcome());
        assert_eq!(seen, wanted, "{size} {more}");
    }
}
