//! Tokens that leap: a number that no lock service hands out must not shut its holders out.

use serde_json::json;

use crate::support::{
    Config, Proxy, Store, Upstream, eventually, or_return, over_both_stores, post, put,
};

const MAX: &str = "9223372036854775807";
const CLAIM: &str = "/.well-known/fencing/claim";

async fn fenced(store: &Store, route: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, store).route(route)).await;
    (upstream, proxy)
}

over_both_stores! {
    async fn the_greatest_token_shuts_nobody_out(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        proxy.forward(put("/orders/7").token(41)).await;
        let claim = post(CLAIM).header("X-Fencing-Target", "PUT /orders/7");
        for poison in [put("/orders/7").token(MAX), claim.token(MAX)] {
            let problem = proxy.send(poison).await.assert_problem(422, "implausible-token");
            assert_eq!((&problem["retry"], &problem["token"], &problem["mark"]), (
                &json!("never"), &json!(MAX), &json!("41"),
            ));
            assert!(problem.get("gap").is_none(), "{problem}");
        }
        assert_eq!(proxy.token("order:7").await, Some(41));
        // A resource that has no mark yet.
        let by_key = post(CLAIM).header("X-Fencing-Resource", "order:8");
        for poison in [put("/orders/8").token(MAX), by_key.token(MAX)] {
            let problem = proxy.send(poison).await.assert_problem(422, "implausible-token");
            assert!(problem.get("mark").is_none(), "{problem}");
        }
        assert_eq!(proxy.token("order:8").await, None);
        let refused = [("outcome", "implausible-token")];
        assert_eq!(proxy.count("fencepost_requests_total", &refused).await, 4);
        proxy.logged("a line for the operator", |line| {
            line["outcome"] == "implausible-token" && line["resource"] == "order:7" && line["mark"] == "41"
        }).await;
        for id in [7, 8] {
            proxy.forward(put(&format!("/orders/{id}")).token(42)).await;
        }
        assert_eq!(upstream.count(), 3);
    }

    async fn an_operator_admits_what_was_granted_after_all(store: Store) {
        let (upstream, proxy) = fenced(&store, "token: { max_jump: 100, max: 2000 }").await;
        proxy.forward(put("/orders/7").token(41)).await;
        for token in [1041, 5000] {
            proxy.refuse(put("/orders/7").token(token), 422, "implausible-token").await;
            let body = json!({ "token": token.to_string(), "reason": "the lock service was moved" });
            let answer = proxy.command("/v1/marks/order:7/advance", &body).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            proxy.forward(put("/orders/7").token(token)).await;
            proxy.stale(put("/orders/7").token(42)).await;
        }
        // `max` holds for what comes next.
        proxy.refuse(put("/orders/7").token(5001), 422, "implausible-token").await;
        assert_eq!(upstream.tokens("order:7"), [41, 1041, 5000]);
    }

    async fn holders_are_not_held_up_by_tokens_that_leap(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        let poison = async {
            let one = |token: u64| {
                let proxy = &proxy;
                async move {
                    for n in 0..200 {
                        let leap = put("/orders/7").token(token - n);
                        let status = proxy.send(leap).await.status();
                        assert!(status == 422, "{status}");
                    }
                }
            };
            let max: u64 = MAX.parse().expect("a number");
            tokio::join!(one(max), one(1 << 60), one(1 << 61), one(1 << 62));
        };
        proxy.forward(put("/orders/7").token(1)).await;
        let holders = async {
            for token in 2..100 {
                proxy.forward(put("/orders/7").token(token)).await;
            }
        };
        tokio::join!(poison, holders);
        assert_eq!(upstream.count(), 99);
        assert_eq!(proxy.token("order:7").await, Some(99));
    }

    async fn observed_routes_let_it_pass_and_keep_the_mark(store: Store) {
        let (upstream, proxy) = fenced(&store, "mode: observe").await;
        proxy.forward(put("/orders/7").token(41)).await;
        eventually("the mark", || async { proxy.token("order:7").await }).await;
        proxy.forward(put("/orders/7").token(MAX)).await;
        proxy.until_outcome("observed-implausible-token", 1).await;
        assert_eq!(proxy.token("order:7").await, Some(41));
        assert_eq!(upstream.count(), 2);
    }
}

