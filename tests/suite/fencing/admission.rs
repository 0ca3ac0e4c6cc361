//! Admission: the mark, and the answers. Spellings of tokens are in `tests/edge/token.toml` and in
//! the tests of `src/routing/token.rs`.

use crate::support::{
    Config, Proxy, Store, Upstream, delete, get, joined, over_both_stores, patch, post, put,
};

const MAX: &str = "9223372036854775807";

/// An upstream, and a proxy whose route has these fields.
async fn fenced(store: &Store, route: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, store).route(route)).await;
    (upstream, proxy)
}

over_both_stores! {
    async fn a_stale_token_is_a_412_that_says_all(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
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

    async fn no_token_is_a_428_and_leaves_no_mark(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        for request in [put("/orders/7"), post("/orders/7"), patch("/orders/7"), delete("/orders/7")] {
            proxy.refuse(request, 428, "token-required").await;
        }
        assert_eq!(upstream.count(), 0);
        assert_eq!(proxy.token("order:7").await, None);
    }

    async fn an_equal_token_passes(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        for _ in 0..3 {
            proxy.forward(put("/orders/7").token(5)).await;
        }
        assert_eq!(upstream.tokens("order:7"), [5, 5, 5]);
    }

    async fn tokens_are_numbers_not_text(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        proxy.forward(put("/orders/7").token(9)).await;
        proxy.forward(put("/orders/7").token(10)).await;
        proxy.stale(put("/orders/7").token(9)).await;
        assert_eq!(upstream.tokens("order:7"), [9, 10]);
    }

    async fn tokens_are_exact_up_to_the_greatest(store: Store) {
        // By default no route believes these.
        let (upstream, proxy) = fenced(&store, "token: { max: none, max_jump: none }").await;
        proxy.forward(put("/orders/7").token("9223372036854775806")).await;
        proxy.forward(put("/orders/7").token(MAX)).await;
        let problem = proxy.stale(put("/orders/7").token("9223372036854775806")).await;
        assert_eq!((&problem["token"], &problem["mark"], &problem["gap"]), (
            &"9223372036854775806".into(), &MAX.into(), &"1".into(),
        ));
        assert_eq!(upstream.count(), 2);
    }

    async fn under_reuse_once_one_of_many_at_once_wins(store: Store) {
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
        assert_eq!(upstream.tokens("order:7"), [1, 2, 3, 4, 5]);
    }

    async fn under_reuse_once_a_token_passes_once_and_a_safe_read_spends_nothing(store: Store) {
        let (upstream, proxy) = fenced(&store, "reuse: once").await;
        proxy.forward(get("/orders/7").token(5)).await;
        proxy.forward(post("/orders/7").token(5)).await;
        let problem = proxy.stale(post("/orders/7").token(5)).await;
        assert_eq!((&problem["token"], &problem["mark"]), (&"5".into(), &"5".into()));
        assert_eq!(upstream.count(), 2);
    }

    async fn under_reuse_once_what_was_never_sent_gives_the_token_back(store: Store) {
        let nowhere = format!("http://127.0.0.1:{}", crate::support::postgres::free_port());
        let config = Config::to(&nowhere, &store).route("reuse: once");
        let mut proxy = Proxy::start(&config).await;
        for _ in 0..2 {
            proxy.refuse(post("/orders/7").token(5), 502, "upstream-unreachable").await;
        }
        proxy.stop().await;
        let upstream = Upstream::start().await;
        let proxy = Proxy::start(&Config::new(&upstream, &store).route("reuse: once")).await;
        proxy.forward(post("/orders/7").token(5)).await;
        proxy.stale(post("/orders/7").token(5)).await;
    }

    async fn without_disclosure_an_answer_names_no_number(store: Store) {
        let (_upstream, proxy) = Proxy::before(&store, "disclose: false").await;
        proxy.forward(put("/orders/77123").token(88_456)).await;
        let answer = proxy.send(put("/orders/77123").token(88_455)).await;
        let problem = answer.assert_problem(412, "stale-token");
        for field in ["resource", "token", "mark", "gap"] {
            assert!(problem.get(field).is_none(), "{field}: {problem}");
        }
        for secret in ["77123", "88456", "88455"] {
            assert!(!answer.text().contains(secret), "{}", answer.text());
        }
    }

    async fn a_content_type_alone_makes_no_refusal_a_200(store: Store) {
        let (upstream, proxy) = fenced(&store, "{}").await;
        proxy.forward(put("/orders/7").token(9)).await;
        let stale = |kind: &str| post("/orders/7").header("content-type", kind).token(8).body("x");
        let with_trailers = |kind: &str| stale(kind).header("te", "trailers");
        for kind in ["application/grpc", "application/grpc+proto", "Application/gRPC"] {
            // HTTP/1, with the fields that gRPC has over HTTP/2.
            for request in [stale(kind), with_trailers(kind)] {
                proxy.stale(request).await;
            }
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
