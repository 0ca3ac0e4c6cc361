//! Shares of the places: what one HTTP/2 connection, one address and one resource leave to others.

use std::net::Ipv4Addr;

use tokio::task::{JoinHandle, JoinSet};

use super::connections::open;
use crate::http::MODES;
use crate::support::client::Exchange;
use crate::support::http2::{Fields, Http2, Outcome, fenced_head};
use crate::support::{
    Answer, Gate, Must, Proxy, Request, Step, Upstream, all_forwarded, fenced, get, joined, post,
    put, soon,
};

/// Names of SETTINGS.
const HEADER_TABLE_SIZE: u16 = 1;
const CONCURRENT_STREAMS: u16 = 3;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// Addresses of this machine.
const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const ANOTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const A_THIRD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

/// The head of a PUT, with the length of a body.
fn sized<'a>(path: &'a str, length: &'a [u8]) -> Fields<'a> {
    let mut fields = fenced_head(path, "7");
    fields.push(("content-length", length));
    fields
}

/// A proxy before an upstream that holds all requests for `paths` until the gate is opened.
async fn holding(paths: &'static [&'static str], more: &str) -> (Upstream, Proxy, Gate) {
    let (upstream, proxy) = fenced(more).await;
    let gate = Gate::shut();
    let held = gate.clone();
    upstream.otherwise(move |head| {
        let waits = paths
            .contains(&head.word(1))
            .then(|| Step::Wait(held.clone()));
        waits.into_iter().chain([Step::ok()]).collect()
    });
    (upstream, proxy, gate)
}

/// Sends a request from an address, in a task of its own.
fn start_from(ip: Ipv4Addr, proxy: &Proxy, request: Request) -> JoinHandle<Answer> {
    let to = proxy.data();
    tokio::spawn(async move { request.send_from(ip, to).await })
}

/// So many more clients of a resource with the token 2.
fn join(crowd: &mut JoinSet<Answer>, proxy: &Proxy, path: &str, count: usize) {
    for _ in 0..count {
        let (request, to) = (put(path).token(2), proxy.data());
        crowd.spawn(async move { request.send(to).await });
    }
}

/// The next one of a crowd that has its answer.
async fn next(crowd: &mut JoinSet<Answer>) -> Answer {
    let answer = soon("an answer to one of a crowd", crowd.join_next()).await;
    answer.expect("one is left").expect("no panic")
}

/// Requests of others are served.
async fn others_are_served(proxy: &Proxy, count: usize) {
    for number in 0..count {
        let other = put(&format!("/orders/{}", number + 10)).token(3);
        proxy.forward(other.body("whole")).await;
    }
}

/// The attack of the security review: a connection opens all its streams, and sends no body.
#[tokio::test]
async fn one_http_2_connection_does_not_take_all_places() {
    let (upstream, proxy) = fenced(&format!("limits: {{ in_flight: 8 }}{MODES}")).await;
    // One that is read before it is judged, one that is streamed, and one that is not fenced.
    for (path, length) in [
        ("/orders/1", &b"100"[..]),
        ("/orders/2", b"9999999"),
        ("/open/3", b"100"),
    ] {
        let mut client = Http2::open(proxy.data()).await;
        let mut last = 0;
        for _ in 0..50 {
            last = client.head(&sized(path, length), false).await;
        }
        let became = client.answer(last).await;
        others_are_served(&proxy, 20).await;
        // The connection has a quarter of the places, and was told so.
        let told = client.settings.get(&CONCURRENT_STREAMS);
        assert_eq!(told, Some(&2), "{path}");
        assert_eq!(became, Outcome::Reset(REFUSED_STREAM), "{path}");
        let arrivals = upstream.arrivals();
        let arrived = arrivals.iter().filter(|one| one.target() == path);
        assert!(arrived.count() <= 2, "{path}");
    }
}

