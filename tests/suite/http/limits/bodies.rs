//! Bodies: how long they may be, how long they may take, and how much of them is held at once.

use std::time::Duration;

use crate::support::bare::BareUpstream;
use crate::support::http2::{Http2, Outcome, head};
use crate::support::wire::{Wire, chunk};
use crate::support::{Config, Proxy, Step, Store, eventually, fenced, joined, post, put, soon};

const MODES: &str = "
routes:
  - { path: '/orders/{id}', resource: 'order:{id}' }
  - { path: '/seen/{id}', resource: 'seen:{id}', mode: observe }
  - { path: '/open/{id}', mode: bypass }";

#[tokio::test]
async fn a_body_over_the_limit_is_refused_where_it_is_fenced_and_where_not() {
    for path in ["/orders/1", "/open/1"] {
        let (upstream, proxy) =
            fenced(&format!("body: {{ buffer: 1KiB, max: 4KiB }}{MODES}")).await;
        let request = || post(path).token(1);
        proxy.forward(request().body(vec![b'x'; 4096])).await;
        let long = proxy.send(request().body(vec![b'x'; 4097])).await;
        long.assert_problem(413, "content-too-large");
        assert_eq!(upstream.count(), 1);
        assert_eq!(proxy.reached("body-max").await, 1);
        // Of unknown length: found out on the way, and broken off.
        let piece = vec![b'x'; 1000];
        let chunks: Vec<&[u8]> = vec![&piece; 10];
        let longer = request().chunks(&chunks, "").attempt(proxy.data()).await;
        if let Ok(answer) = longer {
            // A part of a fenced one may have taken effect.
            let (status, outcome) = if path == "/open/1" {
                (413, "content-too-large")
            } else {
                (502, "outcome-unknown")
            };
            answer.assert_problem(status, outcome);
        }
        let arrivals = upstream.arrivals();
        assert!(arrivals.iter().all(|one| one.body.len() <= 4096));
        assert!(arrivals[1..].iter().all(|one| !one.whole));
        proxy.until_reached("body-max", 2).await;
    }
}

/// The fence's refusals are only counted there, and this is one of them.
#[tokio::test]
async fn where_it_is_observed_a_body_over_the_limit_is_counted_and_passes() {
    let (upstream, proxy) = fenced(&format!("body: {{ max: 4KiB }}{MODES}")).await;
    proxy
        .forward(put("/seen/1").token(1).body(vec![b'x'; 5000]))
        .await;
    assert_eq!(upstream.last().body.len(), 5000);
    proxy.until_outcome("observed-content-too-large", 1).await;
}

#[tokio::test]
async fn a_body_has_to_arrive_in_time_as_a_whole() {
    let (upstream, proxy) = fenced("body: { timeout: 300ms, progress_timeout: 60s }").await;
    let request = put("/orders/7").token(1).header("Content-Length", "8");
    let mut slow = proxy.begin(&request, b"half").await;
    let problem = slow.finish().await.assert_problem(408, "request-timeout");
    assert_eq!(problem["retry"], "same-token");
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.token("order:7").await, None);
    assert_eq!(proxy.reached("body-timeout").await, 1);
    assert_eq!(proxy.reached("body-progress").await, 0);
}

#[tokio::test]
async fn a_body_may_not_pause_for_long() {
    let (upstream, proxy) = fenced("body: { timeout: 300s, progress_timeout: 300ms }").await;
    let request = put("/orders/7").token(1).header("Content-Length", "8");
    let mut slow = proxy.begin(&request, b"half").await;
    slow.finish().await.assert_problem(408, "request-timeout");
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.reached("body-progress").await, 1);
    assert_eq!(proxy.reached("body-timeout").await, 0);
}

