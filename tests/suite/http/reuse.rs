//! Upstreams that close a connection when its next request comes, without a word: no request goes
//! once more over another connection (guarantee G5).

use std::time::Duration;

use crate::support::bare::BareUpstream;
use crate::support::client::{Exchange, Request};
use crate::support::upstream::response;
use crate::support::wire::{Head, Wire};
use crate::support::{Answer, Config, Proxy, Step, Store, Upstream, get, post, put, request, soon};

const ROUTES: &str = "routes: [
    { path: '/orders/{id}', resource: 'order:{id}' },
    { path: '/free/{*rest}', mode: bypass } ]";

async fn started() -> (BareUpstream, Proxy) {
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.url(), &Store::sqlite()).with(ROUTES);
    let proxy = Proxy::start(&config.with("upstream: { idle_timeout: 300s }")).await;
    (upstream, proxy)
}

async fn arrival(wire: &mut Wire) -> Head {
    let head = soon("a request", wire.head()).await;
    let head = head.expect("a well-formed head").expect("a request");
    let framing = head.request_framing();
    let body = soon("its body", wire.body(framing, |_| ())).await;
    body.expect("a whole body");
    head
}

async fn answer(wire: &mut Wire, text: &str) {
    let answer = response("200 OK", "", text);
    wire.send(answer.as_bytes()).await.expect("taken");
}

/// Has `warm` answered over a new connection, which is idle afterwards.
async fn idle(upstream: &BareUpstream, proxy: &Proxy, warm: Request) -> Wire {
    let sent = proxy.start_request(warm);
    let mut wire = upstream.wire().await;
    arrival(&mut wire).await;
    answer(&mut wire, "warm").await;
    sent.await.expect("an answer").assert_forwarded();
    wire
}

/// How the upstream ends the connection.
#[derive(Clone, Copy, Debug)]
enum Breakage {
    Close,
    Reset,
    /// It sends this first.
    After(&'static str),
}

/// Sends a request over the idle connection, which ends once it has come; returns it.
async fn broken(mut idle: Wire, end: Breakage) -> Head {
    let head = arrival(&mut idle).await;
    match end {
        Breakage::Close => {}
        Breakage::Reset => idle.reset(),
        Breakage::After(bytes) => idle.send(bytes.as_bytes()).await.expect("taken"),
    }
    head
}

/// Whether `request` is sent a second time when its idle connection breaks.
async fn assert_sent_once(request: Request, warm: Request, end: Breakage) {
    let (upstream, proxy) = started().await;
    let idle = idle(&upstream, &proxy, warm).await;
    let sent = proxy.start_request(request);
    let head = broken(idle, end).await;
    let answer = sent.await.expect("an answer");
    assert_eq!(
        (answer.status(), answer.outcome()),
        UNKNOWN,
        "{head:?}, {end:?}"
    );
    // The next connection is the next request's.
    let next = proxy.start_request(get("/free/next"));
    assert_eq!(upstream.serve().await.word(1), "/free/next");
    next.await.expect("an answer").assert_forwarded();
}

const UNKNOWN: (u16, Option<&str>) = (502, Some("outcome-unknown"));

#[tokio::test]
async fn no_request_goes_once_more() {
    let free = || get("/free/a");
    for end in [Breakage::Close, Breakage::Reset] {
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
            assert_sent_once(sent, free(), end).await;
        }
        let fenced = || put("/orders/7").token(1);
        for method in ["GET", "HEAD", "DELETE", "PUT"] {
            let sent = request(method, "/orders/7").token(1);
            assert_sent_once(sent, fenced(), end).await;
        }
    }
}

/// The upstream has begun to answer.
#[tokio::test]
async fn nor_does_one_that_has_a_byte_of_its_answer() {
    for begun in ["H", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        assert_sent_once(get("/free/b"), get("/free/a"), Breakage::After(begun)).await;
    }
}

/// The first connection of all: the upstream has not closed it for being idle.
#[tokio::test]
async fn one_over_a_new_connection_is_sent_once() {
    let (upstream, proxy) = started().await;
    let sent = proxy.start_request(get("/free/b"));
    let first = upstream.wire().await;
    broken(first, Breakage::Close).await;
    let answer = sent.await.expect("an answer");
    answer.assert_problem(502, "outcome-unknown");
}

/// Requests of one client over one connection, as fast as they are answered.
async fn one_after_the_other(
    proxy: &Proxy,
    requests: impl Iterator<Item = Request>,
) -> Vec<Answer> {
    let wire = Wire::connect(proxy.data()).await.expect("it listens");
    let mut exchange = Exchange::over(wire, &get("/"));
    let mut answers = Vec::new();
    for request in requests {
        exchange.wire.send(&request.bytes()).await.expect("open");
        answers.push(exchange.finish().await);
    }
    answers
}

/// The next request comes before the close, and gets no answer.
fn closing() -> Vec<Step> {
    let soon = Step::Work(Duration::from_millis(20));
    vec![Step::ok(), soon, Step::Close]
}

#[tokio::test]
async fn no_connection_is_used_twice_with_an_idle_timeout_of_zero() {
    let upstream = Upstream::start().await;
    upstream.otherwise(|_| closing());
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start(&config.with("upstream: { idle_timeout: 0s }")).await;
    let writes = (1..=100).map(|token| put("/orders/7").token(token));
    let reads = (0..100).map(|_| get("/orders/7"));
    for answer in one_after_the_other(&proxy, writes.chain(reads)).await {
        answer.assert_forwarded();
    }
    assert_eq!((upstream.count(), upstream.connections()), (200, 200));
}
