//! Early answers: the upstream answers whole before its host has taken the whole request, which
//! lies in the proxy's kernel. Its permit ends only when the rest has arrived, or can no longer
//! arrive (guarantee G2). The way to the upstream is stuck in each test: the upstream does not read,
//! and its kernel takes only some kilobytes.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::claim::claim;
use crate::support::bare::BareUpstream;
use crate::support::http2::{HEADERS, Http2};
use crate::support::steps::REQUESTS;
use crate::support::wire::Wire;
use crate::support::{
    Answer, Config, Must as _, Proxy, Store, eventually, forwarded, joined, put, soon,
};

/// The proxy's kernel takes it at once, the windows of HTTP/2 too, and the upstream's kernel takes a
/// part.
const BODY: usize = 60_000;
/// The proxy writes all at once; there is no more to see from outside.
const IN_FLIGHT: &str = "fencepost_upstream_in_flight";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The upstream's end of the connection of 41, which it has answered and of which it has read
/// nothing but the beginning.
enum Answered {
    Http1(TcpStream),
    /// And its stream.
    Http2(Http2, u32),
}

struct Case {
    http2: bool,
    upstream: BareUpstream,
    config: Config,
    proxy: Proxy,
}

impl Case {
    async fn new(http2: bool, more: &str) -> Self {
        let upstream = BareUpstream::narrow();
        let scheme = if http2 { "h2c" } else { "http" };
        let url = format!("{scheme}://{}", upstream.address());
        let config = Config::to(&url, &Store::sqlite())
            .with("upstream: { undelivered: 600s, idle_timeout: 60s }")
            .with(more);
        let proxy = Proxy::start(&config).await;
        Self {
            http2,
            upstream,
            config,
            proxy,
        }
    }

    /// Has 41 answered early. Its client has the whole answer.
    async fn early(&self) -> Answered {
        let older = put("/orders/7").token(41).body(vec![b'x'; BODY]);
        let older = self.proxy.start_request(older);
        let answered = if self.http2 {
            let mut peer = self.upstream.accept_http2(&[]).await;
            let head = peer.until("the head", |frame| frame.kind == HEADERS).await;
            self.proxy.until_some(IN_FLIGHT).await;
            peer.respond(head.stream, true).await;
            Answered::Http2(peer, head.stream)
        } else {
            let mut socket = self.upstream.accept().await;
            soon("the first byte", socket.peek(&mut [0])).must().await;
            self.proxy.until_some(IN_FLIGHT).await;
            socket.write_all(OK).await.expect("taken");
            Answered::Http1(socket)
        };
        forwarded(older).await;
        answered
    }

    /// Sends 42, which waits: 41 is in flight.
    async fn newer_waits(&self) -> JoinHandle<Answer> {
        let newer = self.proxy.start_request(put("/orders/7").token(42));
        self.proxy.waiting("order:7", 1).await;
        assert_eq!(self.unknown().await, (0, 1));
        newer
    }

    /// The number of unknown outcomes, and of requests in flight.
    async fn unknown(&self) -> (usize, u64) {
        let mark = self.proxy.mark("order:7").await.expect("a mark");
        let unknown = mark["unknown"].as_array().map_or(0, Vec::len);
        (unknown, mark["in_flight"].as_u64().expect("a count"))
    }

    /// Serves 42 over a connection of its own.
    async fn serve_anew(&self, newer: JoinHandle<Answer>) {
        if self.http2 {
            let mut peer = self.upstream.accept_http2(&[]).await;
            assert_eq!(peer.serve().await, "");
        } else {
            let head = self.upstream.serve().await;
            assert_eq!(head.get("x-fencing-token"), Some("42"));
        }
        forwarded(newer).await;
    }
}

impl Answered {
    /// The way is free again: no more comes than what had arrived, and the connection is not ended
    /// as if the request were whole.
    async fn nothing_more_comes(self) {
        let (read, ended) = match self {
            Self::Http1(mut socket) => {
                let mut read = Vec::new();
                let ended = soon("the end", socket.read_to_end(&mut read)).await;
                (read.len(), ended.map(drop))
            }
            Self::Http2(mut peer, _) => soon("the end", peer.drain()).await,
        };
        let error = ended.expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(read < 32 << 10, "{read}");
    }

