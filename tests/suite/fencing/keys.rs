//! The resource of a request: one thing has one key, two things have two (guarantee G6). The store
//! does not matter here, so these run over `SQLite`.

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

    /// Asserts the key of each of these targets.
    async fn are(&self, cases: &[(&str, &str)]) {
        for (target, key) in cases {
            assert_eq!(self.at(target).await, *key, "{target}");
        }
    }

    /// Asserts that a request has no key, and is refused; returns the detail.
    async fn none(&self, request: Request, case: &str) -> String {
        let answer = self.proxy.send(request).await;
        assert_eq!(answer.status(), 400, "{case}");
        let problem = answer.assert_problem(400, "ambiguous-request");
        problem["detail"].as_str().expect("a detail").to_owned()
    }

    /// As [`Self::none`], for a PUT of each of these targets.
    async fn none_at(&self, targets: &[&str]) {
        for target in targets {
            self.none(put(target).token(1), target).await;
        }
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
        let answer = keys.proxy.send(put(spelling).token(1)).await;
        assert_eq!(answer.status(), 412, "{spelling}");
        answer.assert_problem(412, "stale-token");
    }
    let arrivals = keys.upstream.arrivals();
    let seen: Vec<&str> = arrivals.iter().map(Arrival::target).collect();
    assert_eq!(seen, spellings, "byte for byte");
}

#[tokio::test]
async fn escapes_are_decoded_once() {
    let keys = Keys::with("{}").await;
    let once = keys.at("/orders/a").await;
    // Some servers decode twice.
    keys.none_at(&["/orders/%2561"]).await;
    assert_ne!(keys.at("/orders/A").await, once, "case is kept");
    assert_ne!(keys.at("/orders/+a").await, once);
    let (plus, space) = (keys.at("/orders/a+b").await, keys.at("/orders/a%20b").await);
    assert_ne!(plus, space, "a plus is a space in queries only");
}

#[tokio::test]
async fn separators_in_parts_do_not_join_keys() {
    let keys = Keys::with("routes: [{ path: '/t/{a}/{b}', resource: 't:{a}:{b}' }]").await;
    let left = keys.at("/t/x:y/z").await;
    assert_ne!(left, keys.at("/t/x/y:z").await);
    assert_eq!(keys.at("/t/x%3Ay/z").await, left);
    // The escape itself cannot be forged.
    let escaped = left.trim_start_matches("t:").replace('%', "%25");
    let forged = escaped.replace(':', "/");
    keys.none_at(&[&format!("/t/{forged}")]).await;
}

#[tokio::test]
async fn the_rest_of_a_path_keeps_its_segments_apart() {
    let keys = Keys::with("routes: [{ path: '/files/{*rest}', resource: 'file:{rest}' }]").await;
    let deep = keys.at("/files/a/b").await;
    let flat = keys.at("/files/ab").await;
    let colon = keys.at("/files/a:b").await;
    assert!(
        deep != flat && deep != colon && flat != colon,
        "{deep} {flat} {colon}"
    );
    assert_eq!(keys.at("/files/%61/%62").await, deep);
}

#[tokio::test]
async fn a_key_can_come_from_a_header() {
    let routes = "routes: [{ path: '/orders/{id}', resource: '{header.x-tenant}/{id}' }]";
    let keys = Keys::with(routes).await;
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
    assert_eq!(keys.upstream.count(), 2);
}

#[tokio::test]
async fn a_key_can_come_from_the_query() {
    let keys = Keys::with("routes: [{ path: '/orders', resource: 'order:{query.id}' }]").await;
    // In the header, what is not visible ASCII is percent-encoded.
    keys.are(&[
        ("/orders?id=a%20b", "order:a%20b"),
        ("/orders?id=a+b", "order:a%20b"),
        ("/orders?x=1&id=a%20b&y=2", "order:a%20b"),
        ("/orders?%69d=a%20%62", "order:a%20b"),
    ])
    .await;
    assert_eq!(keys.proxy.token("order:a b").await, Some(1));
    keys.none_at(&[
        "/orders",
        "/orders?",
        "/orders?id",
        "/orders?id=",
        "/orders?ID=7",
        "/orders?id=1&id=1",
        "/orders?id=1&id=2",
        "/orders?id=1&%69d=2",
        "/orders?id=%",
        "/orders?id=%zz",
        "/orders?id=%00",
        "/orders?id=%ff",
    ])
    .await;
    assert_eq!(keys.upstream.count(), 4);
}

