//! The resource of a request: one thing has one key, two things have two (guarantee G6). Templates
//! and their parts are tested in `src/routing/`, requests without a key in `tests/edge/keys.toml`.

use std::collections::HashMap;
use std::process::Command;

use crate::support::store::tool;
use crate::support::upstream::Arrival;
use crate::support::{Proxy, Request, Upstream, fenced, or_return, post, put};

/// The key that a request gets, as the upstream sees it.
pub async fn key_of(upstream: &Upstream, proxy: &Proxy, request: Request) -> String {
    proxy.forward(request).await;
    let last = upstream.arrivals().pop().expect("it has arrived");
    last.resource().expect("the key goes upstream").to_owned()
}

/// A proxy over some routes, before an upstream that sees the keys.
struct Keys {
    upstream: Upstream,
    proxy: Proxy,
}

impl Keys {
    /// Starts both, with this laid over the configuration.
    async fn with(more: &str) -> Self {
        let (upstream, proxy) = fenced(more).await;
        Self { upstream, proxy }
    }

    async fn of(&self, request: Request) -> String {
        key_of(&self.upstream, &self.proxy, request).await
    }

    /// The key of a PUT of this target.
    async fn at(&self, target: &str) -> String {
        self.of(put(target).token(1)).await
    }

    /// Asserts that a request has no key, and is refused; returns the detail.
    async fn none(&self, request: Request, case: &str) -> String {
        let answer = self.proxy.send(request).await;
        assert_eq!(answer.status(), 400, "{case}");
        let problem = answer.assert_problem(400, "ambiguous-request");
        problem["detail"].as_str().expect("a detail").to_owned()
    }
}

#[tokio::test]
async fn equivalent_escapes_share_a_key_and_go_upstream_as_they_came() {
    let keys = Keys::with("{}").await;
    let spellings = [
        "/orders/a-b_c.d~e!",
        "/orders/%61-b_c.d~e!",
        "/orders/a%2Db_c.d~e!",
        "/orders/a%2db_c.d~e%21",
        "/%6Frders/a-b%5Fc%2Ed%7Ee!",
        "/%6frders/%61%2D%62%5f%63%2e%64%7e%65%21",
    ];
    for (token, spelling) in spellings.iter().enumerate() {
        let key = keys.of(put(spelling).token(token + 1)).await;
        assert_eq!(key, "order:a-b_c.d~e!", "{spelling}");
    }
    for spelling in spellings {
        keys.proxy.stale(put(spelling).token(1)).await;
    }
    let arrivals = keys.upstream.arrivals();
    let seen: Vec<&str> = arrivals.iter().map(Arrival::target).collect();
    assert_eq!(seen, spellings, "byte for byte");
}

#[tokio::test]
async fn a_key_can_come_from_a_header() {
    let keys = Keys::with(
        "routes:
         - { path: '/orders/{id}', resource: '{header.x-tenant}/{id}' }
         - { path: '/jobs', resource: 'job:{header.x-fencing-resource}' }",
    )
    .await;
    let with = |fields: &[(&str, &str)]| {
        let request = put("/orders/7").token(1);
        fields.iter().fold(request, |request, (name, tenant)| {
            request.header(name, *tenant)
        })
    };
    assert_eq!(keys.of(with(&[("X-Tenant", "acme")])).await, "acme/7");
    assert_ne!(keys.of(with(&[("X-Tenant", "evil/7")])).await, "evil/7/7");
    for bad in [
        &[][..],
        &[("X-Tenant", "")],
        &[("X-Tenant", "a"), ("X-Tenant", "a")],
        &[("X-Tenant", "a"), ("x-tenant", "b")],
    ] {
        keys.none(with(bad), &format!("{bad:?}")).await;
    }
    let job = post("/jobs").token(1);
    let named = job.clone().header("X-Fencing-Resource", "nightly");
    assert_eq!(keys.of(named).await, "job:nightly");
    keys.none(job, "no name").await;
    assert_eq!(keys.upstream.count(), 3);
}

#[tokio::test]
async fn a_key_can_come_from_the_query() {
    let keys = Keys::with("routes: [{ path: '/orders', resource: 'order:{query.id}' }]").await;
    for query in ["id=a%20b", "id=a+b", "x=1&id=a%20b&y=2", "%69d=a%20%62"] {
        // In the header, what is not visible ASCII is percent-encoded.
        assert_eq!(keys.at(&format!("/orders?{query}")).await, "order:a%20b");
    }
    assert_eq!(keys.proxy.token("order:a b").await, Some(1));
    for query in ["", "id", "id=", "id=1&id=1", "id=%00", "id=%ff"] {
        let target = format!("/orders?{query}");
        keys.none(put(&target).token(1), &target).await;
    }
    assert_eq!(keys.upstream.count(), 4);
}

