//! The resource of a request: one thing has one key, two things have two (guarantee G6). The store
//! does not matter here, so these run over `SQLite`.

use std::collections::HashMap;
use std::process::Command;

use crate::support::store::tool;
use crate::support::{Proxy, Request, Upstream, fenced, or_return, post, put};

/// The key that a request gets, as the upstream sees it.
pub async fn key_of(upstream: &Upstream, proxy: &Proxy, request: Request) -> String {
    proxy.forward(request).await;
    let last = upstream.arrivals().pop().expect("it has arrived");
    last.resource().expect("the key goes upstream").to_owned()
}

#[tokio::test]
async fn equivalent_escapes_share_a_key_and_go_upstream_as_they_came() {
    let (upstream, proxy) = fenced("{}").await;
    let spellings = [
        "/orders/a-b_c.d~e!",
        "/orders/%61-b_c.d~e!",
        "/orders/a%2Db_c.d~e!",
        "/orders/a%2db_c.d~e%21",
        "/%6Frders/a-b%5Fc%2Ed%7Ee!",
        "/%6frders/%61%2D%62%5f%63%2e%64%7e%65%21",
    ];
    for (token, spelling) in spellings.iter().enumerate() {
        let key = key_of(&upstream, &proxy, put(spelling).token(token + 1)).await;
        assert_eq!(key, "order:a-b_c.d~e!", "{spelling}");
    }
    for spelling in spellings {
        let stale = proxy.send(put(spelling).token(1)).await;
        if spelling != spellings[0] || stale.status() != 412 {
            stale.assert_problem(412, "stale-token");
        }
    }
    let seen: Vec<String> = upstream
        .arrivals()
        .iter()
        .map(|one| one.target().to_owned())
        .collect();
    assert_eq!(seen, spellings, "byte for byte");
}

#[tokio::test]
async fn escapes_are_decoded_once() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/orders/{id}', resource: 'order:{id}' }",
    )
    .await;
    let once = key_of(&upstream, &proxy, put("/orders/a").token(1)).await;
    // Some servers decode twice.
    proxy
        .refuse(put("/orders/%2561").token(1), 400, "ambiguous-request")
        .await;
    assert_ne!(
        key_of(&upstream, &proxy, put("/orders/A").token(1)).await,
        once,
        "case is kept"
    );
    assert_ne!(
        key_of(&upstream, &proxy, put("/orders/+a").token(1)).await,
        once
    );
    let plus = key_of(&upstream, &proxy, put("/orders/a+b").token(1)).await;
    let space = key_of(&upstream, &proxy, put("/orders/a%20b").token(1)).await;
    assert_ne!(plus, space, "a plus is a space in queries only");
}

#[tokio::test]
async fn separators_in_parts_do_not_join_keys() {
    let (upstream, proxy) = fenced("routes: [{ path: '/t/{a}/{b}', resource: 't:{a}:{b}' }]").await;
    let left = key_of(&upstream, &proxy, put("/t/x:y/z").token(1)).await;
    let right = key_of(&upstream, &proxy, put("/t/x/y:z").token(1)).await;
    assert_ne!(left, right);
    assert_eq!(
        key_of(&upstream, &proxy, put("/t/x%3Ay/z").token(1)).await,
        left
    );
    // The escape itself cannot be forged.
    let escaped = left.trim_start_matches("t:").replace('%', "%25");
    let forged = escaped.replace(':', "/");
    proxy
        .send(put(&format!("/t/{forged}")).token(1))
        .await
        .assert_problem(400, "ambiguous-request");
}

#[tokio::test]
async fn the_rest_of_a_path_keeps_its_segments_apart() {
    let (upstream, proxy) =
        fenced("routes: [{ path: '/files/{*rest}', resource: 'file:{rest}' }]").await;
    let deep = key_of(&upstream, &proxy, put("/files/a/b").token(1)).await;
    let flat = key_of(&upstream, &proxy, put("/files/ab").token(1)).await;
    let colon = key_of(&upstream, &proxy, put("/files/a:b").token(1)).await;
    assert!(
        deep != flat && deep != colon && flat != colon,
        "{deep} {flat} {colon}"
    );
    assert_eq!(
        key_of(&upstream, &proxy, put("/files/%61/%62").token(1)).await,
        deep
    );
}

