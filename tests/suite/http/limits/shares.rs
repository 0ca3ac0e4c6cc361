//! Shares of the places: what one HTTP/2 connection, one address and one resource leave to others.

use std::net::SocketAddr;

use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::support::client::Exchange;
use crate::support::http2::{Fields, Http2, Outcome, fenced_head};
use crate::support::wire::{Io, Wire};
use crate::support::{
    Gate, Proxy, Request, Step, Upstream, eventually, fenced, get, joined, post, put, soon,
};

/// The head of a PUT, with the length of a body.
fn sized<'a>(path: &'a str, length: &'a [u8]) -> Fields<'a> {
    let mut fields = fenced_head(path, "7");
    fields.push(("content-length", length));
    fields
}

/// Names of SETTINGS.
const HEADER_TABLE_SIZE: u16 = 1;
const CONCURRENT_STREAMS: u16 = 3;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// Holds everything of one path up until the gate is opened.
fn hold(upstream: &Upstream, path: &'static str) -> Gate {
    let gate = Gate::shut();
    let held = gate.clone();
    upstream.otherwise(move |head| {
        if head.word(1) == path {
            vec![Step::Wait(held.clone()), Step::ok()]
        } else {
            vec![Step::ok()]
        }
    });
    gate
}

/// The attack of the security review: a connection opens all its streams, and sends no body.
#[tokio::test]
async fn one_http_2_connection_does_not_take_all_places() {
    let (_upstream, proxy) = fenced(
        "limits: { in_flight: 8 }
routes:
  - { path: '/orders/{id}', resource: 'order:{id}' }
  - { path: '/open/{id}', mode: bypass }",
    )
    .await;
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
        for number in 0..20 {
            let other = put(&format!("/orders/{}", number + 10)).token(1);
            proxy.forward(other.body("whole")).await;
        }
        // The connection has a quarter of the places, and was told so.
        let told = client.settings.get(&CONCURRENT_STREAMS);
        assert_eq!(told, Some(&2), "{path}");
        assert_eq!(became, Outcome::Reset(REFUSED_STREAM), "{path}");
    }
}

/// Streams that the client has reset count as long as the upstream works on their requests.
#[tokio::test]
async fn a_connection_that_resets_its_streams_gets_no_more_places_by_that() {
    let (upstream, proxy) = fenced("limits: { in_flight: 8 }").await;
    let gate = hold(&upstream, "/orders/7");
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
    let other = put("/orders/8").token(1);
    proxy.forward(other).await;
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

/// Sends a request from an address of this machine.
async fn begin_from(ip: &str, proxy: &Proxy, request: &Request) -> Exchange {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = SocketAddr::new(ip.parse().expect("an address"), 0);
    socket.bind(from).expect("all of 127/8 is this machine's");
    let stream = socket.connect(proxy.data()).await.expect("it listens");
    let mut exchange = Exchange::over(Wire::new(Io::Tcp(stream)), request);
    let sent = exchange.wire.send(&request.bytes()).await;
    sent.expect("the request is taken");
    exchange
}

#[tokio::test]
async fn one_address_leaves_places_to_others() {
    let (upstream, proxy) = fenced("limits: { in_flight: 8, in_flight_per_client: 2 }").await;
    let gate = hold(&upstream, "/slow");
    let request = post("/orders/7").token(1);
    let (mut first, mut second) = {
        let slow = get("/slow");
        let first = begin_from("127.0.0.2", &proxy, &slow).await;
        (first, begin_from("127.0.0.2", &proxy, &slow).await)
    };
    upstream.reached(2).await;
    let mut third = begin_from("127.0.0.2", &proxy, &request).await;
    let answer = third.finish().await;
    answer.assert_problem(503, "overloaded");
    assert_eq!(answer.retry_after(), Some(1));
    assert_eq!(proxy.reached("in-flight-per-client").await, 1);
    let mut other = begin_from("127.0.0.3", &proxy, &request).await;
    other.finish().await.assert_forwarded();
    gate.open();
    first.finish().await.assert_forwarded();
    second.finish().await.assert_forwarded();
    let mut again = begin_from("127.0.0.2", &proxy, &request).await;
    again.finish().await.assert_forwarded();
}

/// By default a loopback address has no share: all clients of a mesh's sidecar come by one.
#[tokio::test]
async fn clients_that_share_a_loopback_address_have_all_places() {
    let (upstream, proxy) = fenced("limits: { in_flight: 4 }").await;
    let gate = hold(&upstream, "/slow");
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(proxy.begin(&get("/slow"), b"").await);
    }
    upstream.reached(4).await;
    let answer = proxy.send(put("/orders/7").token(1)).await;
    answer.assert_problem(503, "overloaded");
    assert!(proxy.reached("in-flight").await > 0);
    gate.open();
    for mut one in all {
        one.finish().await.assert_forwarded();
    }
}

