//! The stop: what was admitted is answered, clients are told, and it ends in time whatever they do.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::client::Exchange;
use crate::support::http2::{END_STREAM, GOAWAY, HEADERS, Http2, Outcome, PREFACE, block, frame};
use crate::support::wire::Wire;
use crate::support::{
    Config, Gate, Must, Proxy, Step, Store, Upstream, eventually, fenced, joined, or_return,
    over_both_stores, put, soon,
};

/// Sends SIGTERM and waits until the proxy has heard it.
async fn told_to_stop(proxy: &mut Proxy) {
    proxy.process().signal(Signal::TERM);
    proxy.until_ready_is(503).await;
}

/// The head of a fenced request over HTTP/2.
fn fields(path: &str) -> Vec<(&str, &[u8])> {
    vec![
        (":method", b"PUT"),
        (":scheme", b"http"),
        (":authority", b"app.test"),
        (":path", path.as_bytes()),
        ("x-fencing-token", b"7"),
    ]
}

/// The paths that were answered.
type Answered = Arc<Mutex<BTreeSet<String>>>;

fn paths(answered: &Answered) -> MutexGuard<'_, BTreeSet<String>> {
    answered.lock().expect("nothing panics under this lock")
}

/// One request after the other on kept-alive connections, until there are none any more.
async fn on_http1(proxy: SocketAddr, client: usize, answered: Answered) {
    let mut connection = None;
    for n in 0.. {
        let path = format!("/orders/{client}-{n}");
        if connection.is_none() {
            connection = Exchange::open(proxy, "PUT").await.ok();
        }
        let mut exchange = or_return!(connection.take());
        let request = put(&path).token(7).body("x");
        let sent = exchange.wire.send(&request.bytes()).await;
        // A connection that was closed before this request was read is not an answer that was lost.
        if let (Ok(()), Ok(answer)) = (sent, exchange.answer().await) {
            answer.assert_forwarded();
            assert_eq!(answer.body.len(), 100_000, "the whole answer");
            paths(&answered).insert(path);
            if answer.header("connection").is_none() {
                connection = Some(exchange);
            }
        }
    }
}