/// A part of a streamed body is gone: the exchange breaks. Its outcome is unknown where it is fenced,
/// and the client's fault elsewhere.
#[tokio::test]
async fn a_streamed_body_may_not_pause_for_long_either() {
    for path in ["/orders/7", "/open/7", "/seen/7"] {
        let body = "body: { buffer: 1KiB, timeout: 300s, progress_timeout: 300ms }";
        let (upstream, proxy) = fenced(&format!("{body}{MODES}")).await;
        let request = put(path).token(1).header("Content-Length", "100000");
        let mut slow = proxy.begin(&request, &vec![b'x'; 20_000]).await;
        upstream.reached(1).await;
        let (status, word, retry) = if path == "/orders/7" {
            (502, "outcome-unknown", "check-first")
        } else {
            (408, "request-timeout", "same-token")
        };
        let problem = slow.finish().await.assert_problem(status, word);
        assert_eq!(problem["retry"], retry, "{path}");
        assert!(!upstream.only().whole);
        assert_eq!(proxy.reached("body-progress").await, 1);
    }
}

/// The messages of a gRPC call come when there is something to say.
#[tokio::test]
async fn a_grpc_call_may_be_slow() {
    let upstream = BareUpstream::start().await;
    let config = Config::to(&upstream.h2c(), &Store::sqlite()).with(&format!(
        "body: {{ timeout: 300s, progress_timeout: 1500ms }}{MODES}"
    ));
    let proxy = Proxy::start(&config).await;
    let mut call = Http2::open(proxy.data()).await;
    let mut fields = head("POST", "/open/7");
    fields.push(("content-type", b"application/grpc"));
    fields.push(("te", b"trailers"));
    let stream = call.head(&fields, false).await;
    let mut service = upstream.accept_http2(&[]).await;
    let served = tokio::spawn(async move { service.serve().await });
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        call.data(stream, b"x", false).await;
    }
    call.data(stream, b"x", true).await;
    assert_eq!(call.answer(stream).await, Outcome::Status(200));
    assert_eq!(served.await.expect("no panic").len(), 21);
}

/// One that announces a long body with the newest token and sends none of it: who comes with a
/// newer one does not wait for it.
#[tokio::test]
async fn a_body_that_does_not_begin_holds_up_nobody() {
    let (upstream, proxy) = fenced("barrier: { wait: 25s, grace: 300s, settle: 300s }").await;
    let request = put("/orders/7").token(41);
    proxy.forward(request.clone()).await;
    let places = "fencepost_requests_in_flight";
    proxy.until_none(places).await;
    let silent = request.header("Content-Length", "2000000");
    let silent = proxy.begin(&silent, b"").await;
    // A request that came after the newer token would not hold it up.
    proxy.until_some(places).await;
    proxy.forward(put("/orders/7").token(42)).await;
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    drop(silent);
}

