//! Admission: the mark, the token's spelling, and the answers.

use crate::support::wire::Wire;
use crate::support::{
    Answer, Config, Must, Proxy, Request, Upstream, delete, get, joined, over_both_stores, patch,
    post, put, soon,
};

const MAX: &str = "9223372036854775807";

/// An upstream, and a proxy in front of it that fences `/orders/{id}`.
async fn fenced(store: &crate::support::Store) -> (Upstream, Proxy) {
    fenced_with(store, "{}").await
}

/// As [`fenced`], with a fragment laid over the route.
async fn fenced_with(store: &crate::support::Store, route: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, store).route(route)).await;
    (upstream, proxy)
}

over_both_stores! {
    async fn a_stale_token_is_a_412_that_says_all(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
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
        let (upstream, proxy) = fenced(&store).await;
        for request in [put("/orders/7"), post("/orders/7"), patch("/orders/7"), delete("/orders/7")] {
            proxy.refuse(request, 428, "token-required").await;
        }
        assert_eq!(upstream.count(), 0);
        assert_eq!(proxy.token("order:7").await, None);
    }

    async fn an_equal_token_passes(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        for _ in 0..3 {
            proxy.forward(put("/orders/7").token(5)).await;
        }
        assert_eq!(upstream.tokens("order:7"), [5, 5, 5]);
    }

    async fn zero_is_a_token_and_no_mark_is_not_zero(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        assert_eq!(proxy.token("order:7").await, None);
        proxy.forward(put("/orders/7").token(0)).await;
        assert_eq!(proxy.token("order:7").await, Some(0));
        proxy.forward(put("/orders/7").token(0)).await;
        proxy.forward(put("/orders/7").token(1)).await;
        proxy.stale(put("/orders/7").token(0)).await;
        assert_eq!(upstream.tokens("order:7"), [0, 0, 1]);
    }

    async fn tokens_are_numbers_not_text(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        proxy.forward(put("/orders/7").token(9)).await;
        proxy.forward(put("/orders/7").token(10)).await;
        proxy.stale(put("/orders/7").token(9)).await;
        // Leading zeros and surrounding white space change nothing.
        proxy.send(put("/orders/7").token("0000000000000000010")).await.assert_forwarded();
        proxy.forward(put("/orders/7").token("\t 10 \t")).await;
        proxy.stale(put("/orders/7").token("0000000000000000009")).await;
        assert_eq!(upstream.tokens("order:7"), [9, 10, 10, 10]);
        for arrival in upstream.arrivals() {
            let token = arrival.head.get("x-fencing-token").unwrap_or_default().to_owned();
            assert!(["9", "10"].contains(&&*token), "canonical decimal goes upstream, not {token:?}");
        }
    }

    async fn tokens_are_exact_up_to_the_greatest(store: Store) {
        // By default no route believes these.
        let (upstream, proxy) = fenced_with(&store, "token: { max: none, max_jump: none }").await;
        proxy.forward(put("/orders/7").token("9223372036854775806")).await;
        proxy.forward(put("/orders/7").token(MAX)).await;
        let problem = proxy.stale(put("/orders/7").token("9223372036854775806")).await;
        assert_eq!((&problem["token"], &problem["mark"], &problem["gap"]), (
            &"9223372036854775806".into(), &MAX.into(), &"1".into(),
        ));
        proxy.forward(put("/orders/7").token(MAX)).await;
        proxy.refuse(put("/orders/7").token("9223372036854775808"), 400, "malformed-token").await;
        assert_eq!(upstream.count(), 3);
        assert_eq!(proxy.mark("order:7").await.expect("a mark")["mark"], MAX);
    }

    async fn resources_have_marks_of_their_own(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        proxy.forward(put("/orders/7").token(100)).await;
        proxy.forward(put("/orders/8").token(1)).await;
        proxy.stale(put("/orders/7").token(99)).await;
        assert_eq!(upstream.tokens("order:7"), [100]);
        assert_eq!(upstream.tokens("order:8"), [1]);
    }

    async fn a_malformed_token_is_a_400_in_every_spelling(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        proxy.forward(put("/orders/7").token(3)).await;
        let bad = malformed();
        assert!(bad.len() >= 40, "only {}", bad.len());
        for (what, request) in bad {
            let answer = proxy.send(request).await;
            assert_eq!(answer.status(), 400, "{what}: {}", answer.text());
            // Octets that HTTP itself forbids are refused before anybody looks for a token.
            let below = what.contains("no HTTP");
            answer.assert_problem(400, if below { "ambiguous-request" } else { "malformed-token" });
        }
        assert_eq!(upstream.tokens("order:7"), [3]);
        assert_eq!(proxy.token("order:7").await, Some(3), "marks stay as they were");
    }

    async fn under_reuse_once_an_equal_token_is_refused(store: Store) {
        let (upstream, proxy) = fenced_with(&store, "reuse: once").await;
        proxy.forward(post("/orders/7").token(5)).await;
        let problem = proxy.send(post("/orders/7").token(5)).await.assert_problem(412, "stale-token");
        assert_eq!((&problem["token"], &problem["mark"]), (&"5".into(), &"5".into()));
        proxy.forward(post("/orders/7").token(6)).await;
        proxy.stale(post("/orders/7").token(5)).await;
        assert_eq!(upstream.tokens("order:7"), [5, 6]);
    }

    async fn under_reuse_once_one_of_many_at_once_wins(store: Store) {
        let (upstream, proxy) = fenced_with(&store, "reuse: once").await;
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

    async fn under_reuse_once_a_safe_read_spends_nothing(store: Store) {
        let (upstream, proxy) = fenced_with(&store, "reuse: once").await;
        proxy.forward(get("/orders/7").token(5)).await;
        proxy.forward(post("/orders/7").token(5)).await;
        proxy.stale(post("/orders/7").token(5)).await;
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

    async fn marks_outlive_a_restart(store: Store) {
        let (upstream, mut proxy) = fenced(&store).await;
        proxy.forward(put("/orders/7").token(42)).await;
        proxy.stop().await;
        let proxy = Proxy::start(&Config::new(&upstream, &store)).await;
        proxy.stale(put("/orders/7").token(41)).await;
        proxy.forward(put("/orders/7").token(42)).await;
        assert_eq!(upstream.tokens("order:7"), [42, 42]);
    }

    async fn a_token_of_another_format_is_read_as_its_route_says(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "routes:
             - { path: '/hex/{id}', resource: 'hex:{id}', token: { format: hex } }
             - { path: '/hash/{id}', resource: 'hash:{id}', token: { format: after-hash } }
             - { path: '/prefix/{id}', resource: 'prefix:{id}', token: { format: prefix-hex16 } }",
        )
        .await;
        for (target, token, seen) in [
            ("/hex/1", "ff", 255),
            ("/hex/1", "0x1F4", 500),
            ("/hex/1", "0X1f5", 501),
            ("/hash/1", "lock#42", 42),
            ("/hash/1", "a#b#0043", 43),
            ("/prefix/1", "00000000000000ff-3f2a", 255),
            ("/prefix/1", "0000000000000100", 256),
        ] {
            proxy.forward(put(target).token(token)).await;
            assert_eq!(upstream.arrivals().last().and_then(crate::support::upstream::Arrival::token), Some(seen), "{token}");
        }
        for (target, token) in [
            ("/hex/1", "g1"), ("/hex/1", "0x"), ("/hex/1", "8000000000000000"), ("/hex/1", "-1"),
            ("/hash/1", "42"), ("/hash/1", "lock#"), ("/hash/1", "lock#4x"), ("/hash/1", "lock#-4"),
            ("/prefix/1", "00000000000000f"), ("/prefix/1", "000000000000000g"), ("/prefix/1", "8000000000000000"),
        ] {
            proxy.refuse(put(target).token(token), 400, "malformed-token").await;
        }
        for (target, token) in [("/hex/1", "1F4"), ("/hash/1", "z#42"), ("/prefix/1", "00000000000000ff")] {
            proxy.stale(put(target).token(token)).await;
        }
        assert_eq!(upstream.count(), 7);
    }

    async fn the_stale_status_can_be_409(store: Store) {
        let (_upstream, proxy) = Proxy::before(&store, "stale_status: 409").await;
        proxy.forward(put("/orders/7").token(2)).await;
        proxy.refuse(put("/orders/7").token(1), 409, "stale-token").await;
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

    async fn a_grpc_call_gets_its_verdict_as_trailers_only(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        let call = || post("/orders/7").header("content-type", "application/grpc").header("te", "trailers").body(b"\0\0\0\0\0");
        call().token(9).send_http2(proxy.data()).await.assert_forwarded();
        for (request, code, outcome) in [
            (call().token(8), "9", "stale-token"),
            (call(), "3", "token-required"),
            (call().token("x"), "3", "malformed-token"),
        ] {
            let answer = request.send_http2(proxy.data()).await;
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.header("grpc-status"), Some(code), "{outcome}");
            assert_eq!(answer.outcome(), Some(outcome));
            assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("application/grpc")));
            assert!(answer.body.is_empty());
        }
        assert_eq!(upstream.count(), 1);
    }

    async fn a_content_type_alone_makes_no_refusal_a_200(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
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
        }
        // Other types that only begin so.
        for kind in ["application/grpc-web", "application/grpc-web-text", "application/grpcx"] {
            with_trailers(kind).send_http2(proxy.data()).await.assert_problem(412, "stale-token");
        }
        assert_eq!(upstream.count(), 1);
    }

    async fn half_a_request_raises_no_mark(store: Store) {
        let (upstream, proxy) = fenced(&store).await;
        let request = put("/orders/7").token(50).header("Content-Length", "100");
        let cut = proxy.begin(&request, b"only a part").await;
        drop(cut);
        let mut torn = Wire::connect(proxy.data()).must().await;
        torn.send(b"PUT /orders/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 60\r\n").must().await;
        drop(torn);
        proxy.forward(put("/orders/7").token(1)).await;
        assert_eq!(upstream.tokens("order:7"), [1]);
        assert_eq!(proxy.token("order:7").await, Some(1));
    }
}