/// As [`on_http1`], with several streams at once, and whole answers counted by their status.
async fn on_http2(proxy: SocketAddr, client: usize, answered: Answered) {
    let mut http2 = Http2::open(proxy).await;
    for n in 0.. {
        let mut streams = Vec::new();
        for at in 0..4 {
            let name = format!("/orders/h2-{client}-{n}-{at}");
            streams.push((http2.head(&fields(&name), true).await, name));
        }
        for (stream, name) in streams {
            match http2.answer(stream).await {
                Outcome::Status(200) => {
                    paths(&answered).insert(name);
                }
                Outcome::Gone(None | Some(0)) | Outcome::Reset(7) => return,
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

over_both_stores! {
    async fn a_stop_under_load_loses_nothing_that_was_admitted(store: Store) {
        let upstream = Upstream::start().await;
        upstream.otherwise(|head| {
            let body = if head.word(1).starts_with("/orders/h2") { "done" } else { &"x".repeat(100_000) };
            vec![Step::Work(Duration::from_millis(20)), Step::answer("200 OK", "", body)]
        });
        let mut proxy = Proxy::start(&Config::new(&upstream, &store)).await;
        let answered = Answered::default();
        let mut clients = Vec::new();
        for client in 0..12 {
            clients.push(tokio::spawn(on_http1(proxy.data(), client, answered.clone())));
        }
        for client in 0..4 {
            clients.push(tokio::spawn(on_http2(proxy.data(), client, answered.clone())));
        }
        eventually("the load to run", || {
            let enough = paths(&answered).len() >= 100;
            std::future::ready(enough.then_some(()))
        }).await;
        proxy.stop().await;
        for client in clients {
            joined(client).await;
        }
        let mut lost = upstream.arrivals();
        lost.retain(|arrival| !paths(&answered).contains(arrival.target()));
        assert!(lost.is_empty(), "admitted and never answered: {lost:?}");
        assert_eq!(store.number(&store.open_epochs("true")).await, 0, "nothing is unknown");
    }

    async fn what_the_deadline_cuts_stays_on_record_and_nothing_else_does(store: Store) {
        let (upstream, mut proxy) = Proxy::before(&store, "shutdown: { deadline: 500ms }").await;
        proxy.forward(put("/orders/6").token(6)).await;
        let (mut at_work, gate) = proxy.begin_held(&upstream, put("/orders/7").token(7)).await;
        proxy.stop().await;
        let cut = proxy.log_of("resources", "order:7").await;
        assert_eq!(cut["deadline"], "500ms");
        // The caller learns the truth: the outcome is unknown.
        if let Ok(answer) = at_work.answer().await {
            answer.assert_problem(502, "outcome-unknown");
        }
        assert_eq!(store.number(&store.open_epochs("true")).await, 1);
        let of_seven = store.open_epochs("resource = 'order:7' AND token = 7");
        assert_eq!(store.number(&of_seven).await, 1);
        gate.open();
    }
}

/// The connections have all ended before the deadline, and the work of one of them has not.
#[tokio::test]
async fn what_is_at_work_for_a_client_that_has_left_is_cut_in_good_order() {
    let store = Store::sqlite();
    let (upstream, mut proxy) = Proxy::before(&store, "shutdown: { deadline: 500ms }").await;
    let (at_work, gate) = proxy.begin_held(&upstream, put("/orders/7").token(7)).await;
    drop(at_work);
    proxy.stop().await;
    assert_eq!(store.number(&store.open_epochs("true")).await, 1);
    gate.open();
}

#[tokio::test]
async fn http1_clients_are_told_with_their_next_answer_and_served_until_then() {
    let (_upstream, mut proxy) = fenced("shutdown: { delay: 10s }").await;
    let mut kept = Exchange::open(proxy.data(), "PUT").must().await;
    let ask = put("/orders/7").token(7).bytes();
    kept.wire.send(&ask).must().await;
    let answer = kept.finish().await;
    assert_eq!(answer.assert_forwarded().header("connection"), None);
    told_to_stop(&mut proxy).await;
    kept.wire.send(&ask).must().await;
    let answer = kept.finish().await;
    answer.assert_forwarded();
    assert_eq!(answer.header("connection"), Some("close"));
    let end = soon("the end", kept.wire.head()).must().await;
    assert!(end.is_none());
    // The proxy's own answers say so too, and new connections are still taken.
    let refused = proxy.send(put("/orders/7").token(6)).await;
    refused.assert_problem(412, "stale-token");
    assert_eq!(refused.header("connection"), Some("close"));
}

#[tokio::test]
async fn http2_clients_are_told_in_two_steps_while_they_are_served() {
    let (upstream, mut proxy) = fenced("shutdown: { delay: 10s }").await;
    let gate = upstream.hold_next();
    let mut client = Http2::open(proxy.data()).await;
    client.polite = false;
    let first = client.head(&fields("/orders/7"), true).await;
    upstream.reached(1).await;
    told_to_stop(&mut proxy).await;
    let goodbye = client.until("a GOAWAY", |frame| frame.kind == GOAWAY).await;
    let last = &goodbye.payload[..4];
    assert_eq!(last, [0x7f, 0xff, 0xff, 0xff], "no stream is refused yet");
    // Sent before its client could know.
    let second = client.head(&fields("/orders/8"), true).await;
    upstream.reached(2).await;
    assert_eq!(client.answer(second).await, Outcome::Status(200));
    gate.open();
    assert_eq!(client.answer(first).await, Outcome::Status(200));
    // Others come to the open port meanwhile.
    let mut other = Http2::open(proxy.data()).await;
    let stream = other.head(&fields("/orders/9"), true).await;
    assert_eq!(other.answer(stream).await, Outcome::Status(200));
    let goodbyes = other.end().await;
    assert_eq!(goodbyes, [0, 0], "and is told, and ends with its work");
}

#[tokio::test]
async fn idle_connections_hold_nothing_up() {
    let (_upstream, mut proxy) = fenced("shutdown: { deadline: 600s }").await;
    let fresh = Wire::connect(proxy.data()).must().await;
    let mut kept = Exchange::open(proxy.data(), "PUT").must().await;
    kept.push(&put("/orders/7").token(7).bytes()).await;
    kept.finish().await.assert_forwarded();
    let mut http2 = Http2::open(proxy.data()).await;
    let stream = http2.head(&fields("/orders/8"), true).await;
    assert_eq!(http2.answer(stream).await, Outcome::Status(200));
    let mut unused = Http2::open(proxy.data()).await;
    let idle = tokio::spawn(async move { (http2.end().await, unused.end().await) });
    proxy.stop().await;
    assert!(kept.wire.head().must().await.is_none());
    let (goodbyes, _) = idle.must().await;
    assert_eq!(goodbyes, [0, 0]);
    drop(fresh);
}

#[tokio::test]
async fn it_ends_in_time_whatever_clients_do() {
    let routes =
        "[{ path: '/orders/{id}', resource: 'order:{id}' }, { path: '/free/{id}', mode: bypass }]";
    let more = format!("{{ shutdown: {{ deadline: 2s }}, routes: {routes} }}");
    let (upstream, mut proxy) = fenced(&more).await;
    let data = proxy.data();
    let long = [Step::answer("200 OK", "", &"x".repeat(64 << 20))];
    upstream.when(|head| head.word(1) == "/orders/unread", long);
    let gate = Gate::shut();
    let held = [Step::Wait(gate.clone()), Step::ok()];
    upstream.when(|head| head.word(1) == "/orders/slow", held);
    let sized = |path: &str| put(path).token(7).header("Content-Length", "9000000");
    // An upload that has been admitted, one that has not, and one that nobody judges: all stall.
    let beginning = vec![b'x'; 20 << 10];
    let streamed = proxy.begin(&sized("/orders/streamed"), &beginning).await;
    let short = put("/orders/buffered").token(7);
    let short = short.header("Content-Length", "10");
    let buffered = proxy.begin(&short, b"part").await;
    let free = proxy.begin(&sized("/free/7"), b"part").await;
    let unread = proxy.begin(&put("/orders/unread").token(7), b"").await;
    let slow = proxy.begin(&put("/orders/slow").token(7), b"").await;
    upstream.reached(4).await;
    let mut half = Wire::connect(data).must().await;
    half.send(b"PUT /orders/7 HTTP/1.1\r\nHost: a").must().await;
    let mut preface = Wire::connect(data).must().await;
    preface.send(&PREFACE[..10]).must().await;
    let mut silent = Http2::open(data).await;
    silent.polite = false;
    let mut cut = Http2::open(data).await;
    let request = frame(HEADERS, END_STREAM, 1, &block(&fields("/orders/7")));
    cut.send(&request).must().await;
    let mut stalled = Http2::with_settings(data, &[(4, 0)]).await;
    stalled.head(&fields("/orders/windowless"), true).await;
    upstream.reached(5).await;
    let began = Instant::now();
    proxy.stop().await;
    let took = began.elapsed();
    // The deadline, a second to notice it, and the store's timeout at the most.
    assert!(took < Duration::from_secs(15), "{took:?}");
    drop((
        streamed, buffered, free, unread, slow, half, preface, silent, cut, stalled,
    ));
    gate.open();
}
