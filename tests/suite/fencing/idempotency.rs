//! Idempotency keys: equal requests have equal ones, different ones differ.

use crate::support::{Config, Proxy, Request, Store, Upstream, delete, fenced, get, post, put};

async fn idempotency_key(upstream: &Upstream, proxy: &Proxy, request: Request) -> Option<String> {
    proxy.forward(request).await;
    upstream
        .last()
        .head
        .get("idempotency-key")
        .map(str::to_owned)
}

#[tokio::test]
async fn equal_requests_have_equal_idempotency_keys() {
    let store = Store::sqlite();
    let (upstream, mut proxy) = Proxy::before(&store, "{}").await;
    let base = || post("/orders/7?x=1").token(5).body("pay 10");
    let key = idempotency_key(&upstream, &proxy, base())
        .await
        .expect("on by default");
    let fields: Vec<&str> = key.split('-').collect();
    assert_eq!(
        fields.iter().map(|field| field.len()).collect::<Vec<_>>(),
        [8, 4, 4, 4, 12],
        "{key}"
    );
    assert!(
        fields[2].starts_with('8') && "89ab".contains(&fields[3][..1]),
        "UUID version 8: {key}"
    );
    // However the body is framed, and whatever else the caller's headers say.
    let chunked = post("/orders/7?x=1")
        .token("05")
        .header("X-Other", "1")
        .chunks(&[b"pay", b" 10"], "");
    assert_eq!(
        idempotency_key(&upstream, &proxy, chunked).await.as_ref(),
        Some(&key)
    );
    proxy.stop().await;
    let proxy = Proxy::start(&Config::new(&upstream, &store)).await;
    assert_eq!(
        idempotency_key(&upstream, &proxy, base()).await.as_ref(),
        Some(&key),
        "across restarts"
    );

    let mut keys = vec![key];
    for other in [
        post("/orders/7?x=1").token(5).body("pay 11"),
        post("/orders/7?x=2").token(5).body("pay 10"),
        put("/orders/7?x=1").token(5).body("pay 10"),
        post("/orders/8?x=1").token(5).body("pay 10"),
        base().header("X-Fencing-Operation", "first"),
        base().header("X-Fencing-Operation", "second"),
        post("/orders/7?x=1").token(6).body("pay 10"),
    ] {
        keys.push(
            idempotency_key(&upstream, &proxy, other)
                .await
                .expect("on by default"),
        );
    }
    let distinct: std::collections::HashSet<&String> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len(), "{keys:?}");
}

#[tokio::test]
async fn an_operation_names_the_request_whatever_its_body() {
    let (upstream, proxy) = fenced("{}").await;
    let named = |body: &str| {
        post("/orders/7")
            .token(5)
            .header("X-Fencing-Operation", "charge")
            .body(body)
    };
    let one = idempotency_key(&upstream, &proxy, named("a")).await;
    assert_eq!(idempotency_key(&upstream, &proxy, named("b")).await, one);
    // Nor does a body too long to read first take the key away.
    let long = "x".repeat(3 << 20);
    assert_eq!(idempotency_key(&upstream, &proxy, named(&long)).await, one);
    let unnamed = post("/orders/7").token(5).body(&long);
    assert_eq!(
        idempotency_key(&upstream, &proxy, unnamed).await,
        None,
        "no digest of what is not read"
    );
}

/// Keys that fencepost makes have the token in them, so that an upstream never drops a write of
/// another holder for one of the first. A redo by the next holder is the same to the upstream only
/// under the client's own key.
#[tokio::test]
async fn only_a_key_of_the_clients_own_spans_holders() {
    let (upstream, proxy) = fenced("{}").await;
    for (field, spans) in [("X-Fencing-Operation", false), ("Idempotency-Key", true)] {
        let target = format!("/orders/{}", field.len());
        let write = |token: u64| post(&target).token(token).header(field, "invoice-2026-11");
        let first = idempotency_key(&upstream, &proxy, write(5)).await;
        let repeated = idempotency_key(&upstream, &proxy, write(5)).await;
        assert!(first.is_some() && first == repeated, "{field}");
        let next = idempotency_key(&upstream, &proxy, write(6)).await;
        assert_eq!(first == next, spans, "{field}");
    }
}

#[tokio::test]
async fn idempotency_keys_are_as_their_route_says() {
    let (upstream, proxy) = fenced(
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
    proxy.forward(post("/other/7").token(5)).await;
    let length = upstream.last().head.get("x-once").map(str::len);
    assert_eq!(length, Some(36), "a UUID");
    assert_eq!(upstream.last().head.get("idempotency-key"), None);
    let key = idempotency_key(&upstream, &proxy, post("/quoted/7").token(5)).await;
    let key = key.unwrap_or_default();
    assert!(
        key.len() == 38 && key.starts_with('"') && key.ends_with('"'),
        "{key}"
    );
    assert_eq!(
        idempotency_key(&upstream, &proxy, post("/off/7").token(5)).await,
        None
    );

    let own = |path: &str| post(path).token(5).header("Idempotency-Key", "mine");
    assert_eq!(
        idempotency_key(&upstream, &proxy, own("/keep/7"))
            .await
            .as_deref(),
        Some("mine")
    );
    let replaced = idempotency_key(&upstream, &proxy, own("/replace/7")).await;
    assert!(
        replaced.as_deref().is_some_and(|key| key != "mine"),
        "{replaced:?}"
    );
    let before = upstream.count();
    let rejected = proxy.send(own("/reject/7")).await;
    assert_eq!(
        (rejected.status(), rejected.outcome().is_some()),
        (400, true),
        "{}",
        rejected.text()
    );
    let long = "x".repeat(2000);
    let keyless = proxy.send(post("/required/7").token(5).body(&long)).await;
    keyless.assert_problem(413, "content-too-large");
    assert_eq!(upstream.count(), before);
    let named = post("/required/7")
        .token(5)
        .header("X-Fencing-Operation", "a")
        .body(&long);
    assert!(idempotency_key(&upstream, &proxy, named).await.is_some());
}

#[tokio::test]
async fn reads_without_a_token_get_no_idempotency_key() {
    let (upstream, proxy) = fenced("{}").await;
    assert_eq!(
        idempotency_key(&upstream, &proxy, get("/orders/7")).await,
        None
    );
    proxy.forward(delete("/orders/7").token(1)).await;
    assert_eq!(upstream.count(), 2);
    assert!(upstream.last().head.get("idempotency-key").is_some());
}
