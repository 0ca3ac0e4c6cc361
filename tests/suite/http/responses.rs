//! Responses byte for byte: one whose end is in doubt becomes a 502 or breaks off, and its connection
//! is never used again. One that is only odd is passed on. The next request gets its own answer.
//! Nothing is ever sent twice.

use std::time::Duration;

use super::before;
use crate::support::bare::BareUpstream;
use crate::support::wire::{Framing, chunk};
use crate::support::{Gate, Must, Step, eventually, fenced, get, joined, put, request, soon};

/// The proxy closes the upstream's connection at once; else the next request goes over it.
const CLOSED: bool = true;
const USED: bool = false;

/// The method, what the upstream sends, the status and body that the client sees, or else the
/// proxy's own 502, and what becomes of the connection.
type Exchanged = (
    &'static str,
    &'static [u8],
    Option<(u16, &'static str)>,
    bool,
);

/// One of each kind of what the reader (`src/http1/tests/responses.rs`) takes, puts right and
/// refuses.
const RESPONSES: &[Exchanged] = &[
    // In order.
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n2;a=b\r\nok\r\n0\r\nX-T: 1\r\n\r\n", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Some((204, "")), USED),
    ("PUT", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Some((200, "ok")), USED),
    // hyper would go on in HTTP/1.0, which has no chunks.
    ("PUT", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", Some((200, "ok")), CLOSED),
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", Some((200, "")), USED),
    ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Some((200, "")), USED),
    ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", Some((304, "")), USED),
    // Heads that are not to the letter.
    ("PUT", b"220 mail.test ESMTP ready\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.1 200 OK\r\nX-A: b\rContent-Length: 2\r\n\r\nok", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok", Some((200, "ok")), USED),
    // Lengths and codings.
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Some((200, "ok")), CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n", Some((200, "ok")), CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n2\r\nok\r\n0\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer_Encoding: chunked\r\n\r\nok", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", None, CLOSED),
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", Some((200, "")), CLOSED),
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n", Some((200, "")), CLOSED),
    ("GET", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: gzip\r\n\r\n", Some((304, "")), CLOSED),
    ("PUT", b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", Some((204, "")), CLOSED),
    ("PUT", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Some((204, "")), CLOSED),
    ("PUT", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", Some((204, "")), CLOSED),
    ("PUT", b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\nContent-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\n", Some((204, "")), CLOSED),
    ("PUT", b"HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", None, CLOSED),
    ("PUT", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", None, CLOSED),
    // Bodies.
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nx\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nok\r\n0\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nok\r\n0\r\n\r\n", Some((200, "ok")), USED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T : 1\r\n\r\n", None, CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: \0\r\n\r\n", None, CLOSED),
    // More than was asked for: the response stands.
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n", Some((200, "ok")), CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", Some((200, "ok")), CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n\r\n", Some((200, "ok")), CLOSED),
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", Some((200, "")), CLOSED),
    ("PUT", b"HTTP/1.1 204 No Content\r\n\r\nok", Some((204, "")), CLOSED),
    ("PUT", b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", Some((204, "")), CLOSED),
    ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\nok", Some((304, "")), CLOSED),
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Some((200, "")), CLOSED),
    ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Some((200, "")), CLOSED),
];

/// The client has had the head by then.
#[tokio::test]
async fn a_fault_that_comes_behind_the_head_breaks_the_answer_off() {
    let (upstream, proxy) = fenced("{}").await;
    let gate = Gate::shut();
    let begun = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n";
    let (wait, still) = (Step::Wait(gate.clone()), Step::Wait(Gate::shut()));
    upstream.next([Step::raw(begun), wait, Step::raw("x\r\n"), still]);
    let mut exchange = proxy.begin(&put("/orders/1").token(1), b"").await;
    assert_eq!(exchange.any_head().await.word(1), "200");
    gate.open();
    let broken = soon("the end", exchange.answer()).await;
    let status = broken.as_ref().map(crate::support::Answer::status);
    assert!(status.is_err(), "{status:?}");
    upstream.until("the close", |all| all[0].left).await;
}

/// One after the other over one proxy, each on a resource of its own.
#[tokio::test]
async fn what_is_framed_in_doubt_is_a_502_and_its_connection_is_never_used_again() {
    let (upstream, proxy) = fenced("upstream: { idle_timeout: 60s }").await;
    let (mut connections, mut spare, mut number) = (0, 0, 0);
    for (method, bytes, seen, closed) in RESPONSES {
        let case = format!("{method} {}", bytes.escape_ascii());
        for attempt in 1.. {
            number += 1;
            // A connection with nothing to report yet, so that the log says whose end is
            // whose.
            let warm = format!("/orders/warm{number}");
            proxy.forward(put(&warm).token(1)).await;
            connections = connections.max(upstream.connections());
            let before = upstream.count();
            let still = Gate::shut();
            // It stays open: only the proxy closes it.
            upstream.next([Step::Send(bytes.to_vec()), Step::Wait(still.clone())]);
            let target = format!("/orders/{number}");
            let answer = proxy.send(request(method, &target).token(1)).await;
            if let Some((status, body)) = seen {
                assert_eq!(
                    (answer.status(), answer.outcome()),
                    (*status, None),
                    "{case}"
                );
                assert_eq!(answer.text(), *body, "{case}");
            } else {
                assert_eq!(answer.outcome(), Some("outcome-unknown"), "{case}");
                answer.assert_problem(502, "outcome-unknown");
            }
            if *closed {
                upstream
                    .until(&format!("the close after {case}"), |all| all[before].left)
                    .await;
            }
            still.open();
            upstream
                .until("the upstream to be done", |all| all[before].ended.is_some())
                .await;
            let next = proxy
                .send(put(&format!("/orders/next{number}")).token(1))
                .await;
            next.assert_forwarded();
            assert_eq!(next.text(), "done\n", "its own answer, after {case}");
            assert_eq!(upstream.count(), before + 2, "nothing twice: {case}");
            let opened = upstream.connections() - connections;
            connections += opened;
            // If its outcome is unknown, it stays in flight.
            let unknown = usize::from(seen.is_none());
            let mark = proxy
                .mark(&format!("order:{number}"))
                .await
                .expect("a mark");
            assert_eq!(
                mark["unknown"].as_array().map(Vec::len),
                Some(unknown),
                "{case}: {mark}"
            );
            if *closed {
                assert!(opened == 1 || spare > 0, "connections: {case}");
                spare -= 1 - opened;
                break;
            }
            if opened == 0 {
                break;
            }
            // A connection is put back by a task of its own, which a request that comes at once may
            // overtake.
            spare += opened;
            assert!(attempt < 3, "connections: {case}");
        }
    }
}

/// A request that was given up is not to arrive from the kernel's buffers later on, when newer
/// tokens have been let in.
#[tokio::test]
async fn what_was_not_sent_when_a_request_was_given_up_is_never_sent() {
    let upstream = BareUpstream::narrow();
    let more =
        "{ body: { buffer: 16MiB, timeout: 5s }, upstream: { timeout: 1s, undelivered: 30s } }";
    let proxy = before(&upstream.url(), more).await;
    let large = vec![b'x'; 8 << 20];
    let sent = proxy.start_request(put("/orders/1").token(1).body(&large));
    let mut socket = upstream.accept().await;
    joined(sent).await.assert_problem(504, "outcome-unknown");
    let error = eventually("the reset", || {
        std::future::ready(socket.take_error().expect("a socket"))
    })
    .await;
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let mut read = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut read).await;
    // As much as had arrived; what waited to be sent is megabytes.
    assert!(read.len() < 512 << 10, "{}", read.len());
}

/// A server that speaks first speaks another protocol: nothing is sent to it.
#[tokio::test]
async fn what_comes_before_a_request_is_no_answer_to_it() {
    let upstream = BareUpstream::start().await;
    let proxy = before(&upstream.url(), "{}").await;
    let sent = proxy.start_request(put("/orders/1").token(1));
    let mut socket = upstream.accept().await;
    let greeting = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother";
    tokio::io::AsyncWriteExt::write_all(&mut socket, greeting)
        .must()
        .await;
    let answer = joined(sent).await;
    // Which of the two came first, the proxy may see either way; what it says has to be true.
    let mut read = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut read).await;
    match answer.outcome() {
        Some("upstream-unreachable") => assert!(read.is_empty(), "nothing was sent"),
        Some(_) => panic!("{}", answer.text()),
        None => assert!(!read.is_empty(), "it was sent"),
    }
}

/// What is odd in a head is put right on the way to the client, over either version.
#[tokio::test]
async fn odd_fields_go_on_as_the_rfc_reads_them() {
    let (upstream, proxy) = fenced("{}").await;
    let head = "HTTP/1.1 200 O\0K\nX-A : b\r\nX-B: c\r\n \t d\n\te\r\n: x\r\nX(C): x\r\n x\r\n\
         X-D: \0a\x0bb\x7f\r\nX-A: z\r\nContent-Length: 2, 2\r\nContent-Length: 02\r\n\r\nok";
    for (path, http2) in [("/orders/1", false), ("/orders/2", true)] {
        upstream.next([Step::raw(head)]);
        let request = put(path).token(1);
        let answer = if http2 {
            request.send_http2(proxy.data()).await
        } else {
            proxy.send(request).await
        };
        assert_eq!(answer.assert_forwarded().text(), "ok");
        assert_eq!(answer.head.all("x-a"), ["b", "z"]);
        assert_eq!(answer.head.all("content-length"), ["2"]);
        let words = |name| -> Vec<&str> {
            let value = answer.header(name).unwrap_or_default();
            value.split_whitespace().collect()
        };
        assert_eq!(
            (words("x-b"), words("x-d")),
            (vec!["c", "d", "e"], vec!["a", "b"])
        );
        let mut names = answer.head.headers.iter().map(|(name, _)| name);
        assert!(names.all(|name| !name.is_empty() && !name.contains('(')));
    }
    for fields in [
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
    ] {
        upstream.next([Step::raw(&format!(
            "HTTP/1.1 204 No Content\r\n{fields}\r\n\r\n"
        ))]);
        let answer = put("/orders/3").token(1).send_http2(proxy.data()).await;
        assert_eq!((answer.status(), answer.outcome()), (204, None));
        assert_eq!(answer.head.all("content-length"), [""; 0], "{fields}");
    }
}

#[tokio::test]
async fn interim_responses_are_bounded_by_the_timeout_only() {
    let (upstream, proxy) = fenced("upstream: { timeout: 2s }").await;
    let interim = "HTTP/1.1 102 Processing\r\n\r\n";
    upstream.next([
        Step::raw(&interim.repeat(1000)),
        Step::answer("200 OK", "", "ok"),
    ]);
    let answer = proxy.send(put("/orders/1").token(1)).await;
    assert_eq!(answer.assert_forwarded().text(), "ok");
    upstream.next([Step::Endless(interim.as_bytes().to_vec())]);
    proxy
        .refuse(put("/orders/2").token(1), 504, "outcome-unknown")
        .await;
    upstream.until("the close", |all| all[1].left).await;
}

#[tokio::test]
async fn heads_are_bounded_and_the_bound_can_be_raised() {
    let fields = |count: usize| "X-A: b\r\n".repeat(count);
    let long = |bytes: usize| format!("X-A: {}\r\n", "b".repeat(bytes));
    for (config, good, bad) in [
        (
            "{}",
            [fields(7_000), long(60_000)],
            [fields(9_000), long(70_000)],
        ),
        (
            "upstream: { header_bytes: 2MiB }",
            [fields(9_999), long(1_000_000)],
            [fields(10_001), long(3_000_000)],
        ),
    ] {
        let (upstream, proxy) = fenced(config).await;
        for headers in good {
            upstream.next([Step::answer("200 OK", &headers, "ok")]);
            let answer = proxy.forward(put("/orders/7").token(1)).await;
            let came: usize = answer.head.all("x-a").iter().map(|value| value.len()).sum();
            assert_eq!(came, headers.matches('b').count(), "{config}");
        }
        for headers in bad {
            upstream.next([Step::answer("200 OK", &headers, "ok")]);
            let request = put("/orders/8").token(1);
            proxy.refuse(request, 502, "outcome-unknown").await;
        }
    }
}

/// One that ends with its connection is whole with a clean end: `echo`.
#[tokio::test]
async fn what_a_reset_ends_is_no_whole_answer() {
    let (upstream, proxy) = fenced("{}").await;
    for request in [put("/orders/1").token(1), get("/orders/1")] {
        upstream.next([
            Step::raw("HTTP/1.1 200 OK\r\n\r\nhalf"),
            Step::Work(Duration::from_millis(50)),
            Step::Reset,
        ]);
        let mut exchange = proxy.begin(&request, b"").await;
        let answer = soon("the end", exchange.answer()).await;
        assert!(answer.is_err(), "{request:?}: {answer:?}");
    }
    let mark = proxy.mark("order:1").await.expect("a mark");
    assert_eq!(mark["unknown"].as_array().map(Vec::len), Some(1), "{mark}");
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
