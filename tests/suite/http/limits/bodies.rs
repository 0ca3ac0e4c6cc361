//! Bodies: how long they may be, how long they may take, and how much of them is held at once.

use std::time::Duration;

use crate::http::{MODES, before};
use crate::support::bare::BareUpstream;
use crate::support::http2::{Http2, Outcome, head};
use crate::support::wire::chunk;
use crate::support::{Step, eventually, fenced, joined, post, put};

/// Where a fence is not in the way: `unfenced_bodies`.
#[tokio::test]
async fn a_body_over_the_limit_is_refused_or_broken_off_where_it_is_fenced() {
    let (upstream, proxy) = fenced("body: { buffer: 1KiB, max: 4KiB }").await;
    let request = || post("/orders/1").token(1);
    proxy.forward(request().body(vec![b'x'; 4096])).await;
    let long = request().body(vec![b'x'; 4097]);
    proxy.refuse(long, 413, "content-too-large").await;
    assert_eq!(upstream.count(), 1);
    assert_eq!(proxy.reached("body-max").await, 1);
    // Of unknown length: found out on the way. A part of it may have taken effect.
    let longer = request().chunks(&[&[b'x'; 1000][..]; 10], "");
    if let Ok(answer) = longer.attempt(proxy.data()).await {
        answer.assert_problem(502, "outcome-unknown");
    }
    let arrivals = upstream.arrivals();
    assert!(arrivals.iter().all(|one| one.body.len() <= 4096));
    assert!(arrivals[1..].iter().all(|one| !one.whole));
    proxy.until_reached("body-max", 2).await;
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

/// Of one that is streamed a part is gone: its outcome is unknown.
#[tokio::test]
async fn a_body_has_to_arrive_in_time_and_may_not_pause_for_long() {
    for (body, part, limit) in [
        ("timeout: 300ms, progress_timeout: 60s", 4, "body-timeout"),
        ("timeout: 300s, progress_timeout: 300ms", 4, "body-progress"),
        (
            "buffer: 1KiB, progress_timeout: 300ms",
            20_000,
            "body-progress",
        ),
    ] {
        let (status, kind, retry, sent) = match part {
            4 => (408, "request-timeout", "same-token", 0),
            _ => (502, "outcome-unknown", "check-first", 1),
        };
        let (upstream, proxy) = fenced(&format!("body: {{ {body} }}")).await;
        let request = put("/orders/7").token(1).header("Content-Length", "100000");
        let mut slow = proxy.begin(&request, &vec![b'x'; part]).await;
        let problem = slow.finish().await.assert_problem(status, kind);
        assert_eq!(problem["retry"], retry, "{body}");
        assert_eq!(upstream.count(), sent, "{body}");
        assert!(upstream.arrivals().iter().all(|one| !one.whole), "{body}");
        assert_eq!(proxy.token("order:7").await.is_some(), sent == 1, "{body}");
        for counted in ["body-timeout", "body-progress"] {
            let times = u64::from(counted == limit);
            assert_eq!(proxy.reached(counted).await, times, "{body}: {counted}");
        }
    }
}

/// The messages of a gRPC call come when there is something to say.
#[tokio::test]
async fn a_grpc_call_may_be_slow() {
    let upstream = BareUpstream::start().await;
    let more = format!("body: {{ timeout: 300s, progress_timeout: 1500ms }}{MODES}");
    let proxy = before(&upstream.h2c(), &more).await;
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
    let body = |path: &str, length: usize| put(path).token(1).body(vec![b'x'; length]);
    // More than there is in all.
    let answer = proxy.send(body("/orders/1", 66_000)).await;
    answer.assert_problem(503, "overloaded");
    assert_eq!(answer.retry_after(), Some(1));
    assert_eq!(upstream.count(), 0);
    // Memory that one holds, another does not get. Where both come at once the holder may be
    // refused: then both begin again.
    let request = put("/orders/2").token(1).header("Content-Length", "30000");
    eventually("a body without room beside one that has it", || async {
        let mut holder = proxy.begin(&request, &vec![b'x'; 29_000]).await;
        let second = body("/orders/3", 40_000).attempt(proxy.data()).await.ok()?;
        if second.status() != 503 {
            return None;
        }
        holder.wire.send(&vec![b'x'; 1000]).await.ok()?;
        (holder.answer().await.ok()?.status() == 200).then_some(())
    })
    .await;
    assert!(proxy.reached("body-memory").await >= 2);
    // Once the clients that left in between are known to be gone, nothing is left behind.
    proxy.until_forwarded(body("/orders/4", 48_000)).await;
    proxy.forward(body("/orders/4", 48_000)).await;
}
