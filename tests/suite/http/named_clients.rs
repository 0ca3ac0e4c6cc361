//! Clients that others name: `X-Forwarded-For` of trusted proxies.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::support::{Request, fenced, get, post, put};

/// A load balancer's address in the tests.
const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// A client can begin `X-Forwarded-For` with any address. The proxy in front appends the one that
/// it has seen.
#[tokio::test]
async fn the_client_behind_trusted_proxies_is_read_from_the_right() {
    let (upstream, proxy) =
        fenced("{ trusted_proxies: [127.0.0.9, 10.0.0.0/8], claim: { addresses: [192.0.2.7] } }")
            .await;
    let claim = post("/.well-known/fencing/claim")
        .header("X-Fencing-Resource", "order:7")
        .token(5);
    for (from, forwarded, let_in, client) in [
        (BALANCER, "192.0.2.7, 198.51.100.1", false, "198.51.100.1"),
        (BALANCER, "192.0.2.7, unknown, 10.0.0.2", false, "10.0.0.2"),
        // Nobody trusts this peer.
        (Ipv4Addr::LOCALHOST, "192.0.2.7", false, "127.0.0.1"),
        (
            BALANCER,
            "198.51.100.1, 192.0.2.7, 10.0.0.2",
            true,
            "192.0.2.7",
        ),
    ] {
        let named = |request: Request| request.header("X-Forwarded-For", forwarded);
        let answer = named(claim.clone()).send_from(from, proxy.data()).await;
        let outcome = if let_in {
            assert_eq!(answer.status(), 204, "{forwarded}: {}", answer.text());
            let stale = named(put("/orders/7").token(1));
            let refused = stale.send_from(from, proxy.data()).await;
            refused.assert_problem(412, "stale-token");
            "stale-token"
        } else {
            answer.assert_problem(403, "client-refused");
            "client-refused"
        };
        let of_it = |line: &Value| line["outcome"] == outcome && line["client"] == client;
        let line = proxy.logged("the refusal", of_it).await;
        assert!(let_in || line["forwarded_for"] == forwarded, "{line}");
    }
    // The upstream still reads who has connected.
    let read = get("/orders/7").header("X-Forwarded-For", "192.0.2.7");
    let answer = read.send_from(BALANCER, proxy.data()).await;
    answer.assert_forwarded();
    let head = upstream.last().head;
    assert_eq!(head.get("x-forwarded-for"), Some("192.0.2.7, 127.0.0.9"));
}

#[tokio::test]
async fn shares_are_of_the_clients_behind_a_trusted_proxy() {
    let (upstream, proxy) = fenced(
        "{ trusted_proxies: [127.0.0.1],
           limits: { in_flight: 8, in_flight_per_client: 1, connections_per_client: 1 } }",
    )
    .await;
    let gate = upstream.hold_next();
    let of = |request: Request, client: &str| {
        // Each begins it with an address of its own choice.
        request.header(
            "X-Forwarded-For",
            format!("203.0.113.{}, {client}", client.len()),
        )
    };
    let mut held = proxy.begin(&of(get("/slow"), "192.0.2.7"), b"").await;
    upstream.reached(1).await;
    let more = proxy.send(of(get("/orders/7"), "192.0.2.7")).await;
    more.assert_problem(503, "overloaded");
    proxy.until_reached("in-flight-per-client", 1).await;
    proxy.forward(of(get("/orders/7"), "192.0.2.8")).await;
    gate.open();
    held.finish().await.assert_forwarded();
    // The connections of the proxy carry the requests of many.
    assert_eq!(proxy.reached("connections-per-client").await, 0);
}
