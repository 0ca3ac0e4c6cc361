//! The parts of requests and responses that cross, and those that do not (guarantee G5). The store
//! does not matter here, so these run over `SQLite`.

use tempfile::TempDir;

use crate::support::wire::{Framing, chunk};
use crate::support::{
    Config, Gate, Must, Proxy, Step, Store, Upstream, fenced, get, put, request, soon,
};

#[tokio::test]
async fn a_long_body_streams_up() {
    let (upstream, proxy) = fenced("body: { buffer: 4KiB }").await;
    let request = put("/orders/7").token(1).header("Content-Length", "300000");
    let mut exchange = proxy.begin(&request, "a".repeat(100_000).as_bytes()).await;
    upstream
        .until("the first part, while the rest is not sent yet", |all| {
            all.first().is_some_and(|one| one.body.len() >= 50_000)
        })
        .await;
    exchange.push("b".repeat(200_000).as_bytes()).await;
    exchange.finish().await.assert_forwarded();
    let seen = upstream.only();
    assert_eq!(seen.body.len(), 300_000);
    assert_eq!(seen.text().rfind('a'), Some(99_999), "in order");
    assert_eq!(seen.head.get("content-length"), Some("300000"));
}

#[tokio::test]
async fn a_long_body_streams_down() {
    let (upstream, proxy) = fenced("{}").await;
    let gate = Gate::shut();
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    upstream.next([
        Step::raw(head),
        Step::Send(chunk(b"first")),
        Step::Wait(gate.clone()),
        Step::Send(chunk(b"second")),
        Step::raw("0\r\n\r\n"),
    ]);
    let mut exchange = proxy.begin(&put("/orders/7").token(1), b"").await;
    let head = soon("the head", exchange.head()).must().await;
    assert_eq!(head.response_framing(false), Framing::Chunked);
    let mut early = Vec::new();
    while !early.windows(5).any(|bytes| bytes == b"first") {
        early.extend(soon("the first chunk", exchange.wire.some()).must().await);
    }
    gate.open();
    let mut late = Vec::new();
    while !late.windows(5).any(|bytes| bytes == b"0\r\n\r\n") {
        late.extend(soon("the rest", exchange.wire.some()).must().await);
    }
    assert!(late.windows(6).any(|bytes| bytes == b"second"));
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_body_is_passed_on() {
    let (upstream, proxy) = fenced("body: { buffer: 1KiB }").await;
    upstream.next([
        Step::Early,
        Step::answer("401 Unauthorized", "", "who are you"),
    ]);
    let upload = put("/orders/7").token(1).header("Content-Length", "100000");
    let mut exchange = proxy.begin(&upload, "x".repeat(20_000).as_bytes()).await;
    let answer = soon(
        "the whole answer, with the upload still going on",
        exchange.answer(),
    )
    .must()
    .await;
    assert_eq!((answer.status(), &*answer.text()), (401, "who are you"));
    assert!(!upstream.only().whole);
}

/// hyper sends no body with a GET of unknown length by default; behind a method override
/// that would be a write without its content.
#[tokio::test]
async fn a_body_goes_over_with_any_method() {
    let (upstream, proxy) = fenced("body: { buffer: 4KiB }").await;
    let over = ("X-HTTP-Method-Override", "PATCH");
    let long = "a".repeat(10_000);
    for (body, streamed) in [("amount=7", false), (&*long, true)] {
        for method in ["GET", "HEAD", "OPTIONS", "DELETE", "PUT"] {
            let request = || request(method, "/orders/7").chunks(&[body.as_bytes()], "");
            let fenced = request().token(1).header(over.0, over.1);
            proxy.forward(fenced).await;
            let seen = upstream.arrivals().pop().expect("it has arrived");
            assert!(seen.text() == body, "{method}, {streamed}: {}", seen.text());
            if ["GET", "HEAD", "OPTIONS"].contains(&method) {
                proxy.forward(request()).await;
                let seen = upstream.arrivals().pop().expect("it has arrived");
                assert!(seen.text() == body, "{method}, {streamed}, unfenced");
            }
        }
    }
}

#[tokio::test]
async fn an_empty_body_goes_over_with_its_length() {
    let (upstream, proxy) = fenced("{}").await;
    for (method, length) in [
        ("POST", Some("0")),
        ("PUT", Some("0")),
        ("PATCH", Some("0")),
        ("DELETE", None),
    ] {
        let request = request(method, "/orders/7").token(1).chunks(&[], "");
        proxy.forward(request).await;
        let seen = upstream.arrivals().pop().expect("it has arrived");
        assert_eq!(seen.head.get("content-length"), length, "{method}");
        assert_eq!(seen.head.get("transfer-encoding"), None, "{method}");
    }
}

#[tokio::test]
async fn expect_continue_asks_for_the_body_only_when_it_is_wanted() {
    let (upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    let asking = |token: u64| {
        put("/orders/7")
            .token(token)
            .header("Expect", "100-continue")
            .header("Content-Length", "4")
    };
    // A token known to be stale, or none at all: refused, and the body never asked for.
    let mut stale = proxy.begin(&asking(4), b"").await;
    let answer = stale.finish().await;
    answer.assert_problem(412, "stale-token");
    assert!(answer.interim.is_empty(), "{:?}", answer.interim);
    let bare = put("/orders/7")
        .header("Expect", "100-continue")
        .header("Content-Length", "4");
    let answer = proxy.begin(&bare, b"").await.finish().await;
    answer.assert_problem(428, "token-required");
    assert!(answer.interim.is_empty());

    let mut fine = proxy.begin(&asking(6), b"").await;
    assert_eq!(fine.any_head().await.word(1), "100");
    fine.wire.send(b"body").must().await;
    fine.finish().await.assert_forwarded();
    assert_eq!(upstream.last().text(), "body");
    assert_eq!(upstream.tokens("order:7"), [5, 6]);
}

#[tokio::test]
async fn bodiless_answers_stay_bodiless() {
    let (upstream, proxy) = fenced("{}").await;
    upstream.next([Step::raw("HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n")]);
    let answer = proxy.send(put("/orders/7").token(1)).await;
    assert_eq!((answer.status(), answer.header("x-a")), (204, Some("1")));
    assert_eq!(answer.header("content-length"), None);
    upstream.next([Step::raw(
        "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
    )]);
    let answer = proxy
        .send(get("/orders/7").header("If-None-Match", "\"a\""))
        .await;
    assert_eq!(
        (answer.status(), answer.header("etag")),
        (304, Some("\"a\""))
    );
    // Both ended their epoch: a newer token does not wait.
    proxy.forward(put("/orders/7").token(2)).await;
}

#[tokio::test]
async fn a_unix_socket_can_be_the_upstream() {
    let dir = TempDir::new().expect("a temporary directory");
    let upstream = Upstream::start_unix(&dir.path().join("app.sock"));
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite())).await;
    proxy
        .forward(put("/orders/7").token(2).body("over a socket"))
        .await;
    proxy.stale(put("/orders/7").token(1)).await;
    let seen = upstream.only();
    assert_eq!(
        (seen.text().as_str(), seen.head.get("host")),
        ("over a socket", Some("app.test"))
    );
}

#[tokio::test]
async fn upgrades_are_refused_where_fenced_and_tunnelled_where_bypassed() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: /chat, mode: bypass }, { path: '/orders/{id}', resource: 'order:{id}' }]",
    )
    .await;
    let upgrade = |path: &str| {
        get(path)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
    };
    let answer = proxy.send(upgrade("/orders/7").token(1)).await;
    assert!(
        (400..500).contains(&answer.status()),
        "{}",
        answer.head.start
    );
    assert!(answer.outcome().is_some(), "the proxy's own answer");
    assert_eq!(upstream.count(), 0);

    upstream.next([
        Step::raw(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        ),
        Step::Echo,
    ]);
    let mut tunnel = proxy.begin(&upgrade("/chat"), b"").await;
    let head = tunnel.any_head().await;
    assert_eq!(
        (head.word(1), head.get("upgrade")),
        ("101", Some("websocket"))
    );
    tunnel.wire.send(b"\x81\x05hello").must().await;
    let mut back = Vec::new();
    while back.len() < 7 {
        let more = soon("the echo", tunnel.wire.some()).must().await;
        assert!(!more.is_empty(), "the tunnel stays open");
        back.extend(more);
    }
    assert_eq!(back, b"\x81\x05hello");
}
