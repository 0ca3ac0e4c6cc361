//! Admission: the mark, and the answers. Spellings of tokens are in `tests/edge/token.toml` and in
//! the tests of `src/routing/token.rs`.

use super::claim::claim;
use crate::support::postgres::free_port;
use crate::support::{Config, Proxy, Store, Upstream, get, joined, over_both_stores, post, put};

pub const MAX: &str = "9223372036854775807";

/// An upstream, and a proxy whose route has these fields.
pub async fn fenced(store: &Store, route: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, store).route(route)).await;
    (upstream, proxy)
}

over_both_stores! {
    async fn a_stale_token_is_a_412_that_says_all(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        proxy.refuse(put("/orders/7"), 428, "token-required").await;
        assert_eq!(proxy.token("order:7").await, None);
        proxy.forward(put("/orders/7").token(42).body("new")).await;

        let answer = proxy.send(put("/orders/7").token(40).body("old")).await;
        let problem = answer.assert_problem(412, "stale-token");
        assert_eq!(problem["resource"], "order:7");
        assert_eq!(problem["token"], "40", "tokens are JSON strings");
        assert_eq!(problem["mark"], "42");
        assert_eq!(problem["gap"], "2");
        assert_eq!(problem["retry"], "never");
        assert_eq!(answer.retry_after(), None, "a verdict, not a hiccup");
        assert_eq!(upstream.only().text(), "new");
        assert_eq!(proxy.token("order:7").await, Some(42));
    }

    async fn tokens_are_numbers_not_text(store: Store) {
        // By default no route believes the greatest.
        let (upstream, proxy) = fenced(&store, "token: { max: none, max_jump: none }").await;
        for (id, older, newer) in [(7, "9", "10"), (8, "9223372036854775806", MAX)] {
            let write = |token: &str| put(&format!("/orders/{id}")).token(token);
            // An equal one passes.
            for token in [older, older, newer, newer] {
                proxy.forward(write(token)).await;
            }
            let problem = proxy.stale(write(older)).await;
            let told = (&problem["token"], &problem["mark"], &problem["gap"]);
            assert_eq!(told, (&older.into(), &newer.into(), &"1".into()));
        }
        assert_eq!(upstream.tokens("order:7"), [9, 9, 10, 10]);
        assert_eq!(upstream.count(), 8);
    }

    async fn under_reuse_once_one_of_many_wins_and_reads_and_claims_spend_nothing(store: Store) {
        let (upstream, proxy) = fenced(&store, "reuse: once").await;
        for token in 1..=5 {
            let racers: Vec<_> =
                (0..8).map(|_| proxy.start_request(post("/orders/7").token(token))).collect();
            let mut won = 0;
            for racer in racers {
                let answer = joined(racer).await;
                match answer.status() {
                    200 => won += 1,
                    _ => drop(answer.assert_problem(412, "stale-token")),
                }
            }
            assert_eq!(won, 1, "token {token}");
        }
        assert_eq!(proxy.send(claim("POST /orders/7").token(6)).await.status(), 204);
        proxy.forward(get("/orders/7").token(6)).await;
        proxy.forward(post("/orders/7").token(6)).await;
        let problem = proxy.stale(post("/orders/7").token(6)).await;
        assert_eq!((&problem["token"], &problem["mark"]), (&"6".into(), &"6".into()));
        assert_eq!(upstream.tokens("order:7"), [1, 2, 3, 4, 5, 6, 6]);
    }

    async fn what_was_never_sent_holds_nothing_and_spends_no_token(store: Store) {
        let nowhere = format!("http://127.0.0.1:{}", free_port());
        let mut proxy = Proxy::start(&Config::to(&nowhere, &store).route("reuse: once")).await;
        for token in [4, 5, 5] {
            let refused = post("/orders/7").token(token);
            let problem = proxy.refuse(refused, 502, "upstream-unreachable").await;
            assert_eq!(problem["resource"], "order:7");
            assert_eq!(problem["token"], token.to_string());
        }
        proxy.stale(post("/orders/7").token(4)).await;
        proxy.stop().await;
        let (_upstream, proxy) = fenced(&store, "reuse: once").await;
        proxy.forward(post("/orders/7").token(5)).await;
        proxy.stale(post("/orders/7").token(5)).await;
    }

    async fn without_disclosure_an_answer_names_no_number(store: Store) {
        let (_upstream, proxy) = Proxy::before(&store, "disclose: false").await;
        proxy.forward(put("/orders/77123").token(88_456)).await;
        let answer = proxy.send(put("/orders/77123").token(88_455)).await;
        answer.assert_problem(412, "stale-token");
        let fields = ["\"resource\"", "\"token\"", "\"mark\"", "\"gap\""];
        for secret in fields.iter().chain(&["77123", "88456", "88455"]) {
            assert!(!answer.text().contains(secret), "{secret}: {}", answer.text());
        }
    }

    async fn a_content_type_alone_makes_no_refusal_a_200(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        proxy.forward(put("/orders/7").token(9)).await;
        let stale = |kind: &str| post("/orders/7").header("content-type", kind).token(8).body("x");
        let with_trailers = |kind: &str| stale(kind).header("te", "trailers");
        for kind in ["application/grpc", "application/grpc+proto", "Application/gRPC"] {
            // HTTP/1, with the fields that gRPC has over HTTP/2.
            proxy.stale(stale(kind)).await;
            proxy.stale(with_trailers(kind)).await;
            // HTTP/2, from a client that takes no trailers.
            stale(kind).send_http2(proxy.data()).await.assert_problem(412, "stale-token");
            let call = with_trailers(kind).send_http2(proxy.data()).await;
            assert_eq!((call.status(), call.header("grpc-status")), (200, Some("9")), "{kind}");
            assert_eq!((call.outcome(), call.text().as_str()), (Some("stale-token"), ""), "{kind}");
            assert!(call.header("content-type").is_some_and(|kind| kind.starts_with("application/grpc")));
        }
        // Other types that only begin so.
        for kind in ["application/grpc-web", "application/grpc-web-text", "application/grpcx"] {
            with_trailers(kind).send_http2(proxy.data()).await.assert_problem(412, "stale-token");
        }
        assert_eq!(upstream.count(), 1);
    }
}
