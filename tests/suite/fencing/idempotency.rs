//! Idempotency keys: equal requests have equal ones, different ones differ. Their spelling is tested
//! in `src/proxy/idempotency.rs`.

use std::collections::HashSet;

use crate::support::{Config, Proxy, Request, Store, Upstream, delete, fenced, get, post, put};

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
    let length = first.as_deref().map(str::len);
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
        post("/orders/8?x=1").token(5).body("pay 10"),
        base().header("X-Fencing-Operation", "first"),
        base().header("X-Fencing-Operation", "second"),
        post("/orders/7?x=1").token(6).body("pay 10"),
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
        request.header("X-Fencing-Operation", "charge")
    };
    let one = key(&fence, named("a")).await;
    assert!(one.is_some());
    // Nor does a body too long to read first take the key away.
    let long = "x".repeat(3 << 20);
    for body in ["b", long.as_str()] {
        assert_eq!(key(&fence, named(body)).await, one);
    }
    let unnamed = post("/orders/7").token(5).body(&long);
    let none = key(&fence, unnamed).await;
    assert_eq!(none, None, "no digest of what is not read");
}

/// Keys that fencepost makes have the token in them, so that an upstream never drops a write of
/// another holder for one of the first. A redo by the next holder is the same to the upstream only
/// under the client's own key.
#[tokio::test]
async fn only_a_key_of_the_clients_own_spans_holders() {
    let fence = fenced("{}").await;
    for (field, spans) in [("X-Fencing-Operation", false), ("Idempotency-Key", true)] {
        let target = format!("/orders/{}", field.len());
        let write = |token: u64| put(&target).token(token).header(field, "invoice-2026-11");
        let first = key(&fence, write(5)).await;
        let next = key(&fence, write(6)).await;
        assert!(first.is_some(), "{field}");
        assert_eq!(first == next, spans, "{field}");
    }
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
    assert_eq!(key(&fence, post("/other/7").token(5)).await, None);
    let (upstream, proxy) = &fence;
    let length = upstream.last().head.get("x-once").map(str::len);
    assert_eq!(length, Some(36), "a UUID");
    let quoted = key(&fence, post("/quoted/7").token(5)).await;
    let quoted = quoted.unwrap_or_default();
    let is_quoted = quoted.starts_with('"') && quoted.ends_with('"');
    assert!(quoted.len() == 38 && is_quoted, "{quoted}");
    assert_eq!(key(&fence, post("/off/7").token(5)).await, None);

    let own = |path: &str| post(path).token(5).header("Idempotency-Key", "mine");
    let kept = key(&fence, own("/keep/7")).await;
    assert_eq!(kept.as_deref(), Some("mine"));
    let replaced = key(&fence, own("/replace/7")).await;
    assert!(replaced.is_some() && replaced != kept, "{replaced:?}");
    let before = upstream.count();
    proxy
        .refuse(own("/reject/7"), 400, "ambiguous-request")
        .await;
    let long = post("/required/7").token(5).body("x".repeat(2000));
    proxy.refuse(long.clone(), 413, "content-too-large").await;
    assert_eq!(upstream.count(), before);
    let named = long.header("X-Fencing-Operation", "a");
    assert!(key(&fence, named).await.is_some());
}

#[tokio::test]
async fn reads_without_a_token_get_no_idempotency_key() {
    let fence = fenced("{}").await;
    assert_eq!(key(&fence, get("/orders/7")).await, None);
    assert!(key(&fence, delete("/orders/7").token(1)).await.is_some());
}