#[tokio::test]
async fn a_key_can_come_from_a_header() {
    let (upstream, proxy) =
        fenced("routes: [{ path: '/orders/{id}', resource: '{header.x-tenant}/{id}' }]").await;
    let with = |tenant: &str| put("/orders/7").header("X-Tenant", tenant).token(1);
    let acme = key_of(&upstream, &proxy, with("acme")).await;
    assert_eq!(acme, "acme/7");
    assert_ne!(key_of(&upstream, &proxy, with("evil/7")).await, "evil/7/7");
    for bad in [
        put("/orders/7").token(1),
        put("/orders/7").header("X-Tenant", "").token(1),
        put("/orders/7")
            .header("X-Tenant", "a")
            .header("X-Tenant", "a")
            .token(1),
        put("/orders/7")
            .header("X-Tenant", "a")
            .header("x-tenant", "b")
            .token(1),
    ] {
        proxy.refuse(bad, 400, "ambiguous-request").await;
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_key_can_come_from_the_query() {
    let (upstream, proxy) =
        fenced("routes: [{ path: '/orders', resource: 'order:{query.id}' }]").await;
    for target in [
        "/orders?id=a%20b",
        "/orders?id=a+b",
        "/orders?x=1&id=a%20b&y=2",
        "/orders?%69d=a%20%62",
    ] {
        // In the header, what is not visible ASCII is percent-encoded.
        let key = key_of(&upstream, &proxy, put(target).token(1)).await;
        assert_eq!(key, "order:a%20b", "{target}");
    }
    assert_eq!(proxy.token("order:a b").await, Some(1));
    for target in [
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
    ] {
        proxy
            .refuse(put(target).token(1), 400, "ambiguous-request")
            .await;
    }
    assert_eq!(upstream.count(), 4);
}

#[tokio::test]
async fn a_key_can_come_from_a_json_body() {
    let (upstream, proxy) = fenced(
        "{ routes: [{ path: /orders, resource: 'order:{json.order_id}' }], body: { buffer: 1KiB } }",
    )
    .await;
    let with = |body: &str| {
        post("/orders")
            .header("Content-Type", "application/json")
            .body(body)
            .token(1)
    };
    for body in [
        r#"{"order_id":"7"}"#,
        r#"{ "a": {"order_id": 9}, "order_id" : "7" }"#,
        r#"{"order_id":"\u0037"}"#,
        r#"{"\u006frder_id":"7"}"#,
    ] {
        assert_eq!(
            key_of(&upstream, &proxy, with(body)).await,
            "order:7",
            "{body}"
        );
        assert_eq!(
            upstream.arrivals().pop().map(|one| one.text()).as_deref(),
            Some(body)
        );
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
        let answer = proxy.send(with(body)).await;
        assert_eq!(answer.status(), 400, "{body}");
        answer.assert_problem(400, "ambiguous-request");
    }
    let long = format!(r#"{{"order_id":"7","x":"{}"}}"#, "x".repeat(2000));
    proxy.refuse(with(&long), 413, "content-too-large").await;
    let chunked = post("/orders")
        .header("Content-Type", "application/json")
        .token(1)
        .chunks(&[long.as_bytes()], "");
    proxy.refuse(chunked, 413, "content-too-large").await;
    assert_eq!(upstream.count(), 4);
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
        let request = post("/orders").header("Content-Type", "application/json");
        let answer = proxy.send(request.body(body.as_str()).token(1)).await;
        if answer.status() == 400 {
            continue;
        }
        answer.assert_forwarded();
        let last = upstream.arrivals().pop().expect("it has arrived");
        let key = last.resource().expect("the key goes upstream").to_owned();
        let known = keys.entry(order).or_insert_with(|| key.clone());
        assert_eq!(*known, key, "{body} is {order} to Node");
    }
    assert_eq!(keys.len(), 7, "{keys:?}");
}

#[tokio::test]
async fn a_key_can_come_from_host_and_path() {
    let (upstream, proxy) =
        fenced("routes: [{ path: '/{*any}', resource: '{host}|{path}' }]").await;
    let key = key_of(
        &upstream,
        &proxy,
        put("/a/b").host(Some("One.test")).token(1),
    )
    .await;
    let same = key_of(
        &upstream,
        &proxy,
        put("/%61/b").host(Some("one.TEST")).token(1),
    )
    .await;
    assert_eq!(key, same, "hosts have no case");
    assert_ne!(
        key_of(
            &upstream,
            &proxy,
            put("/a/b").host(Some("two.test")).token(1)
        )
        .await,
        key
    );
    assert_ne!(
        key_of(
            &upstream,
            &proxy,
            put("/a/c").host(Some("one.test")).token(1)
        )
        .await,
        key
    );
}

#[tokio::test]
async fn filters_fold_what_the_upstream_folds() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/users/{name}', resource: 'user:{name|lower}' }
         - { path: '/orders/{id}', resource: 'order:{id|int}' }",
    )
    .await;
    assert_eq!(
        key_of(&upstream, &proxy, put("/users/ANN").token(1)).await,
        "user:ann"
    );
    assert_eq!(
        key_of(&upstream, &proxy, put("/users/%41nn").token(1)).await,
        "user:ann"
    );
    assert_eq!(
        key_of(&upstream, &proxy, put("/orders/007").token(1)).await,
        "order:7"
    );
    assert_eq!(
        key_of(&upstream, &proxy, put("/orders/7").token(1)).await,
        "order:7"
    );
    assert_eq!(
        key_of(&upstream, &proxy, put("/orders/+7").token(1)).await,
        "order:7"
    );
    assert_eq!(
        key_of(&upstream, &proxy, put("/orders/-7").token(1)).await,
        "order:-7"
    );
    for path in [
        "/orders/7a",
        "/orders/7.0",
        "/orders/7_0",
        "/orders/--7",
        "/orders/0x7",
        "/orders/%D9%A7",
    ] {
        proxy
            .refuse(put(path).token(1), 400, "ambiguous-request")
            .await;
    }
}

