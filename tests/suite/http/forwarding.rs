//! Bodies cross as they come, in both directions. What else crosses: `echo`, `headers`, and
//! `tests/edge`.

use crate::support::wire::{Framing, chunk};
use crate::support::{Gate, Must, Step, fenced, put, soon};

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
    upstream.next([
        Step::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Step::Send(chunk(b"first")),
        Step::Wait(gate.clone()),
        Step::Send(chunk(b"second")),
        Step::raw("0\r\n\r\n"),
    ]);
    let mut exchange = proxy.begin(&put("/orders/7").token(1), b"").await;
    let head = soon("the head", exchange.head()).must().await;
    assert_eq!(head.response_framing(false), Framing::Chunked);
    let mut read = Vec::new();
    // The gate opens once the first part is there.
    let rest = exchange.wire.body(Framing::Chunked, |piece| {
        read.extend_from_slice(piece);
        gate.open();
    });
    soon("the whole answer", rest).must().await;
    assert_eq!(read, b"firstsecond");
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
