//! Idempotency keys: equal requests have equal ones, different ones differ. Their spelling is tested
//! in `src/proxy/idempotency.rs`.

use std::collections::HashSet;

use crate::support::{Config, Proxy, Request, Store, Upstream, delete, fenced, post, put};

const OPERATION: &str = "X-Fencing-Operation";

/// The key that a request goes upstream with.
async fn key((upstream, proxy): &(Upstream, Proxy), request: Request) -> Option<String> {
    proxy.forward(request).await;
    let last = upstream.last();
    last.head.get("idempotency-key").map(str::to_owned)
}

#[tokio::test]
async fn equal_requests_have_equal_idempotency_keys() {
    let store = Store::sqlite();
    let mut fence = Proxy::before(&store, "{}").await;
    let base = || post("/orders/7?x=1").token(5).body("pay 10");
    let first = key(&fence, base()).await;
    let length = first.as_ref().map(String::len);
    assert_eq!(length, Some(36), "on by default, as a UUID");
    // However the body is framed, and whatever else the caller's headers say.
    let chunked = post("/orders/7?x=1")
        .token("05")
        .header("X-Other", "1")
        .chunks(&[b"pay", b" 10"], "");
    assert_eq!(key(&fence, chunked).await, first);
    fence.1.stop().await;
    fence.1 = Proxy::start(&Config::new(&fence.0, &store)).await;
    assert_eq!(key(&fence, base()).await, first, "across restarts");

    let mut keys = vec![first];
    for other in [
        post("/orders/7?x=1").token(5).body("pay 11"),
        post("/orders/7?x=2").token(5).body("pay 10"),
        put("/orders/7?x=1").token(5).body("pay 10"),
        delete("/orders/7?x=1").token(5).body("pay 10"),
        post("/orders/8?x=1").token(5).body("pay 10"),
        base().header(OPERATION, "first"),
        base().header(OPERATION, "second"),
        // Another holder's: an upstream must not drop its write for one of the first.
        post("/orders/7?x=1").token(6).body("pay 10"),
        put("/orders/7").token(6).header(OPERATION, "first"),
    ] {
        keys.push(key(&fence, other).await);
    }
    let distinct: HashSet<_> = keys.iter().flatten().collect();
    assert_eq!(distinct.len(), keys.len(), "{keys:?}");
}

#[tokio::test]
async fn an_operation_names_the_request_whatever_its_body() {
    let fence = fenced("{}").await;
    let named = |body: &str| {
        let request = post("/orders/7").token(5).body(body);
        request.header(OPERATION, "charge")
    };
    let one = key(&fence, named("a")).await;
    assert!(one.is_some());
    // Nor does a body too long to read first take the key away.
    let long = "x".repeat(3 << 20);
    for body in ["b", long.as_str()] {
        assert_eq!(key(&fence, named(body)).await, one);
    }
    let unnamed = post("/orders/7").token(5).body(&long);
    // No digest of what is not read.
    assert_eq!(key(&fence, unnamed).await, None);
}

#[tokio::test]
async fn idempotency_keys_are_as_their_route_says() {
    let fence = fenced(
        "routes:
         - { path: '/other/{id}', resource: 'r:{id}', idempotency: { key: epoch, header: X-Once } }
         - { path: '/quoted/{id}', resource: 'q:{id}', idempotency: { key: epoch, quoted: true } }
         - { path: '/off/{id}', resource: 'o:{id}', idempotency: 'off' }
         - { path: '/keep/{id}', resource: 'k:{id}' }
         - { path: '/replace/{id}', resource: 'p:{id}', idempotency: { client_key: replace } }
         - { path: '/reject/{id}', resource: 'j:{id}', idempotency: { client_key: reject } }
         - { path: '/required/{id}', resource: 'u:{id}', idempotency: { required: true }, body: { buffer: 1KiB } }",
    )
    .await;
    let (upstream, proxy) = &fence;
    assert_eq!(key(&fence, post("/other/7").token(5)).await, None);
    let length = upstream.last().head.get("x-once").map(str::len);
    assert_eq!(length, Some(36), "a UUID");
    let quoted = key(&fence, post("/quoted/7").token(5))
        .await
        .expect("a key");
    let is_quoted = quoted.starts_with('"') && quoted.ends_with('"');
    assert!(quoted.len() == 38 && is_quoted, "{quoted}");
    assert_eq!(key(&fence, post("/off/7").token(5)).await, None);

    // Only a key of the client's own spans holders.
    let own = |path: &str, token: u64| post(path).token(token).header("Idempotency-Key", "mine");
    for token in [5, 6] {
        let kept = key(&fence, own("/keep/7", token)).await;
        assert_eq!(kept.as_deref(), Some("mine"));
    }
    let replaced = key(&fence, own("/replace/7", 5)).await;
    assert_eq!(replaced.map(|key| key.len()), Some(36));
    let before = upstream.count();
    let rejected = own("/reject/7", 5);
    proxy.refuse(rejected, 400, "ambiguous-request").await;
    let long = post("/required/7").token(5).body("x".repeat(2000));
    proxy.refuse(long.clone(), 413, "content-too-large").await;
    assert_eq!(upstream.count(), before);
    let named = long.header(OPERATION, "a");
    assert!(key(&fence, named).await.is_some());
}