/// Streams that the client has reset count as long as the upstream works on their requests.
#[tokio::test]
async fn a_connection_that_resets_its_streams_gets_no_more_places_by_that() {
    let (upstream, proxy, gate) = holding(&["/orders/7"], "limits: { in_flight: 8 }").await;
    // Without a table for compression every answer says its status in full.
    let mut client = Http2::with_settings(proxy.data(), &[(HEADER_TABLE_SIZE, 0)]).await;
    let whole = sized("/orders/7", b"0");
    for number in 1..=2 {
        let stream = client.head(&whole, true).await;
        upstream.reached(number).await;
        client.reset(stream, CANCEL).await;
    }
    let over = client.head(&whole, true).await;
    assert_eq!(client.answer(over).await, Outcome::Status(503));
    assert_eq!(upstream.count(), 2, "nothing of it was forwarded");
    proxy.until_reached("in-flight-per-connection", 1).await;
    others_are_served(&proxy, 1).await;
    gate.open();
    soon("its places to be free", async {
        loop {
            let stream = client.head(&whole, true).await;
            match client.answer(stream).await {
                Outcome::Status(503) => {}
                answer => break assert_eq!(answer, Outcome::Status(200)),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn one_address_leaves_places_to_others() {
    let limits = "limits: { in_flight: 8, in_flight_per_client: 2 }";
    let (upstream, proxy, gate) = holding(&["/slow"], limits).await;
    let request = || post("/orders/7").token(1);
    let held = [(); 2].map(|()| start_from(ONE, &proxy, get("/slow")));
    upstream.reached(2).await;
    let over = request().send_from(ONE, proxy.data()).await;
    over.assert_problem(503, "overloaded");
    assert_eq!(over.retry_after(), Some(1));
    assert_eq!(proxy.reached("in-flight-per-client").await, 1);
    let other = request().send_from(ANOTHER, proxy.data()).await;
    other.assert_forwarded();
    gate.open();
    all_forwarded(held).await;
    let again = request().send_from(ONE, proxy.data()).await;
    again.assert_forwarded();
}

/// The default of `barrier.queue` is far above the number of places.
#[tokio::test]
async fn the_requests_that_wait_at_one_resource_leave_places_to_others() {
    let more = "{ limits: { in_flight: 8 }, barrier: { wait: 25s, grace: 300s } }";
    let (upstream, proxy, gate) = holding(&["/orders/7"], more).await;
    let older = proxy.start_request(put("/orders/7").token(1));
    upstream.reached(1).await;
    let mut crowd = JoinSet::new();
    join(&mut crowd, &proxy, "/orders/7", 12);
    for _ in 0..7 {
        let refused = next(&mut crowd).await;
        refused.assert_problem(503, "overloaded");
        assert!(refused.retry_after().is_some());
    }
    proxy.waiting("order:7", 5).await;
    assert!(proxy.reached("in-flight-per-resource").await > 0);
    others_are_served(&proxy, 5).await;
    // A newer holder is not kept out by the crowd.
    let newest = proxy.start_request(put("/orders/7").token(3));
    for _ in 0..5 {
        next(&mut crowd).await.assert_problem(412, "stale-token");
    }
    gate.open();
    all_forwarded([older, newest]).await;
    assert_eq!(upstream.tokens("order:7"), [1, 3]);
}

/// Requests of one token do not wait for each other, and are bounded all the same.
#[tokio::test]
async fn the_requests_in_flight_of_one_resource_leave_places_to_others() {
    let (upstream, proxy, gate) = holding(&["/orders/7"], "limits: { in_flight: 8 }").await;
    let request = || put("/orders/7").token(1);
    let held = [(); 6].map(|()| proxy.start_request(request()));
    upstream.reached(6).await;
    proxy.refuse(request(), 503, "overloaded").await;
    others_are_served(&proxy, 1).await;
    gate.open();
    all_forwarded(held).await;
    proxy.forward(request()).await;
}

/// However many addresses there are, they have no share all together that leaves nothing to one
/// more.
#[tokio::test]
async fn addresses_together_leave_places_to_one_more() {
    let limits = "limits: { in_flight: 16, in_flight_per_client: 12 }";
    let (upstream, proxy, gate) = holding(&["/slow"], limits).await;
    let mut held = Vec::new();
    for (ip, so_far) in [(ONE, 12), (ANOTHER, 15)] {
        held.extend([(); 12].map(|()| start_from(ip, &proxy, get("/slow"))));
        upstream.reached(so_far).await;
    }
    // Two addresses leave less than one.
    proxy.until_reached("in-flight-per-client", 1).await;
    assert_eq!(upstream.count(), 15);
    let other = post("/orders/7").token(1);
    let other = other.send_from(A_THIRD, proxy.data()).await;
    other.assert_forwarded();
    gate.open();
}

/// Each crowd has its resource's share at the most, and together they leave places to what need not
/// wait.
#[tokio::test]
async fn crowds_at_many_resources_leave_places_to_others() {
    let more = "{ limits: { in_flight: 16 }, barrier: { wait: 25s, grace: 300s } }";
    let (upstream, proxy, gate) = holding(&["/orders/7", "/orders/8"], more).await;
    let mut crowds = JoinSet::new();
    let mut holders = Vec::new();
    for (count, path) in ["/orders/7", "/orders/8"].into_iter().enumerate() {
        holders.push(proxy.start_request(put(path).token(1)));
        upstream.reached(count + 1).await;
        join(&mut crowds, &proxy, path, 8);
    }
    for _ in 0..4 {
        next(&mut crowds).await.assert_problem(503, "overloaded");
    }
    others_are_served(&proxy, 5).await;
    gate.open();
    for holder in holders {
        joined(holder).await.assert_forwarded();
    }
    for _ in 0..12 {
        next(&mut crowds).await.assert_forwarded();
    }
}

/// A tunnel lasts as long as its client likes, and silence costs nothing.
#[tokio::test]
async fn tunnels_leave_places_to_requests() {
    let (upstream, proxy) = fenced(&format!("limits: {{ in_flight: 2 }}{MODES}")).await;
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        tunnels.push(tunnel(&upstream, &proxy).await);
    }
    // A tunnel has left HTTP, and its descriptor has not left the process.
    open(&proxy, 3.0).await;
    proxy.forward(put("/orders/7").token(1)).await;
    drop(tunnels);
    open(&proxy, 0.0).await;
}

/// A tunnel that bytes have passed.
async fn tunnel(upstream: &Upstream, proxy: &Proxy) -> Exchange {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    upstream.next([Step::raw(switch), Step::Echo]);
    let upgrade = get("/open/chat").header("Connection", "Upgrade");
    let mut tunnel = proxy.begin(&upgrade.header("Upgrade", "echo"), b"").await;
    assert_eq!(tunnel.any_head().await.word(1), "101");
    tunnel.wire.send(b"hello").must().await;
    assert_eq!(soon("the echo", tunnel.wire.some()).must().await, b"hello");
    tunnel
}