/// One byte now and then is progress, and no way to keep newer tokens out: the whole has a
/// deadline.
#[tokio::test]
async fn a_trickling_upload_holds_the_barrier_no_longer_than_its_deadline() {
    let (upstream, proxy) = fenced(
        "barrier: { wait: 25s, grace: 300s, settle: 1s }
body: { buffer: 1KiB, timeout: 3s, progress_timeout: 60s }",
    )
    .await;
    let request = put("/orders/7")
        .token(41)
        .header("Content-Length", "100000");
    let mut slow = proxy.begin(&request, &vec![b'x'; 2000]).await;
    upstream.reached(1).await;
    let trickle = tokio::spawn(async move {
        while slow.wire.send(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    proxy.forward(put("/orders/7").token(42)).await;
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    assert!(!upstream.arrivals()[0].whole);
    assert_eq!(proxy.reached("body-timeout").await, 1);
    joined(trickle).await;
}

/// Nobody waits for a long upload that is not fenced: it may take as long as it moves.
#[tokio::test]
async fn an_upload_that_is_not_fenced_may_take_longer_than_that() {
    for path in ["/open/7", "/seen/7"] {
        let body = "upstream: { timeout: 1500ms }
body: { buffer: 1KiB, timeout: 1500ms, progress_timeout: 60s }";
        let (upstream, proxy) = fenced(&format!("{body}{MODES}")).await;
        let request = put(path).token(1).header("Content-Length", "2000");
        let mut slow = proxy.begin(&request, &vec![b'x'; 1000]).await;
        for _ in 0..20 {
            // Longer than both limits in all.
            tokio::time::sleep(Duration::from_millis(100)).await;
            slow.push(&[b'x'; 50]).await;
        }
        slow.finish().await.assert_forwarded();
        assert_eq!(upstream.only().body.len(), 2000, "{path}");
    }
}

/// A client of a stream both ways may wait for an answer before it sends more.
#[tokio::test]
async fn while_it_is_answered_a_client_may_pause() {
    let (upstream, proxy) = fenced(&format!("body: {{ progress_timeout: 1500ms }}{MODES}")).await;
    upstream.next([
        Step::Early,
        Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf"),
        Step::Work(Duration::from_millis(2500)),
        Step::raw("done"),
    ]);
    let request = post("/open/7").chunks(&[], "");
    let mut both = proxy.begin(&request, &chunk(b"first")).await;
    let answer = both.finish().await;
    assert_eq!((answer.status(), answer.text().as_str()), (200, "halfdone"));
    assert_eq!(proxy.reached("body-progress").await, 0);
}

#[tokio::test]
async fn bodies_find_room_or_are_refused_and_give_it_back() {
    let (upstream, proxy) =
        fenced("{ limits: { body_memory: 64KiB }, body: { buffer: 1MiB } }").await;
    // More than there is in all.
    let answer = proxy
        .send(put("/orders/1").token(1).body(vec![b'x'; 66_000]))
        .await;
    answer.assert_problem(503, "overloaded");
    assert_eq!(answer.retry_after(), Some(1));
    assert_eq!(upstream.count(), 0);
    eventually("the room to be given back", || async {
        let fits = put("/orders/0").token(1).body(vec![b'x'; 40_000]);
        (proxy.send(fits).await.status() == 200).then_some(())
    })
    .await;
    // Memory that one holds, another does not get. Where both come at once the holder may be
    // refused: then both begin again.
    let request = put("/orders/2").token(1).header("Content-Length", "30000");
    let second = || put("/orders/3").token(1).body(vec![b'x'; 40_000]);
    eventually("a body without room beside one that has it", || async {
        let mut holder = proxy.begin(&request, &vec![b'x'; 29_000]).await;
        let answer = second().attempt(proxy.data()).await.ok()?;
        if answer.status() != 503 {
            return None;
        }
        holder.wire.send(&vec![b'x'; 1000]).await.ok()?;
        (holder.answer().await.ok()?.status() == 200).then_some(())
    })
    .await;
    assert!(proxy.reached("body-memory").await >= 2);
    // Once the clients that left in between are known to be gone.
    proxy.until_forwarded(second()).await;
    // And what was refused has left nothing behind.
    proxy
        .forward(put("/orders/4").token(1).body(vec![b'x'; 48_000]))
        .await;
}

#[tokio::test]
async fn a_refusal_ahead_of_its_body_says_that_the_connection_ends() {
    let (_upstream, proxy) = fenced(MODES).await;
    proxy.forward(put("/orders/1").token(7)).await;
    let head =
        "PUT /orders/1 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 6\r\nContent-Length: 3\r\n\r\n";
    let mut wire = Wire::connect(proxy.data()).await.expect("it listens");
    let mut refused = async |request: String, connection| {
        wire.send(request.as_bytes()).await.expect("it is open");
        let answer = soon("an answer", wire.head()).await.expect("HTTP");
        let answer = answer.expect("an answer");
        assert_eq!(answer.word(1), "412");
        assert_eq!(answer.get("connection"), connection);
        let body = wire.body(answer.response_framing(false), |_| {});
        soon("its body", body).await.expect("HTTP");
    };
    // With its body there is nothing in the way of the next request.
    for _ in 0..2 {
        refused(format!("{head}new"), None).await;
    }
    // Without it, a client that sends another one would send it into a closed connection.
    refused(head.to_owned(), Some("close")).await;
    let end = soon("the end", wire.peek()).await.expect("a good end");
    assert_eq!(end, None);
}
