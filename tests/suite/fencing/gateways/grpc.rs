//! A gateway that has lost its service tells a gRPC caller so in a response with the HTTP status
//! 200: by a `grpc-status`, in the head (Envoy's, and nginx's by `error_page`) or in trailers.

use crate::support::bare::BareUpstream;
use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, block, frame};
use crate::support::{Answer, Config, Proxy, Request, Store, post};

type FieldSlice<'a> = &'a [(&'a str, &'a [u8])];

const HEAD: FieldSlice<'_> = &[(":status", b"200"), ("content-type", b"application/grpc")];
/// nginx's answer with `error_page 502 = @lost` and `add_header grpc-status 14; return 204`.
const NO_CONTENT: FieldSlice<'_> = &[(":status", b"204")];
const TEXT: FieldSlice<'_> = &[(":status", b"503"), ("content-type", b"text/html")];

fn call(token: u64) -> Request {
    post("/test.Ledger/Put")
        .header("Content-Type", "application/grpc")
        .header("TE", "trailers")
        .header("X-Account", "7")
        .token(token)
        .body(b"\0\0\0\0\x01x")
}

/// The answer to the next token after 41 has got this head, and these trailers if any.
async fn next_after(
    config: &str,
    head: &[FieldSlice<'_>],
    trailers: Option<FieldSlice<'_>>,
) -> Answer {
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.h2c(), &Store::sqlite())
        .with("barrier: { wait: 200ms, settle: 300s }")
        .with("routes: [{ path: '/test.Ledger/{method}', resource: 'ledger:{header.x-account}' }]")
        .with(config);
    let proxy = Proxy::start(&config).await;
    let first = proxy.start_request(call(41));
    let mut peer = upstream.accept_http2(&[]).await;
    let (stream, _) = peer.request().await;
    let (head, last) = (head.concat(), END_HEADERS | END_STREAM);
    let flags = if trailers.is_some() {
        END_HEADERS
    } else {
        last
    };
    let mut frames = frame(HEADERS, flags, stream, &block(&head));
    if let Some(trailers) = trailers {
        frames.extend(frame(DATA, 0, stream, b"\0\0\0\0\x01x"));
        frames.extend(frame(HEADERS, last, stream, &block(trailers)));
    }
    peer.send(&frames).await.expect("it is taken");
    let status = first.await.expect("no panic").status().to_string();
    assert_eq!(status.as_bytes(), head[0].1);
    let second = proxy.start_request(call(42));
    let served = tokio::spawn(async move { peer.serve().await });
    let answer = second.await.expect("no panic");
    served.abort();
    answer
}

fn status(value: &[u8]) -> [(&str, &[u8]); 1] {
    [("grpc-status", value)]
}

#[tokio::test]
async fn a_grpc_status_of_a_gateway_leaves_the_outcome_open() {
    let (unavailable, late) = (status(b"14"), status(b"4"));
    let unknown: FieldSlice<'_> = &[
        ("grpc-status", b"2"),
        ("x-fencing-outcome", b"outcome-unknown"),
    ];
    for (head, trailers) in [
        (&[HEAD, &unavailable][..], None),
        (&[HEAD, &late], None),
        (&[NO_CONTENT, &unavailable], None),
        (&[TEXT, &unavailable], None),
        (&[HEAD], Some(&unavailable[..])),
        // None at all: it may have been lost on the way.
        (&[HEAD], None),
        (&[NO_CONTENT], None),
        // A fencepost behind this one, whose own outcome is unknown.
        (&[HEAD, unknown], None),
    ] {
        let answer = next_after("{}", head, trailers).await;
        // The client speaks HTTP/1: a refusal is no gRPC status to it.
        assert_eq!(answer.status(), 503, "{head:?} {trailers:?}");
        answer.assert_problem(503, "older-in-flight");
    }
}

#[tokio::test]
async fn a_grpc_status_of_the_service_ends_its_call() {
    let (good, refused, unavailable) = (status(b"0"), status(b"9"), status(b"14"));
    let off = "upstream: { unknown_grpc_statuses: [] }";
    for (config, head, trailers) in [
        ("{}", &[HEAD][..], Some(&good[..])),
        ("{}", &[HEAD, &refused], None),
        // Not a word of gRPC: the HTTP status counts.
        ("{}", &[TEXT], None),
        (off, &[HEAD, &unavailable], None),
    ] {
        let answer = next_after(config, head, trailers).await;
        let passed = (answer.status(), answer.outcome());
        assert_eq!(passed, (200, None), "{head:?} {trailers:?}");
    }
}
