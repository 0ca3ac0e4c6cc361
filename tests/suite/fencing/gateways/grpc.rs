//! A gateway that has lost its service tells a gRPC caller so in a response with the HTTP status
//! 200: by a `grpc-status`, in the head (Envoy's, and nginx's by `error_page`) or in trailers.

use super::STAYS_UNKNOWN;
use crate::support::bare::BareUpstream;
use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, block, frame};
use crate::support::{Answer, Config, Proxy, Request, Store, joined, post};

type Fields<'a> = &'a [(&'a str, &'a [u8])];

const HEAD: Fields<'_> = &[(":status", b"200"), ("content-type", b"application/grpc")];
/// nginx's answer with `error_page 502 = @lost` and `add_header grpc-status 14; return 204`.
const NO_CONTENT: Fields<'_> = &[(":status", b"204")];
const TEXT: Fields<'_> = &[(":status", b"503"), ("content-type", b"text/html")];

fn call(token: u64) -> Request {
    post("/test.Ledger/Put")
        .header("Content-Type", "application/grpc")
        .header("TE", "trailers")
        .header("X-Account", "7")
        .token(token)
        .body(b"\0\0\0\0\x01x")
}

/// The answer to the next token after 41 has got this head, and these trailers if any.
async fn next_after(config: &str, head: &[Fields<'_>], trailers: Option<Fields<'_>>) -> Answer {
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.h2c(), &Store::sqlite())
        .with(STAYS_UNKNOWN)
        .with("routes: [{ path: '/test.Ledger/{method}', resource: 'ledger:{header.x-account}' }]")
        .with(config);
    let proxy = Proxy::start(&config).await;
    let first = proxy.start_request(call(41));
    let mut peer = upstream.accept_http2(&[]).await;
    let (stream, _) = peer.request().await;
    let (head, last) = (head.concat(), END_HEADERS | END_STREAM);
    let frames = match trailers {
        None => frame(HEADERS, last, stream, &block(&head)),
        Some(trailers) => [
            frame(HEADERS, END_HEADERS, stream, &block(&head)),
            frame(DATA, 0, stream, b"\0\0\0\0\x01x"),
            frame(HEADERS, last, stream, &block(trailers)),
        ]
        .concat(),
    };
    peer.send(&frames).await.expect("it is taken");
    let status = joined(first).await.status().to_string();
    assert_eq!(status.as_bytes(), head[0].1);
    let served = tokio::spawn(async move { peer.serve().await });
    let answer = proxy.send(call(42)).await;
    served.abort();
    answer
}

#[tokio::test]
async fn a_grpc_status_of_a_gateway_leaves_the_outcome_open_and_one_of_the_service_does_not() {
    let [good, unknown, late, refused, unavailable] =
        [&b"0"[..], b"2", b"4", b"9", b"14"].map(|value| [("grpc-status", value)]);
    let own = [unknown[0], ("x-fencing-outcome", b"outcome-unknown")];
    let off = "upstream: { unknown_grpc_statuses: [] }";
    for (config, head, trailers, passes) in [
        ("{}", &[HEAD, &unavailable][..], None, false),
        ("{}", &[HEAD, &late], None, false),
        ("{}", &[NO_CONTENT, &unavailable], None, false),
        ("{}", &[TEXT, &unavailable], None, false),
        ("{}", &[HEAD], Some(&unavailable[..]), false),
        // None at all: it may have been lost on the way.
        ("{}", &[HEAD], None, false),
        ("{}", &[NO_CONTENT], None, false),
        // A fencepost behind this one, whose own outcome is unknown.
        ("{}", &[HEAD, &own], None, false),
        ("{}", &[HEAD], Some(&good), true),
        ("{}", &[HEAD, &refused], None, true),
        // Not a word of gRPC: the HTTP status counts.
        ("{}", &[TEXT], None, true),
        (off, &[HEAD, &unavailable], None, true),
    ] {
        let answer = next_after(config, head, trailers).await;
        let passed = (answer.status(), answer.outcome()) == (200, None);
        assert_eq!(passed, passes, "{config} {head:?} {trailers:?}");
        if !passes {
            // The client speaks HTTP/1: a refusal is no gRPC status to it.
            answer.assert_problem(503, "older-in-flight");
        }
    }
}