#[tokio::test]
async fn a_key_can_come_from_a_json_body() {
    let keys = Keys::with(
        "{ routes: [{ path: /orders, resource: 'order:{json.order_id}' }], body: { buffer: 1KiB } }",
    )
    .await;
    let with = |body: &str| json_post("/orders", body);
    let escaped = r#"{ "a": {"order_id": 9}, "\u006frder_id" : "\u0037"}"#;
    assert_eq!(keys.of(with(escaped)).await, "order:7");
    assert_eq!(keys.upstream.last().text(), escaped);
    for body in ["{}", r#"{"order_id":"7","\u006frder_id":"8"}"#] {
        keys.none(with(body), body).await;
    }
    let long = format!(r#"{{"order_id":"7","x":"{}"}}"#, "x".repeat(2000));
    let chunked = post("/orders")
        .header("Content-Type", "application/json")
        .token(1)
        .chunks(&[long.as_bytes()], "");
    for too_long in [with(&long), chunked] {
        keys.proxy.refuse(too_long, 413, "content-too-large").await;
    }
    assert_eq!(keys.upstream.count(), 1);
}

fn json_post(target: &str, body: &str) -> Request {
    post(target)
        .header("Content-Type", "application/json")
        .body(body)
        .token(1)
}

/// What Node takes for one order has one key, or is refused.
#[tokio::test]
async fn numbers_that_node_reads_as_one_have_no_two_keys() {
    let node = or_return!(tool("node"));
    let (upstream, proxy) =
        fenced("{ routes: [{ path: /orders, resource: 'order:{json.order_id}' }] }").await;
    let bodies: Vec<String> = [
        "7",
        "\"7\"",
        "7.0",
        "-7",
        "9007199254740990",
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "-9007199254740992",
        "-9007199254740993",
        "18446744073709551614",
        "18446744073709551615",
        "1e3",
        "1000",
        "\"9007199254740993\"",
        "\"9007199254740992\"",
    ]
    .iter()
    .map(|id| format!("{{\"order_id\":{id}}}"))
    .collect();
    let script = "for (const body of process.argv.slice(1)) console.log(JSON.parse(body).order_id)";
    let output = Command::new(node)
        .args(["-e", script, "--"])
        .args(&bodies)
        .output()
        .expect("node runs");
    let read = String::from_utf8(output.stdout).expect("text");
    let read: Vec<&str> = read.lines().collect();
    assert_eq!(read.len(), bodies.len());
    let mut keys: HashMap<&str, String> = HashMap::new();
    for (body, order) in bodies.iter().zip(&read) {
        let answer = proxy.send(json_post("/orders", body)).await;
        if answer.status() == 400 {
            continue;
        }
        answer.assert_forwarded();
        let last = upstream.last();
        let key = last.resource().expect("the key goes upstream").to_owned();
        let known = keys.entry(order).or_insert_with(|| key.clone());
        assert_eq!(*known, key, "{body} is {order} to Node");
    }
    assert_eq!(keys.len(), 7, "{keys:?}");
}

#[tokio::test]
async fn a_plain_part_is_letters_digits_dash_and_underscore_or_nothing() {
    let keys = Keys::with(
        "routes:
         - { path: '/orders/{id}', resource: 'order:{id|plain}' }
         - { path: '/files/{*rest}', resource: 'file:{rest|plain}' }
         - { path: '/things', resource: 'thing:{json.id|plain}' }",
    )
    .await;
    for (target, key) in [("/orders/%37", "order:7"), ("/files/a/b-c", "file:a/b-c")] {
        assert_eq!(keys.at(target).await, key, "{target}");
    }
    for path in ["/orders/7.json", "/orders/7%2Ejson", "/files/a.x/b"] {
        let detail = keys.none(put(path).token(2), path).await;
        let says = detail.contains("letters, digits, `-` and `_`");
        assert!(says, "{path}: {detail}");
    }
    let json = |id: &str| json_post("/things", &format!("{{\"id\": \"{id}\"}}"));
    assert_eq!(keys.of(json("x-1")).await, "thing:x-1");
    keys.none(json("x.1"), "x.1").await;
    // A claim of a key that no request has protects nothing.
    let claim = |key: &str| {
        post("/.well-known/fencing/claim")
            .header("X-Fencing-Resource", key)
            .token(3)
    };
    keys.none(claim("order:7.json"), "a claim").await;
    assert_eq!(keys.proxy.send(claim("order:7")).await.status(), 204);
    assert_eq!(keys.upstream.count(), 3);
}
