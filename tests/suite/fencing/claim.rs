//! Claims: acquire, claim, read, write.

use crate::support::{
    Proxy, Request, Step, fenced, forwarded, joined, over_both_stores, post, put,
};

const CLAIM: &str = "/.well-known/fencing/claim";

fn claim(target: &str) -> Request {
    post(CLAIM).header("X-Fencing-Target", target)
}

over_both_stores! {
    async fn after_a_claim_older_holders_are_refused_even_after_a_crash(store: Store) {
        let (upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
        let answer = proxy.send(claim("PUT /orders/7").token(42)).await;
        assert_eq!((answer.status(), answer.text().as_str()), (204, ""));
        proxy.kill9();
        let proxy = Proxy::start(&config).await;
        proxy.stale(put("/orders/7").token(41)).await;
        proxy.forward(put("/orders/7").token(42)).await;
        assert_eq!(upstream.tokens("order:7"), [42], "a claim forwards nothing");
    }

    async fn a_claim_waits_for_older_requests(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 25s }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let claiming = proxy.start_request(claim("PUT /orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        assert!(!claiming.is_finished());
        gate.open();
        assert_eq!(joined(claiming).await.status(), 204);
        forwarded(held).await;
        assert_eq!(upstream.tokens("order:7"), [41]);
    }

    async fn a_claim_that_waits_too_long_says_so(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 200ms, settle: 60s }").await;
        upstream.on_token(41, [Step::Reset]);
        proxy.refuse(put("/orders/7").token(41), 502, "outcome-unknown").await;
        let answer = proxy.send(claim("PUT /orders/7").token(42)).await;
        answer.assert_problem(503, "older-in-flight");
        assert!(answer.retry_after().is_some());
        // It has raised the mark all the same.
        proxy.stale(put("/orders/7").token(41)).await;
    }

    async fn a_claim_by_a_key_that_no_request_can_have_is_refused(store: Store) {
        let (upstream, proxy) = Proxy::before(
            &store,
            "routes: [{ path: '/orders/{id}', resource: 'order:{id}' }, \
             { path: '/orders/new', resource: 'new' }, \
             { path: '/odd/{id}', resource: 'odd:{id}', allow: [semicolon] }, \
             { path: '/n/{id}', resource: 'n:{id|int}' }, { path: '/n/7', mode: bypass }, \
             { path: '/l/{id}', resource: 'l:{id|lower}' }, { path: '/l/new', mode: bypass }, \
             { path: '/tree/{*rest}', resource: 'tree:{rest}' }, { path: '/tree/{id}', mode: bypass }, \
             { path: '/all/{id}', resource: 'all:{id}' }, { path: '/all/{*rest}', resource: 'a:{path}' }]",
        ).await;
        let by_key = |key: &str| post(CLAIM).header("X-Fencing-Resource", key).token(42);
        for key in [
            // Spellings that a path may not have on this route, or on any.
            "order:7/8", "order:a;b", "order:a\\b", "order:a?b", "order:a#b", "order:%2541",
            "odd:a/b", "odd:..;b", "odd:.", "tree:a//b", "tree:/a", "a:all/x/y", "a:/other",
            // Paths that are another route's, and keys that no text gives.
            "order:new", "l:New", "n:07", "n:x", "all:a%3ab",
            // The path in the spelling of the key is another route's.
            "n:7", "l:new",
        ] {
            proxy.refuse(by_key(key), 400, "ambiguous-request").await;
            assert_eq!(proxy.token(key).await, None, "{key}");
        }
        for (key, target) in [
            ("order:7", "/orders/7"), ("order:a%3Ab", "/orders/a:b"), ("odd:a;b", "/odd/a;b"),
            ("new", "/orders/new"), ("n:8", "/n/08"), ("l:x", "/l/X"),
            // With a slash behind it, this path is the wide route's.
            ("tree:a", "/tree/a/"), ("tree:a/b", "/tree/a/b"),
        ] {
            assert_eq!(proxy.send(by_key(key)).await.status(), 204, "{key}");
            proxy.stale(put(target).token(41)).await;
        }
        assert_eq!(upstream.count(), 0);
    }

    async fn a_claim_is_judged_like_a_write(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "{}").await;
        assert_eq!(proxy.send(claim("PUT /orders/7").token(42)).await.status(), 204);
        assert_eq!(proxy.send(claim("PUT /orders/7").token(42)).await.status(), 204, "equal passes");
        let problem = proxy.send(claim("PUT /orders/7").token(41)).await.assert_problem(412, "stale-token");
        assert_eq!(problem["mark"], "42");
        proxy.refuse(claim("PUT /orders/7").token("x"), 400, "malformed-token").await;
        for target in ["", "/orders/7", "PUT", "PUT orders/7", "PUT /orders/a%2Fb", "PUT /orders/../7", "PUT /orders/7 x"] {
            proxy.refuse(claim(target).token(50), 400, "ambiguous-request").await;
        }
        let twice = claim("PUT /orders/7").header("X-Fencing-Target", "PUT /orders/8").token(50);
        proxy.refuse(twice, 400, "ambiguous-request").await;
        proxy.refuse(claim("PUT /elsewhere").token(50), 404, "no-route").await;
        assert_eq!(proxy.token("order:7").await, Some(42), "what was refused raised nothing");
        assert_eq!(upstream.count(), 0);
    }

    async fn a_claim_does_not_use_a_token_up(store: Store) {
        let (upstream, proxy) = Proxy::before(
            &store, "routes: [{ path: '/orders/{id}', resource: 'order:{id}', reuse: once }]",
        ).await;
        assert_eq!(proxy.send(claim("POST /orders/7").token(5)).await.status(), 204);
        proxy.forward(post("/orders/7").token(5)).await;
        proxy.stale(post("/orders/7").token(5)).await;
        assert_eq!(upstream.tokens("order:7"), [5]);
    }

    async fn a_claim_takes_the_token_format_of_its_route(store: Store) {
        let (_upstream, proxy) = Proxy::before(
            &store, "routes: [{ path: '/orders/{id}', resource: 'order:{id}', token: { format: after-hash } }]",
        ).await;
        assert_eq!(proxy.send(claim("PUT /orders/7").token("lock#9")).await.status(), 204);
        assert_eq!(proxy.token("order:7").await, Some(9));
        proxy.refuse(claim("PUT /orders/7").token("9"), 400, "malformed-token").await;
    }

    async fn a_claim_by_key_is_refused_where_routes_read_its_token_in_two_ways(store: Store) {
        let (_upstream, proxy) = Proxy::before(
            &store,
            "routes: [{ path: '/a/{id}', resource: 'order:{id}' }, \
             { path: '/b/{id}', resource: 'order:{id}', token: { format: hex } }, \
             { path: '/c/{name}', resource: '{name}', token: { format: hex } }, \
             { path: '/bills/{id}', resource: 'bill:{id}' }]",
        ).await;
        for key in ["order:7", "bill:7"] {
            let by_key = post(CLAIM).header("X-Fencing-Resource", key);
            let problem = proxy.send(by_key.token("10")).await.assert_problem(400, "ambiguous-request");
            assert!(problem.to_string().contains("X-Fencing-Target"), "{problem}");
            assert_eq!(proxy.token(key).await, None);
        }
        // The new holder has 0x10, the one before it 0xf.
        assert_eq!(proxy.send(claim("PUT /b/7").token("10")).await.status(), 204);
        proxy.stale(put("/b/7").token("f")).await;
        proxy.stale(put("/a/7").token(15)).await;
        proxy.forward(put("/a/7").token(16)).await;
        // A key that routes of one format can yield.
        let by_key = post(CLAIM).header("X-Fencing-Resource", "other:7");
        assert_eq!(proxy.send(by_key.token("2a")).await.status(), 204);
        assert_eq!(proxy.token("other:7").await, Some(42));
    }
}

#[tokio::test]
async fn the_claim_path_can_move_or_be_off() {
    let (upstream, proxy) = fenced("claim: { path: /-/claim }").await;
    let moved = post("/-/claim")
        .header("X-Fencing-Target", "PUT /orders/7")
        .token(3);
    assert_eq!(proxy.send(moved).await.status(), 204);
    proxy
        .refuse(claim("PUT /orders/7").token(4), 404, "no-route")
        .await;
    assert_eq!(proxy.token("order:7").await, Some(3));

    let (_upstream, proxy) = fenced("claim: 'off'").await;
    proxy
        .refuse(claim("PUT /orders/7").token(4), 404, "no-route")
        .await;
    assert_eq!(upstream.count(), 0);
}
