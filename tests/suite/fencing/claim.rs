//! Claims: acquire, claim, read, write.

use crate::support::{Proxy, Request, fenced, over_both_stores, post, put};

pub const CLAIM: &str = "/.well-known/fencing/claim";

pub fn claim(target: &str) -> Request {
    post(CLAIM).header("X-Fencing-Target", target)
}

pub fn by_key(key: &str) -> Request {
    post(CLAIM).header("X-Fencing-Resource", key)
}

over_both_stores! {
    async fn after_a_claim_older_holders_are_refused_even_after_a_crash(store: Store) {
        let (upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
        for _ in 0..2 {
            let answer = proxy.send(claim("PUT /orders/7").token(42)).await;
            assert_eq!((answer.status(), answer.text().as_str()), (204, ""));
        }
        proxy.kill9();
        let proxy = Proxy::start(&config).await;
        let problem = proxy.stale(claim("PUT /orders/7").token(41)).await;
        assert_eq!(problem["mark"], "42");
        proxy.stale(put("/orders/7").token(41)).await;
        proxy.forward(put("/orders/7").token(42)).await;
        assert_eq!(upstream.tokens("order:7"), [42], "a claim forwards nothing");
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
        for key in [
            // Spellings that a path may not have on this route, or on any.
            "order:7/8", "order:a;b", "order:a\\b", "order:a?b", "order:a#b", "order:%2541",
            "odd:a/b", "odd:..;b", "odd:.", "tree:a//b", "tree:/a", "a:all/x/y", "a:/other",
            // Paths that are another route's, and keys that no text gives.
            "order:new", "l:New", "n:07", "n:x", "all:a%3ab",
            // The path in the spelling of the key is another route's.
            "n:7", "l:new",
        ] {
            proxy.refuse(by_key(key).token(42), 400, "ambiguous-request").await;
            assert_eq!(proxy.token(key).await, None, "{key}");
        }
        for (key, target) in [
            ("order:7", "/orders/7"), ("order:a%3Ab", "/orders/a:b"), ("odd:a;b", "/odd/a;b"),
            ("new", "/orders/new"), ("n:8", "/n/08"), ("l:x", "/l/X"),
            // With a slash behind it, this path is the wide route's.
            ("tree:a", "/tree/a/"), ("tree:a/b", "/tree/a/b"),
        ] {
            assert_eq!(proxy.send(by_key(key).token(42)).await.status(), 204, "{key}");
            proxy.stale(put(target).token(41)).await;
        }
        assert_eq!(upstream.count(), 0);
    }

    async fn a_claim_that_cannot_be_read_raises_no_mark(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "{}").await;
        proxy.refuse(claim("PUT /orders/7").token("x"), 400, "malformed-token").await;
        for target in [
            "", "/orders/7", "PUT", "PUT orders/7", "PUT /orders/a%2Fb", "PUT /orders/../7",
            "PUT /orders/7 x",
        ] {
            proxy.refuse(claim(target).token(50), 400, "ambiguous-request").await;
        }
        let twice = claim("PUT /orders/7").header("X-Fencing-Target", "PUT /orders/8").token(50);
        proxy.refuse(twice, 400, "ambiguous-request").await;
        proxy.refuse(claim("PUT /elsewhere").token(50), 404, "no-route").await;
        assert_eq!(proxy.token("order:7").await, None);
        assert_eq!(upstream.count(), 0);
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
            let problem = proxy.refuse(by_key(key).token("10"), 400, "ambiguous-request").await;
            assert!(problem.to_string().contains("X-Fencing-Target"), "{problem}");
            assert_eq!(proxy.token(key).await, None);
        }
        // The new holder has 0x10, the one before it 0xf.
        assert_eq!(proxy.send(claim("PUT /b/7").token("10")).await.status(), 204);
        proxy.stale(put("/b/7").token("f")).await;
        proxy.stale(put("/a/7").token(15)).await;
        proxy.forward(put("/a/7").token(16)).await;
        // A key that routes of one format can yield.
        assert_eq!(proxy.send(by_key("other:7").token("2a")).await.status(), 204);
        assert_eq!(proxy.token("other:7").await, Some(42));
    }
}

#[tokio::test]
async fn the_claim_path_can_move_or_be_off() {
    for (setting, status) in [("{ path: /-/claim }", 204), ("'off'", 404)] {
        let (_upstream, proxy) = fenced(&format!("claim: {setting}")).await;
        let usual = claim("PUT /orders/7").token(4);
        proxy.refuse(usual, 404, "no-route").await;
        let moved = post("/-/claim").header("X-Fencing-Target", "PUT /orders/7");
        assert_eq!(proxy.send(moved.token(3)).await.status(), status);
        let mark = proxy.token("order:7").await;
        assert_eq!(mark, (status == 204).then_some(3), "{setting}");
    }
}
