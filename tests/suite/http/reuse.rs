//! Upstreams that close a connection when its next request comes, without a word: no request goes
//! once more over another connection (guarantee G5).

use std::time::Duration;

use super::before;
use crate::support::bare::BareUpstream;
use crate::support::upstream::response;
use crate::support::wire::{Head, Wire};
use crate::support::{Proxy, Request, Step, fenced, get, joined, post, put, request, soon};

const CONFIG: &str = "{ upstream: { idle_timeout: 300s }, routes: [
    { path: '/orders/{id}', resource: 'order:{id}' },
    { path: '/free/{*rest}', mode: bypass } ] }";

/// An upstream whose connections are played by hand, and a proxy before it.
struct ByHand {
    upstream: BareUpstream,
    proxy: Proxy,
}

/// How the upstream ends the connection: by a reset, or in order behind these bytes.
type Breakage = Option<&'static str>;

async fn arrival(wire: &mut Wire) -> Head {
    let head = soon("a request", wire.head()).await;
    let head = head.expect("a well-formed head").expect("a request");
    let framing = head.request_framing();
    let body = soon("its body", wire.body(framing, |_| ())).await;
    body.expect("a whole body");
    head
}

impl ByHand {
    async fn start() -> Self {
        let upstream = BareUpstream::start().await;
        let proxy = before(&upstream.url(), CONFIG).await;
        Self { upstream, proxy }
    }

    /// Answers a request over a new connection, with this field.
    async fn exchange(&self, request: Request, field: &str) -> (Head, Wire) {
        let sent = self.proxy.start_request(request);
        let mut wire = self.upstream.wire().await;
        let head = arrival(&mut wire).await;
        let answer = response("200 OK", field, "done");
        wire.send(answer.as_bytes()).await.expect("taken");
        joined(sent).await.assert_forwarded();
        (head, wire)
    }

    /// Asserts that `request` is not sent a second time when its connection breaks, over which
    /// `warm` went before, if any.
    async fn sends_once(&self, warm: Option<Request>, request: Request, end: Breakage) {
        let idle = match warm {
            Some(warm) => Some(self.exchange(warm, "").await.1),
            None => None,
        };
        let sent = self.proxy.start_request(request);
        let mut wire = match idle {
            Some(idle) => idle,
            None => self.upstream.wire().await,
        };
        let head = arrival(&mut wire).await;
        match end {
            None => wire.reset(),
            Some(bytes) => {
                wire.send(bytes.as_bytes()).await.expect("taken");
                drop(wire);
            }
        }
        let answer = joined(sent).await;
        let seen = (answer.status(), answer.outcome());
        assert_eq!(seen, (502, Some("outcome-unknown")), "{head:?}, {end:?}");
        // The next connection is the next request's.
        let next = self.exchange(get("/free/next"), "Connection: close\r\n");
        assert_eq!(next.await.0.word(1), "/free/next");
    }
}

#[tokio::test]
async fn no_request_goes_once_more() {
    let by_hand = ByHand::start().await;
    for end in [Some(""), None] {
        for sent in [
            post("/free/a"),
            put("/free/a").body("x"),
            request("DELETE", "/free/a"),
            get("/free/a").header("X-HTTP-Method-Override", "DELETE"),
            get("/free/a").body("x"),
            get("/free/a"),
            request("HEAD", "/free/a"),
            request("OPTIONS", "/free/a"),
        ] {
            by_hand.sends_once(Some(get("/free/a")), sent, end).await;
        }
        for method in ["GET", "HEAD", "DELETE", "PUT"] {
            let warm = put("/orders/7").token(1);
            let sent = request(method, "/orders/7").token(1);
            by_hand.sends_once(Some(warm), sent, end).await;
        }
    }
    // The upstream has begun to answer.
    for begun in ["H", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let warm = Some(get("/free/a"));
        by_hand.sends_once(warm, get("/free/b"), Some(begun)).await;
    }
    // The upstream has not closed a new connection for being idle.
    by_hand.sends_once(None, get("/free/b"), Some("")).await;
}

#[tokio::test]
async fn no_connection_is_used_twice_with_an_idle_timeout_of_zero() {
    let (upstream, proxy) = fenced("upstream: { idle_timeout: 0s }").await;
    // The next request comes before the close, and would get no answer.
    let soon = Step::Work(Duration::from_millis(20));
    upstream.otherwise(move |_| vec![Step::ok(), soon.clone(), Step::Close]);
    for token in 1..=100 {
        proxy.forward(put("/orders/7").token(token)).await;
        proxy.forward(get("/orders/7")).await;
    }
    assert_eq!((upstream.count(), upstream.connections()), (200, 200));
}
