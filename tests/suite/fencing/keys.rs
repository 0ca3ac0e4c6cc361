//! The resource of a request: one thing has one key, two things have two (guarantee G6). Templates
//! and their parts are tested in `src/routing/`, requests without a key in `tests/edge/keys.toml`.

use std::collections::HashMap;
use std::process::Command;

use super::claim::by_key;
use super::client_recipes::run;
use crate::support::store::tool;
use crate::support::{Proxy, Request, Upstream, fenced, or_return, post, put};

/// The key that a request gets, as the upstream sees it.
pub async fn key_of(upstream: &Upstream, proxy: &Proxy, request: Request) -> String {
    proxy.forward(request).await;
    let last = upstream.arrivals().pop().expect("it has arrived");
    last.resource().expect("the key goes upstream").to_owned()
}

#[tokio::test]
async fn a_key_can_come_from_a_header() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/orders/{id}', resource: '{header.x-tenant}/{id}' }
         - { path: '/jobs', resource: 'job:{header.x-fencing-resource}' }",
    )
    .await;
    let of = |tenant: &str| put("/orders/7").token(1).header("X-Tenant", tenant);
    assert_eq!(key_of(&upstream, &proxy, of("acme")).await, "acme/7");
    let evil = key_of(&upstream, &proxy, of("evil/7")).await;
    assert_ne!(evil, "evil/7/7");
    let job = post("/jobs").token(1);
    let named = job.clone().header("X-Fencing-Resource", "nightly");
    assert_eq!(key_of(&upstream, &proxy, named).await, "job:nightly");
    proxy.refuse(of(""), 400, "ambiguous-request").await;
    proxy.refuse(job, 400, "ambiguous-request").await;
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_key_can_come_from_a_json_body() {
    let (upstream, proxy) = fenced(
        "{ routes: [{ path: /orders, resource: 'order:{json.order_id}' }], body: { buffer: 1KiB } }",
    )
    .await;
    let escaped = r#"{ "a": {"order_id": 9}, "\u006frder_id" : "\u0037"}"#;
    let key = key_of(&upstream, &proxy, json_post("/orders", escaped).token(1)).await;
    assert_eq!((&*key, &*upstream.last().text()), ("order:7", escaped));
    let twice = json_post("/orders", r#"{"order_id":"7","\u006frder_id":"8"}"#);
    proxy.refuse(twice.token(1), 400, "ambiguous-request").await;
    let long = format!(r#"{{"order_id":"7","x":"{}"}}"#, "x".repeat(2000));
    let chunked = json_post("/orders", "").chunks(&[long.as_bytes()], "");
    for too_long in [json_post("/orders", &long), chunked] {
        proxy
            .refuse(too_long.token(1), 413, "content-too-large")
            .await;
    }
    assert_eq!(upstream.count(), 1);
}

fn json_post(target: &str, body: &str) -> Request {
    post(target)
        .header("Content-Type", "application/json")
        .body(body)
}

/// What Node takes for one order has one key, or is refused.
#[tokio::test]
async fn numbers_that_node_reads_as_one_have_no_two_keys() {
    let node = or_return!(tool("node"));
    let (upstream, proxy) =
        fenced("{ routes: [{ path: /orders, resource: 'order:{json.order_id}' }] }").await;
    let ids = r#"
        7 "7" 7.0 -7 9007199254740990 9007199254740991 9007199254740992 9007199254740993
        -9007199254740992 -9007199254740993 18446744073709551614 18446744073709551615
        1e3 1000 "9007199254740993" "9007199254740992""#;
    let ids = ids.split_ascii_whitespace();
    let bodies: Vec<String> = ids.map(|id| format!("{{\"order_id\":{id}}}")).collect();
    let script = "for (const body of process.argv.slice(1)) console.log(JSON.parse(body).order_id)";
    let ran = run(Command::new(node).args(["-e", script, "--"]).args(&bodies)).await;
    let read = ran.said;
    assert_eq!(read.lines().count(), bodies.len());
    let mut keys = HashMap::new();
    for (body, order) in bodies.iter().zip(read.lines()) {
        let answer = proxy.send(json_post("/orders", body).token(1)).await;
        if answer.status() != 400 {
            answer.assert_forwarded();
            let last = upstream.last();
            let key = last.resource().expect("the key goes upstream").to_owned();
            let known = keys.entry(order).or_insert(key.clone());
            assert_eq!(*known, key, "{body} is {order} to Node");
        }
    }
    assert_eq!(keys.len(), 7, "{keys:?}");
}

#[tokio::test]
async fn a_plain_part_is_letters_digits_dash_and_underscore_or_nothing() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/orders/{id}', resource: 'order:{id|plain}' }
         - { path: '/files/{*rest}', resource: 'file:{rest|plain}' }
         - { path: '/things', resource: 'thing:{json.id|plain}' }",
    )
    .await;
    let thing = |id: &str| json_post("/things", &format!("{{\"id\": \"{id}\"}}"));
    for (request, expected) in [
        (put("/orders/%37"), "order:7"),
        (put("/files/a/b-c"), "file:a/b-c"),
        (thing("x-1"), "thing:x-1"),
    ] {
        let key = key_of(&upstream, &proxy, request.token(1)).await;
        assert_eq!(key, expected);
    }
    for refused in [
        put("/orders/7.json"),
        put("/orders/7%2Ejson"),
        put("/files/a.x/b"),
        thing("x.1"),
    ] {
        let answer = proxy.send(refused.clone().token(2)).await;
        answer.assert_problem(400, "ambiguous-request");
        let says = answer.text().contains("letters, digits, `-` and `_`");
        assert!(says, "{refused:?}: {}", answer.text());
    }
    // A claim of a key that no request has protects nothing.
    let claim = by_key("order:7.json").token(3);
    proxy.refuse(claim, 400, "ambiguous-request").await;
    let claim = by_key("order:7").token(3);
    assert_eq!(proxy.send(claim).await.status(), 204);
    assert_eq!(upstream.count(), 3);
}