#[tokio::test]
async fn a_token_is_believed_up_to_its_bound() {
    let bounds = "{ reuse: once, token: { max_jump: 10, max: 1000 } }";
    let (upstream, proxy) = fenced(&Store::sqlite(), bounds).await;
    for (id, token, leaps) in [
        (7, 1001, true),
        (7, 995, false),
        (7, 1001, true),
        (7, 1000, false),
        (8, 1, false),
        (8, 12, true),
        (8, 11, false),
        // It has not been spent.
        (8, 12, false),
    ] {
        let write = put(&format!("/orders/{id}")).token(token);
        if leaps {
            proxy.refuse(write, 422, "implausible-token").await;
        } else {
            proxy.forward(write).await;
        }
    }
    proxy.stale(put("/orders/8").token(12)).await;
    assert_eq!(upstream.tokens("order:7"), [995, 1000]);
    assert_eq!(upstream.tokens("order:8"), [1, 11, 12]);
}

/// The store decides, so that no proxy judges by a mark that has long been passed.
#[tokio::test]
async fn two_proxies_judge_by_the_same_mark() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).route("token: { max_jump: 10 }");
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    for (proxy, token) in [(&a, 40), (&b, 50), (&a, 60), (&a, 70), (&b, 80)] {
        proxy.forward(put("/orders/7").token(token)).await;
    }
    for proxy in [&a, &b] {
        let answer = proxy.send(put("/orders/7").token(91)).await;
        let problem = answer.assert_problem(422, "implausible-token");
        assert_eq!(problem["mark"], "80");
    }
    assert_eq!(a.token("order:7").await, Some(80));
}

#[tokio::test]
async fn formats_that_say_nothing_of_growth_are_bounded_on_request_only() {
    let routes = "
        routes:
          - { path: '/hex/{id}', resource: 'hex:{id}', token: { format: hex } }
          - { path: '/hash/{id}', resource: 'hash:{id}', token: { format: after-hash } }
          - { path: '/tight/{id}', resource: 'tight:{id}', token: { format: prefix-hex16, max_jump: 16 } }
          - { path: '/any/{id}', resource: 'any:{id}', token: { max_jump: none, max: none } }";
    let (_upstream, proxy) = Proxy::before(&Store::sqlite(), routes).await;
    for (path, token, status) in [
        ("/hex/7", "7fffffffffffffff", 200),
        ("/any/7", MAX, 200),
        ("/hash/7", "lock#9223372036854775807", 422),
        ("/hash/7", "lock#42", 200),
        ("/hash/7", "42", 400),
        ("/tight/7", "0000000000000010-lock", 200),
        ("/tight/7", "0000000000000021-lock", 422),
        ("/tight/7", "0000000000000020-lock", 200),
        ("/tight/7", "000000000000000f-lock", 412),
        ("/tight/7", "20", 400),
    ] {
        let answer = proxy.send(put(path).token(token)).await;
        assert_eq!(answer.status(), status, "{path} {token}");
    }
}

/// A claim by key may be for any of them.
#[tokio::test]
async fn a_claim_by_key_is_believed_if_each_route_of_the_key_believes_it() {
    let routes = "
        routes:
          - { path: '/a/{id}', resource: 'thing:{id}', token: { max_jump: 1000 } }
          - { path: '/b/{id}', resource: 'thing:{id}', token: { max_jump: 10 } }";
    let (_upstream, proxy) = Proxy::before(&Store::sqlite(), routes).await;
    let by_key = |token: u64| {
        post(CLAIM)
            .header("X-Fencing-Resource", "thing:7")
            .token(token)
    };
    let claim = |target: &str| post(CLAIM).header("X-Fencing-Target", target);
    assert_eq!(proxy.send(by_key(41)).await.status(), 204);
    proxy.refuse(by_key(52), 422, "implausible-token").await;
    let leap = proxy.send(claim("PUT /b/7").token(52)).await;
    leap.assert_problem(422, "implausible-token");
    assert_eq!(
        proxy.send(claim("PUT /a/7").token(1041)).await.status(),
        204
    );
    assert_eq!(proxy.token("thing:7").await, Some(1041));
}