#[tokio::test]
async fn a_key_can_come_from_a_json_body() {
    let keys = Keys::with(
        "{ routes: [{ path: /orders, resource: 'order:{json.order_id}' }], body: { buffer: 1KiB } }",
    )
    .await;
    let with = |body: &str| json_post("/orders", body);
    for body in [
        r#"{"order_id":"7"}"#,
        r#"{ "a": {"order_id": 9}, "order_id" : "7" }"#,
        r#"{"order_id":"\u0037"}"#,
        r#"{"\u006frder_id":"7"}"#,
    ] {
        assert_eq!(keys.of(with(body)).await, "order:7", "{body}");
        assert_eq!(keys.upstream.last().text(), body);
    }
    for body in [
        "",
        "{}",
        "[]",
        "null",
        "7",
        r#"{"order_id":null}"#,
        r#"{"order_id":""}"#,
        r#"{"order_id":{}}"#,
        r#"{"order_id":["7"]}"#,
        r#"{"order_id":"7","order_id":"7"}"#,
        r#"{"order_id":"7","order_id":"8"}"#,
        r#"{"order_id":"7","\u006frder_id":"8"}"#,
        r#"{"order_id":"7","order_id\u0000":"8"}"#,
        r#"{"order_id\u0000x":"8"}"#,
        r#"{"order_id":"7\u00008"}"#,
        r#"{"order_id":9007199254740993}"#,
        r#"{"order_id":"7""#,
        r#"{"order_id":"7"} x"#,
    ] {
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
    assert_eq!(keys.upstream.count(), 4);
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
async fn a_key_can_come_from_host_and_path() {
    let keys = Keys::with("routes: [{ path: '/{*any}', resource: '{host}|{path}' }]").await;
    let of = |path: &str, host: &'static str| keys.of(put(path).host(Some(host)).token(1));
    let key = of("/a/b", "One.test").await;
    assert_eq!(of("/%61/b", "one.TEST").await, key, "hosts have no case");
    assert_ne!(of("/a/b", "two.test").await, key);
    assert_ne!(of("/a/c", "one.test").await, key);
}

#[tokio::test]
async fn filters_fold_what_the_upstream_folds() {
    let keys = Keys::with(
        "routes:
         - { path: '/users/{name}', resource: 'user:{name|lower}' }
         - { path: '/orders/{id}', resource: 'order:{id|int}' }",
    )
    .await;
    keys.are(&[
        ("/users/ANN", "user:ann"),
        ("/users/%41nn", "user:ann"),
        ("/orders/007", "order:7"),
        ("/orders/7", "order:7"),
        ("/orders/+7", "order:7"),
        ("/orders/-7", "order:-7"),
    ])
    .await;
    keys.none_at(&[
        "/orders/7a",
        "/orders/7.0",
        "/orders/7_0",
        "/orders/--7",
        "/orders/0x7",
        "/orders/%D9%A7",
    ])
    .await;
}

#[tokio::test]
async fn a_key_has_at_most_1024_bytes() {
    let keys = Keys::with("{}").await;
    let fits = "x".repeat(1024 - "order:".len());
    let path = format!("/orders/{fits}");
    keys.proxy.forward(put(&path).token(1)).await;
    keys.none_at(&[&format!("{path}x")]).await;
    assert_eq!(keys.upstream.count(), 1);
}

#[tokio::test]
async fn a_key_can_be_the_callers_word() {
    let routes = "routes: [{ path: '/jobs', resource: 'job:{header.x-fencing-resource}' }]";
    let keys = Keys::with(routes).await;
    let job = || post("/jobs").token(1);
    let named = job().header("X-Fencing-Resource", "nightly");
    assert_eq!(keys.of(named).await, "job:nightly");
    keys.none(job(), "no name").await;
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
    keys.are(&[
        ("/orders/7", "order:7"),
        ("/orders/%37", "order:7"),
        ("/orders/a-B_7", "order:a-B_7"),
        ("/files/a/b-c", "file:a/b-c"),
    ])
    .await;
    let count = keys.upstream.count();
    for path in [
        "/orders/7.json",
        "/orders/7%2Ejson",
        "/orders/7.",
        "/orders/7%20",
        "/orders/7+",
        "/orders/7%2B",
        "/orders/7:8",
        "/orders/%EF%BC%97",
        "/orders/%E2%84%AA",
        "/files/a/b.json",
        "/files/a.x/b",
    ] {
        let detail = keys.none(put(path).token(2), path).await;
        assert!(
            detail.contains("letters, digits, `-` and `_`"),
            "{path}: {detail}"
        );
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
    assert_eq!(keys.upstream.count(), count + 1);
}
