//! The trailers of a request end at the proxy, with their announcement: a server that does not read
//! them takes them for the next request. Toward HTTP/1: `tests/edge`, and here `attach`.

use super::{MODES, before, serve_http2};
use crate::attach::Sidecar;
use crate::support::bare::BareUpstream;
use crate::support::http2::{
    END_HEADERS, END_STREAM, HEADERS, Http2, Outcome, block, fenced_head, frame,
};
use crate::support::{Request, Upstream, put};

const TARGETS: [&str; 3] = ["/orders/7", "/seen/7", "/open/7"];

/// Sent as the last part of a request, this is a request line to a server that reads no trailers.
const TRAILER: (&str, &str) = ("x", "/f/victim HTTP/1.1");

/// An upload with a trailer over HTTP/1.
fn upload(target: &str) -> Request {
    let (name, value) = TRAILER;
    put(target)
        .token(1)
        .header("Trailer", "X")
        .header("TE", "trailers")
        .chunks(&[b"abc"], &format!("{name}: {value}\r\n"))
}

/// The same over HTTP/2; returns the status of the answer.
async fn upload_http2(to: std::net::SocketAddr, target: &str) -> Outcome {
    let mut client = Http2::open(to).await;
    let mut fields = fenced_head(target, "1");
    fields.push(("trailer", b"x"));
    fields.push(("te", b"trailers"));
    let stream = client.head(&fields, false).await;
    client.data(stream, b"abc", false).await;
    let trailers = block(&[(TRAILER.0, TRAILER.1.as_bytes())]);
    let end = frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
    client.send(&end).await.expect("it is taken");
    client.answer(stream).await
}

#[tokio::test]
async fn no_byte_of_a_requests_trailers_arrives_over_http2() {
    let upstream = BareUpstream::start().await;
    let url = upstream.h2c();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            tokio::spawn(serve_http2(upstream.accept().await, arrived.clone()));
        }
    });
    let proxy = before(&url, MODES).await;
    for target in TARGETS {
        for http2 in [false, true] {
            if http2 {
                let answer = upload_http2(proxy.data(), target).await;
                assert_eq!(answer, Outcome::Status(200), "{target}");
            } else {
                proxy.forward(upload(target)).await;
            }
            let (head, content, trailers) = arrivals.recv().await.expect("a request");
            assert_eq!((&*content, trailers), (&b"abc"[..], None), "{target}");
            assert!(!head.headers.contains_key("trailer"), "{:?}", head.headers);
            // It is about the response's trailers (RFC 9110, 10.1.4): gRPC needs it.
            assert_eq!(head.headers["te"], "trailers");
        }
    }
}

#[tokio::test]
async fn no_byte_of_a_requests_trailers_passes_attach() {
    let upstream = Upstream::start().await;
    let attach = Sidecar::start(upstream.url(), &["--token", "1"]).await;
    let upload = upload("/orders/7").host(Some(&attach.at.to_string()));
    upload.send(attach.at).await.assert_forwarded();
    let seen = upstream.only();
    assert_eq!((seen.text().as_str(), seen.trailers), ("abc", Vec::new()));
    assert_eq!(
        (seen.head.get("trailer"), seen.head.get("te")),
        (None, None)
    );
}