/// The default of `barrier.queue` is far above the number of places.
#[tokio::test]
async fn the_requests_that_wait_at_one_resource_leave_places_to_others() {
    let more = "{ limits: { in_flight: 8 }, barrier: { wait: 25s, grace: 300s } }";
    let (upstream, proxy) = fenced(more).await;
    let gate = hold(&upstream, "/orders/7");
    let older = proxy.start_request(put("/orders/7").token(1));
    upstream.reached(1).await;
    let mut crowd = JoinSet::new();
    for _ in 0..12 {
        let to = proxy.data();
        crowd.spawn(async move { put("/orders/7").token(2).send(to).await });
    }
    for _ in 0..7 {
        let refused = soon("a refusal", crowd.join_next()).await;
        let refused = refused.expect("they are twelve").expect("no panic");
        refused.assert_problem(503, "overloaded");
        assert!(refused.retry_after().is_some());
    }
    proxy.waiting("order:7", 5).await;
    assert!(proxy.reached("in-flight-per-resource").await > 0);
    for number in 0..5 {
        let other = put(&format!("/orders/{}", number + 10)).token(1);
        proxy.forward(other).await;
    }
    // A newer holder is not kept out by the crowd.
    let newest = proxy.start_request(put("/orders/7").token(3));
    while let Some(superseded) = soon("the crowd", crowd.join_next()).await {
        let superseded = superseded.expect("no panic");
        superseded.assert_problem(412, "stale-token");
    }
    gate.open();
    for ends in [older, newest] {
        joined(ends).await.assert_forwarded();
    }
    assert_eq!(upstream.tokens("order:7"), [1, 3]);
}

/// Requests of one token do not wait for each other, and are bounded all the same.
#[tokio::test]
async fn the_requests_in_flight_of_one_resource_leave_places_to_others() {
    let (upstream, proxy) = fenced("limits: { in_flight: 8 }").await;
    let gate = hold(&upstream, "/orders/7");
    let request = || put("/orders/7").token(1);
    let held: Vec<_> = (0..6).map(|_| proxy.start_request(request())).collect();
    upstream.reached(6).await;
    proxy.refuse(request(), 503, "overloaded").await;
    let other = put("/orders/8").token(1);
    proxy.forward(other).await;
    gate.open();
    for one in held {
        joined(one).await.assert_forwarded();
    }
    proxy.forward(request()).await;
}

/// However many addresses there are, they have no share all together that leaves nothing to one
/// more.
#[tokio::test]
async fn addresses_together_leave_places_to_one_more() {
    let (upstream, proxy) = fenced("limits: { in_flight: 16, in_flight_per_client: 12 }").await;
    let gate = hold(&upstream, "/slow");
    let slow = get("/slow");
    let mut held = Vec::new();
    for (ip, so_far) in [("127.0.0.2", 12), ("127.0.0.3", 15)] {
        for _ in 0..12 {
            held.push(begin_from(ip, &proxy, &slow).await);
        }
        upstream.reached(so_far).await;
    }
    // Two addresses leave less than one.
    proxy.until_reached("in-flight-per-client", 1).await;
    assert_eq!(upstream.count(), 15);
    let request = post("/orders/7").token(1);
    let mut other = begin_from("127.0.0.4", &proxy, &request).await;
    other.finish().await.assert_forwarded();
    gate.open();
}

/// Each crowd has its resource's share at the most, and together they leave places to what need not
/// wait.
#[tokio::test]
async fn crowds_at_many_resources_leave_places_to_others() {
    let more = "{ limits: { in_flight: 16 }, barrier: { wait: 25s, grace: 300s } }";
    let (upstream, proxy) = fenced(more).await;
    let gate = Gate::shut();
    for _ in 0..2 {
        upstream.on_token(1, [Step::Wait(gate.clone()), Step::ok()]);
    }
    let mut crowds = JoinSet::new();
    let mut holders = Vec::new();
    for (count, path) in ["/orders/7", "/orders/8"].into_iter().enumerate() {
        holders.push(proxy.start_request(put(path).token(1)));
        upstream.reached(count + 1).await;
        for _ in 0..8 {
            let to = proxy.data();
            crowds.spawn(async move { put(path).token(2).send(to).await });
        }
    }
    for _ in 0..4 {
        let refused = soon("a refusal", crowds.join_next()).await;
        let refused = refused.expect("they are sixteen").expect("no panic");
        refused.assert_problem(503, "overloaded");
    }
    for number in 0..5 {
        let other = put(&format!("/orders/{}", number + 10)).token(3);
        proxy.forward(other).await;
    }
    gate.open();
    for holder in holders {
        joined(holder).await.assert_forwarded();
    }
    while let Some(passed) = soon("the crowds", crowds.join_next()).await {
        passed.expect("no panic").assert_forwarded();
    }
}

/// A tunnel lasts as long as its client likes, and silence costs nothing.
#[tokio::test]
async fn tunnels_leave_places_to_requests() {
    let (upstream, proxy) = fenced(
        "limits: { in_flight: 4 }
routes:
  - { path: /chat, mode: bypass }
  - { path: '/orders/{id}', resource: 'order:{id}' }",
    )
    .await;
    upstream.otherwise(|head| match head.word(1) {
        "/chat" => vec![
            Step::raw(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
            ),
            Step::Echo,
        ],
        _ => vec![Step::ok()],
    });
    let upgrade = get("/chat")
        .header("Connection", "Upgrade")
        .header("Upgrade", "echo");
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        let mut tunnel = proxy.begin(&upgrade, b"").await;
        assert_eq!(tunnel.any_head().await.word(1), "101");
        tunnels.push(tunnel);
    }
    proxy.refuse(upgrade.clone(), 503, "overloaded").await;
    proxy.until_reached("tunnels", 1).await;
    let request = || put("/orders/7").token(1);
    proxy.forward(request()).await;
    tunnels.pop();
    eventually("a place for a tunnel", || async {
        let mut tunnel = proxy.begin(&upgrade, b"").await;
        (tunnel.any_head().await.word(1) == "101").then_some(())
    })
    .await;
}