/// Values that are not tokens.
const SPELLINGS: &[&str] = &[
    "",
    " ",
    "-1",
    "-0",
    "+1",
    "1.0",
    "1.",
    ".5",
    "1e3",
    "1E3",
    "0x10",
    "0b1",
    "1_000",
    "1,000",
    "1 000",
    "4 2",
    "4\t2",
    "1,2",
    "1, 1",
    "5;q=1",
    "\"5\"",
    "'5'",
    "(5)",
    "[5]",
    "{5}",
    "5n",
    "5L",
    "5u64",
    "NaN",
    "inf",
    "null",
    "true",
    "abc",
    "5a",
    "a5",
    "#5",
    "lock#5",
    "=5",
    "5=",
    "%35",
    "5%20",
    "*",
    "5/1",
    "\\5",
    // 2^63 and beyond, and too many digits though the value would fit.
    "9223372036854775808",
    "9999999999999999999",
    "18446744073709551615",
    "18446744073709551621",
    "00000000000000000005",
    "10000000000000000000",
    "340282366920938463463374607431768211461",
    // Digits of other scripts, spaces and signs that only look the part (UTF-8).
    "٥",
    "५",
    "５",
    "𝟓",
    "²",
    "5\u{a0}",
    "\u{a0}5",
    "\u{200b}5",
    "5\u{feff}",
    "−5",
    "5\u{85}",
];