#[tokio::test]
async fn a_key_has_at_most_1024_bytes() {
    let (upstream, proxy) = fenced("{}").await;
    let fits = "x".repeat(1024 - "order:".len());
    proxy
        .forward(put(&format!("/orders/{fits}")).token(1))
        .await;
    proxy
        .refuse(
            put(&format!("/orders/{fits}x")).token(1),
            400,
            "ambiguous-request",
        )
        .await;
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_key_can_be_the_callers_word() {
    let (upstream, proxy) =
        fenced("routes: [{ path: '/jobs', resource: 'job:{header.x-fencing-resource}' }]").await;
    let named = |name: &str| post("/jobs").header("X-Fencing-Resource", name).token(1);
    assert_eq!(
        key_of(&upstream, &proxy, named("nightly")).await,
        "job:nightly"
    );
    proxy
        .refuse(post("/jobs").token(1), 400, "ambiguous-request")
        .await;
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
    for (path, key) in [
        ("/orders/7", "order:7"),
        ("/orders/%37", "order:7"),
        ("/orders/a-B_7", "order:a-B_7"),
        ("/files/a/b-c", "file:a/b-c"),
    ] {
        let got = key_of(&upstream, &proxy, put(path).token(1)).await;
        assert_eq!(got, key, "{path}");
    }
    let count = upstream.count();
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
        let answer = proxy.send(put(path).token(2)).await;
        let problem = answer.assert_problem(400, "ambiguous-request");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(
            detail.contains("letters, digits, `-` and `_`"),
            "{path}: {detail}"
        );
    }
    let json = |id: &str| {
        let request = post("/things").header("Content-Type", "application/json");
        request.body(format!("{{\"id\": {id}}}")).token(1)
    };
    assert_eq!(
        key_of(&upstream, &proxy, json("\"x-1\"")).await,
        "thing:x-1"
    );
    let dotted = proxy.send(json("\"x.1\"")).await;
    dotted.assert_problem(400, "ambiguous-request");
    // A claim of a key that no request has protects nothing.
    let claim = |key: &str| {
        post("/.well-known/fencing/claim")
            .header("X-Fencing-Resource", key)
            .token(3)
    };
    proxy
        .refuse(claim("order:7.json"), 400, "ambiguous-request")
        .await;
    assert_eq!(proxy.send(claim("order:7")).await.status(), 204);
    assert_eq!(upstream.count(), count + 1);
}
