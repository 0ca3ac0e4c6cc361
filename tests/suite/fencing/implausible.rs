//! Tokens that leap: a number that no lock service hands out must not shut its holders out.

use serde_json::json;

use super::admission::{MAX, fenced};
use super::claim::{by_key, claim};
use crate::support::{Proxy, Store, or_return, over_both_stores, put};

over_both_stores! {
    async fn the_greatest_token_shuts_nobody_out(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        proxy.forward(put("/orders/7").token(41)).await;
        // The second one has no mark yet.
        for (id, mark) in [(7, Some("41")), (8, None)] {
            let (path, key) = (format!("/orders/{id}"), format!("order:{id}"));
            for poison in [put(&path), claim(&format!("PUT {path}")), by_key(&key)] {
                let problem = proxy.refuse(poison.token(MAX), 422, "implausible-token").await;
                assert_eq!((&problem["retry"], &problem["token"]), (&json!("never"), &json!(MAX)));
                assert_eq!(problem.get("mark"), mark.map(|mark| json!(mark)).as_ref());
                assert!(problem.get("gap").is_none(), "{problem}");
            }
            assert_eq!(proxy.token(&key).await, mark.map(|_| 41));
        }
        let refused = [("outcome", "implausible-token")];
        assert_eq!(proxy.count("fencepost_requests_total", &refused).await, 6);
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
        proxy.forward(put("/orders/7").token(1)).await;
        let poison = async |token: u64| {
            for n in 0..200 {
                let leap = put("/orders/7").token(token - n);
                assert_eq!(proxy.send(leap).await.status(), 422);
            }
        };
        let holders = async {
            for token in 2..100 {
                proxy.forward(put("/orders/7").token(token)).await;
            }
        };
        let max = i64::MAX.unsigned_abs();
        tokio::join!(poison(max), poison(1 << 60), poison(1 << 61), poison(1 << 62), holders);
        assert_eq!(upstream.count(), 99);
        assert_eq!(proxy.token("order:7").await, Some(99));
    }

    async fn observed_routes_let_it_pass_and_keep_the_mark(store: Store) {
        let (upstream, proxy) = fenced(&store, "mode: observe").await;
        proxy.forward(put("/orders/7").token(41)).await;
        proxy.until_token("order:7", 41).await;
        proxy.forward(put("/orders/7").token(MAX)).await;
        proxy.until_outcome("observed-implausible-token", 1).await;
        assert_eq!(proxy.token("order:7").await, Some(41));
        assert_eq!(upstream.count(), 2);
    }
}

/// The store decides, so that no proxy judges by a mark that has long been passed.
#[tokio::test]
async fn two_proxies_judge_by_the_same_mark() {
    let store = or_return!(Store::postgres().await);
    let bound =
        "routes: [{ path: '/orders/{id}', resource: 'order:{id}', token: { max_jump: 10 } }]";
    let (_upstream, config, a) = Proxy::with_config(&store, bound).await;
    let b = Proxy::start(&config).await;
    for (proxy, token) in [(&a, 40), (&b, 50), (&a, 60), (&a, 70), (&b, 80)] {
        proxy.forward(put("/orders/7").token(token)).await;
    }
    for proxy in [&a, &b] {
        let leap = put("/orders/7").token(91);
        let problem = proxy.refuse(leap, 422, "implausible-token").await;
        assert_eq!(problem["mark"], "80");
    }
    assert_eq!(a.token("order:7").await, Some(80));
}

/// A format that says nothing of growth is bounded on request only.
#[tokio::test]
async fn a_token_is_believed_up_to_the_bound_of_its_route() {
    let routes = "
        routes:
          - { path: '/once/{id}', resource: 'once:{id}', reuse: once, token: { max_jump: 10, max: 1000 } }
          - { path: '/hex/{id}', resource: 'hex:{id}', token: { format: hex } }
          - { path: '/hash/{id}', resource: 'hash:{id}', token: { format: after-hash } }
          - { path: '/tight/{id}', resource: 'tight:{id}', token: { format: prefix-hex16, max_jump: 16 } }
          - { path: '/any/{id}', resource: 'any:{id}', token: { max_jump: none, max: none } }";
    let (_upstream, proxy) = Proxy::before(&Store::sqlite(), routes).await;
    for (path, token, status) in [
        ("/once/7", "1001", 422),
        ("/once/7", "995", 200),
        ("/once/7", "1001", 422),
        ("/once/7", "1000", 200),
        ("/once/8", "1", 200),
        ("/once/8", "12", 422),
        ("/once/8", "11", 200),
        // It has not been spent.
        ("/once/8", "12", 200),
        ("/once/8", "12", 412),
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
        let outcome = match status {
            200 => None,
            400 => Some("malformed-token"),
            412 => Some("stale-token"),
            _ => Some("implausible-token"),
        };
        let found = (answer.status(), answer.outcome());
        assert_eq!(found, (status, outcome), "{path} {token}");
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
    let by_key = |token: u64| by_key("thing:7").token(token);
    assert_eq!(proxy.send(by_key(41)).await.status(), 204);
    proxy.refuse(by_key(52), 422, "implausible-token").await;
    let leap = claim("PUT /b/7").token(52);
    proxy.refuse(leap, 422, "implausible-token").await;
    let far = claim("PUT /a/7").token(1041);
    assert_eq!(proxy.send(far).await.status(), 204);
    assert_eq!(proxy.token("thing:7").await, Some(1041));
}