    /// Reads the rest of 41, and then 42, over the same connection.
    async fn drain_and_serve(self) {
        match self {
            Self::Http1(socket) => {
                let mut wire = Wire::new(socket);
                for (token, length) in [("41", BODY), ("42", 0)] {
                    let head = soon("a request", wire.head()).must().await.expect("a head");
                    assert_eq!(head.get("x-fencing-token"), Some(token));
                    let mut read = 0;
                    let framing = head.request_framing();
                    let body = wire.body(framing, |piece| read += piece.len());
                    soon("its body", body).must().await;
                    assert_eq!(read, length);
                }
                wire.send(OK).await.expect("taken");
            }
            Self::Http2(mut peer, stream) => {
                let mut read = 0;
                while read < BODY {
                    let part = peer.until("the rest", |frame| frame.kind <= HEADERS).await;
                    // Nothing overtakes it.
                    assert_eq!((part.kind, part.stream), (0, stream));
                    read += part.payload.len();
                }
                assert_eq!(peer.serve().await, "");
            }
        }
    }
}

/// The upstream reads on in time: then 41 is done, and its connection is as good as any. A claim
/// promises that nothing older arrives after it.
#[tokio::test]
async fn what_lies_in_the_kernel_arrives_before_a_newer_token_goes() {
    for http2 in [false, true] {
        let case = Case::new(http2, "barrier: { wait: 25s, grace: 300s, settle: 300s }").await;
        let older = case.early().await;
        let newer = case.newer_waits().await;
        let claim = case.proxy.start_request(claim("PUT /orders/7").token(42));
        case.proxy.waiting("order:7", 2).await;
        older.drain_and_serve().await;
        forwarded(newer).await;
        assert_eq!(joined(claim).await.status(), 204);
        assert_eq!(case.unknown().await, (0, 0));
        let listed = case.proxy.ask("/v1/unknown").await.json();
        assert_eq!(listed["unknown"], serde_json::json!([]));
    }
}

/// It does not: within `upstream.timeout` alone, or `barrier.grace` where a newer token waits.
#[tokio::test]
async fn what_is_not_taken_in_time_is_reset_and_unknown() {
    for http2 in [false, true] {
        for more in [
            "{ upstream: { timeout: 1s }, barrier: { wait: 25s, grace: 300s, settle: 1s } }",
            "{ upstream: { timeout: 300s }, barrier: { wait: 25s, grace: 500ms, settle: 1s } }",
        ] {
            let case = Case::new(http2, more).await;
            let older = case.early().await;
            let newer = case.newer_waits().await;
            case.serve_anew(newer).await;
            older.nothing_more_comes().await;
            let line = case.proxy.log_of("outcome", "outcome-unknown").await;
            let listed = case.proxy.ask("/v1/unknown").await.json();
            for named in [&line, &listed["unknown"][0]] {
                assert_eq!(named["resource"], "order:7", "{named}");
                assert_eq!(named["token"], "41", "{named}");
            }
            let metrics = case.proxy.metrics().await;
            let count = |outcome| metrics.count(REQUESTS, &[("outcome", outcome)]);
            assert_eq!((count("outcome-unknown"), count("advanced")), (1, 1));
        }
    }
}

#[tokio::test]
async fn what_a_killed_proxy_has_not_delivered_of_an_answered_request_never_arrives() {
    for http2 in [false, true] {
        let mut case = Case::new(http2, "barrier: { wait: 25s, settle: 1s }").await;
        let older = case.early().await;
        case.proxy.kill9();
        case.proxy = Proxy::start(&case.config).await;
        let newer = case.proxy.start_request(put("/orders/7").token(42));
        case.serve_anew(newer).await;
        older.nothing_more_comes().await;
    }
}

/// An upstream that refuses an upload answers and resets: the kernel drops the rest at once, and
/// the answer stands.
#[tokio::test]
async fn what_the_upstream_has_refused_by_a_reset_holds_up_no_newer_token() {
    for http2 in [false, true] {
        let case = Case::new(http2, "barrier: { wait: 25s, grace: 300s, settle: 300s }").await;
        // The close resets, since unread bytes are left.
        drop(case.early().await);
        let newer = case.proxy.start_request(put("/orders/7").token(42));
        case.serve_anew(newer).await;
        eventually("41 has settled", || async {
            (case.unknown().await == (0, 0)).then_some(())
        })
        .await;
    }
}