/// Requests whose token is not one, each with what is wrong about it.
fn malformed() -> Vec<(String, Request)> {
    let line = |value: &[u8]| put("/orders/7").header("X-Fencing-Token", value);
    let mut all: Vec<(String, Request)> = SPELLINGS
        .iter()
        .map(|value| (format!("{value:?}"), line(value.as_bytes())))
        .collect();
    all.push(("NBSP in Latin-1".into(), line(b"5\xa0")));
    all.push(("superscript two in Latin-1".into(), line(b"\xb2")));
    for (what, octets) in [
        ("NUL", &b"5\x00"[..]),
        ("vertical tab", b"5\x0b"),
        ("form feed", b"\x0c5"),
        ("escape", b"\x1b5"),
        ("delete", b"5\x7f"),
        ("bare CR", b"5\r6"),
    ] {
        all.push((format!("{what}, which is no HTTP"), line(octets)));
    }
    let two = |first: (&str, &str), second: (&str, &str)| {
        put("/orders/7")
            .header(first.0, first.1)
            .header(second.0, second.1)
    };
    for (first, second) in [
        (("X-Fencing-Token", "5"), ("X-Fencing-Token", "5")),
        (("X-Fencing-Token", "5"), ("X-Fencing-Token", "6")),
        (("X-Fencing-Token", "5"), ("x-fencing-token", "5")),
        (("X-Fencing-Token", "5"), ("X-Fencing-Token", "")),
        (("X-Fencing-Token", "5"), ("X_Fencing_Token", "5")),
        (("X_Fencing_Token", "5"), ("X-Fencing-Token", "5")),
        (("X-Fencing-Token", "5"), ("X-Fencing_Token", "6")),
        (("X-Fencing-Token", "5"), ("X_FENCING-TOKEN", "")),
    ] {
        all.push((format!("{first:?} and {second:?}"), two(first, second)));
    }
    for name in [
        "X_Fencing_Token",
        "X-Fencing_Token",
        "x_fencing-token",
        "X_FENCING_TOKEN",
    ] {
        all.push((format!("{name} alone"), put("/orders/7").header(name, "5")));
    }
    let get_too = get("/orders/7").header("X-Fencing-Token", "-5");
    all.push(("a read that carries one".into(), get_too));
    all.push((
        "a read, underscore".into(),
        get("/orders/7").header("X_Fencing_Token", "5"),
    ));
    all
}

#[tokio::test]
async fn a_folded_token_line_is_never_joined() {
    let store = crate::support::Store::sqlite();
    let (upstream, proxy) = fenced(&store).await;
    let mut wire = Wire::connect(proxy.data()).must().await;
    wire.send(b"PUT /orders/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 1\r\n 2\r\nContent-Length: 0\r\n\r\n").must().await;
    let head = soon("an answer", wire.head())
        .must()
        .await
        .expect("an answer");
    assert_eq!(head.word(1), "400");
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.token("order:7").await, None);
}

#[tokio::test]
async fn the_own_answers_are_for_caches_and_scripts_too() {
    let store = crate::support::Store::sqlite();
    let (_upstream, proxy) = fenced(&store).await;
    let answer: Answer = proxy
        .send(put("/orders/7").header("Accept", "text/html"))
        .await;
    answer.assert_problem(428, "token-required");
    // Every own answer is framed, so that the connection can be used again.
    assert!(answer.header("content-length").is_some());
}
