//! No overtaking: newer tokens wait until older requests have ended at the upstream, or can do no
//! more harm (guarantee G2).

use std::time::Duration;

use super::claim::claim;
use crate::support::{
    Gate, Proxy, Step, all_forwarded, eventually, forwarded, get, joined, over_both_stores, put,
    soon,
};

over_both_stores! {
    async fn newer_tokens_land_after_all_of_the_older_epoch_has_ended(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 25s }").await;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(proxy.held(&upstream, put("/orders/7").token(41)).await);
        }
        // Reads with a token wait like all others.
        let newer = [put("/orders/7"), get("/orders/7")]
            .map(|newer| proxy.start_request(newer.token(42)));
        proxy.waiting("order:7", 2).await;
        assert_eq!(proxy.token("order:7").await, Some(42), "its mark is raised meanwhile");
        proxy.stale(put("/orders/7").token(41)).await;
        // Nobody else waits.
        proxy.forward(get("/orders/7")).await;
        proxy.forward(put("/orders/8").token(1)).await;
        let (third, gate) = held.remove(1);
        for (one, gate) in held {
            gate.open();
            forwarded(one).await;
        }
        eventually("two of three have ended", || async {
            (proxy.mark("order:7").await?["in_flight"].as_u64() == Some(1)).then_some(())
        }).await;
        assert_eq!(upstream.tokens("order:7"), [41, 41, 41], "42 still waits for the third");
        gate.open();
        forwarded(third).await;
        all_forwarded(newer).await;
        assert_eq!(upstream.tokens("order:7"), [41, 41, 41, 42, 42]);
        upstream.assert_no_overtaking();
    }

    async fn a_waiter_that_leaves_or_that_a_still_newer_token_passes_is_not_sent(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 25s }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let waiter = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        let leaver = proxy.begin(&put("/orders/7").token(43), b"").await;
        let problem = joined(waiter).await.assert_problem(412, "stale-token");
        assert_eq!((&problem["token"], &problem["mark"]), (&"42".into(), &"43".into()));
        proxy.waiting("order:7", 1).await;
        drop(leaver);
        proxy.waiting("order:7", 0).await;
        gate.open();
        forwarded(held).await;
        proxy.forward(put("/orders/7").token(44)).await;
        assert_eq!(upstream.tokens("order:7"), [41, 44]);
        upstream.assert_no_overtaking();
    }

    async fn waiting_ends_with_a_503_that_can_be_tried_again(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 200ms }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let newer = [claim("PUT /orders/7"), put("/orders/7")].map(|newer| newer.token(42));
        for newer in &newer {
            let answer = proxy.send(newer.clone()).await;
            let problem = answer.assert_problem(503, "older-in-flight");
            assert_eq!(problem["retry"], "same-token");
            assert!(answer.retry_after().is_some_and(|seconds| seconds >= 1));
            // It has raised the mark all the same.
            proxy.stale(put("/orders/7").token(41)).await;
        }
        assert_eq!(upstream.tokens("order:7"), [41]);
        gate.open();
        forwarded(held).await;
        for (newer, status) in newer.into_iter().zip([204, 200]) {
            assert_eq!(proxy.send(newer).await.status(), status);
        }
        proxy.stale(put("/orders/7").token(41)).await;
        upstream.assert_no_overtaking();
    }

    async fn a_client_that_leaves_does_not_let_go_of_its_epoch(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 25s }").await;
        let (leaver, gate) = proxy.begin_held(&upstream, put("/orders/7").token(41)).await;
        drop(leaver);
        proxy.until_none("fencepost_connections").await;
        let newer = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        assert_eq!(upstream.count(), 1);
        assert!(!upstream.arrivals()[0].left, "the exchange goes on without its client");
        gate.open();
        forwarded(newer).await;
        assert_eq!(proxy.count("fencepost_unknown_outcomes", &[]).await, 0);
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
        upstream.assert_no_overtaking();
    }

    async fn an_unknown_outcome_holds_its_epoch_until_it_has_settled(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 25s, settle: 1500ms }").await;
        upstream.on_token(41, [Step::Reset]);
        let answer = proxy.send(put("/orders/7").token(41)).await;
        assert_eq!(answer.assert_problem(502, "outcome-unknown")["retry"], "check-first");
        proxy.forward(put("/orders/7").token(41)).await;
        proxy.forward(put("/orders/7").token(42)).await;
        let all = upstream.arrivals();
        assert_eq!(upstream.tokens("order:7"), [41, 41, 42]);
        let gone = all[2].began - all[0].ended.expect("it was reset");
        assert!(gone >= Duration::from_millis(1450), "42 began {gone:?} after the reset");
    }

    async fn a_timeout_is_not_completion(store: Store) {
        let more = "{ barrier: { wait: 25s, settle: 3s }, routes: [
            { path: '/orders/{id}', resource: 'order:{id}', upstream: { timeout: 300ms } },
            { path: '/orders/{id}/patient', resource: 'order:{id}' }] }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        let gate = Gate::shut();
        upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
        proxy.refuse(put("/orders/7").token(41), 504, "outcome-unknown").await;
        let newer = proxy.start_request(put("/orders/7/patient").token(42));
        proxy.waiting("order:7", 1).await;
        // It has worked on after its caller has given up, and for less than `settle`.
        gate.open();
        forwarded(newer).await;
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
        upstream.assert_no_overtaking();
    }

    async fn a_response_head_is_not_the_end_of_a_response(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { wait: 25s, grace: 60s }").await;
        let gate = Gate::shut();
        upstream.on_token(41, [
            Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf"),
            Step::Wait(gate.clone()),
            Step::raw("half"),
        ]);
        let mut older = proxy.begin(&put("/orders/7").token(41), b"").await;
        assert_eq!(older.any_head().await.word(1), "200");
        let newer = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        assert_eq!(upstream.tokens("order:7"), [41], "42 waits for the rest");
        gate.open();
        forwarded(newer).await;
        upstream.assert_no_overtaking();
    }

    async fn an_older_exchange_that_does_not_end_is_cut_after_the_drain(store: Store) {
        let more = "{ barrier: { wait: 25s, grace: 500ms, settle: 1s }, body: { buffer: 1KiB } }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        // An endless answer.
        let stream = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        upstream.on_token(41, [Step::raw(stream), Step::Endless(b"4\r\ntick\r\n".to_vec())]);
        let mut reader = proxy.begin(&put("/orders/7").token(41), b"").await;
        let head = soon("the stream's head", reader.head()).await.expect("a head");
        assert_eq!(head.word(1), "200");
        let newer = proxy.start_request(put("/orders/7").token(42));
        let rest = reader.wire.body(head.response_framing(false), |_| {});
        let ended = soon("the stream's end", rest).await;
        ended.expect_err("it is cut, not ended as if it were whole");
        forwarded(newer).await;
        assert!(upstream.arrivals()[0].left, "the exchange with the upstream was reset");
        // A client that stalls its upload.
        let request = put("/orders/8").token(41).header("Content-Length", "1000000");
        let _stalled = proxy.begin(&request, "x".repeat(20_000).as_bytes()).await;
        upstream.until("a part of the body", |all| all.get(2).is_some_and(|one| !one.body.is_empty())).await;
        proxy.forward(put("/orders/8").token(42)).await;
        assert!(!upstream.arrivals()[2].whole);
        for resource in ["order:7", "order:8"] {
            assert_eq!(upstream.tokens(resource), [41, 42]);
        }
        upstream.assert_no_overtaking();
    }

    async fn an_older_client_that_stalls_holds_nobody_up(store: Store) {
        // Neither the drain nor the settling could let a newer token through within the wait.
        let more = "barrier: { wait: 25s, grace: 300s, settle: 300s }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        // In its download.
        let megabytes = "x".repeat(24 << 20);
        upstream.on_token(41, [Step::answer("200 OK", "", &megabytes)]);
        let mut stalled = proxy.begin(&put("/orders/7").token(41), b"").await;
        soon("the answer's head", stalled.head()).await.expect("a head");
        proxy.forward(put("/orders/7").token(42)).await;
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
        // In a small upload.
        let request = put("/orders/8").token(41).header("Content-Length", "8");
        let mut paused = proxy.begin(&request, b"half").await;
        proxy.forward(put("/orders/8").token(40)).await;
        assert_eq!(proxy.token("order:8").await, Some(40), "half a request raises no mark");
        proxy.forward(put("/orders/8").token(42)).await;
        paused.push(b"done").await;
        paused.finish().await.assert_problem(412, "stale-token");
        assert_eq!(upstream.tokens("order:8"), [40, 42]);
    }
}
