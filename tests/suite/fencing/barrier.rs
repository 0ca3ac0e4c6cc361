//! No overtaking: newer tokens wait until older requests have ended at the upstream, or can do no
//! more harm (guarantee G2).

use std::time::Duration;

use crate::support::{
    Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, forwarded, joined,
    over_both_stores, put, soon,
};

/// An upstream, and a proxy with these barrier times.
async fn with_barrier(store: &Store, barrier: &str) -> (Upstream, Proxy) {
    Proxy::before(store, &format!("barrier: {barrier}")).await
}

over_both_stores! {
    async fn a_newer_token_lands_after_the_older_one_has_ended(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let newer = proxy.start_request(put("/orders/7").token(42).body("new"));
        proxy.waiting("order:7", 1).await;
        assert_eq!(upstream.tokens("order:7"), [41], "42 waits");
        assert_eq!(proxy.token("order:7").await, Some(42), "its mark is raised meanwhile");
        proxy.stale(put("/orders/7").token(41)).await;

        gate.open();
        all_forwarded([held, newer]).await;
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
        upstream.assert_no_overtaking();
    }

    async fn all_of_an_older_epoch_has_to_end(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s }").await;
        let gates: Vec<Gate> = (0..3).map(|_| Gate::shut()).collect();
        for gate in &gates {
            upstream.next([Step::Wait(gate.clone()), Step::ok()]);
        }
        let held: Vec<_> = (0..3).map(|_| proxy.start_request(put("/orders/7").token(41))).collect();
        upstream.reached(3).await;
        let newer = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        gates[2].open();
        gates[0].open();
        eventually("two of three have ended", || async {
            (proxy.mark("order:7").await?["in_flight"].as_u64() == Some(1)).then_some(())
        }).await;
        assert_eq!(upstream.count(), 3, "42 still waits for the third");
        gates[1].open();
        for one in held {
            forwarded(one).await;
        }
        forwarded(newer).await;
        upstream.assert_no_overtaking();
    }

    async fn a_waiter_that_a_still_newer_token_passes_is_stale(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let waiter = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        let newest = proxy.start_request(put("/orders/7").token(43));
        let problem = joined(waiter).await.assert_problem(412, "stale-token");
        assert_eq!((&problem["token"], &problem["mark"]), (&"42".into(), &"43".into()));
        gate.open();
        all_forwarded([held, newest]).await;
        assert_eq!(upstream.tokens("order:7"), [41, 43]);
        upstream.assert_no_overtaking();
    }

    async fn waiting_ends_with_a_503_that_can_be_tried_again(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 200ms }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let answer = proxy.send(put("/orders/7").token(42)).await;
        let problem = answer.assert_problem(503, "older-in-flight");
        assert_eq!(problem["retry"], "same-token");
        assert!(answer.retry_after().is_some_and(|seconds| seconds >= 1));
        assert_eq!(upstream.tokens("order:7"), [41]);
        gate.open();
        forwarded(held).await;
        proxy.forward(put("/orders/7").token(42)).await;
        proxy.stale(put("/orders/7").token(41)).await;
        upstream.assert_no_overtaking();
    }

    async fn the_queue_of_a_resource_is_bounded(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s, queue: 2 }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let waiters: Vec<_> = (0..2).map(|_| proxy.start_request(put("/orders/7").token(42))).collect();
        proxy.waiting("order:7", 2).await;
        let answer = proxy.send(put("/orders/7").token(42)).await;
        answer.assert_problem(503, "overloaded");
        assert!(answer.retry_after().is_some());
        // Other resources do not wait.
        proxy.forward(put("/orders/8").token(1)).await;
        gate.open();
        forwarded(held).await;
        for waiter in waiters {
            forwarded(waiter).await;
        }
        upstream.assert_no_overtaking();
    }

    async fn a_client_that_leaves_does_not_let_go_of_its_epoch(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s }").await;
        let (leaver, gate) = proxy.begin_held(&upstream, put("/orders/7").token(41)).await;
        drop(leaver);
        proxy
            .until_none("fencepost_connections")
            .await;
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

    async fn a_waiter_that_leaves_is_not_sent(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let leaver = proxy.begin(&put("/orders/7").token(42), b"").await;
        proxy.waiting("order:7", 1).await;
        drop(leaver);
        proxy.waiting("order:7", 0).await;
        gate.open();
        forwarded(held).await;
        proxy.forward(put("/orders/7").token(43)).await;
        assert_eq!(upstream.tokens("order:7"), [41, 43]);
    }

    async fn an_unknown_outcome_holds_its_epoch_until_it_has_settled(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s, settle: 1500ms }").await;
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
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s, grace: 60s }").await;
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

    async fn an_endless_older_answer_is_cut_after_the_drain(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s, grace: 500ms, settle: 1s }").await;
        let stream = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        upstream.on_token(41, [Step::raw(stream), Step::Endless(b"4\r\ntick\r\n".to_vec())]);
        let mut reader = proxy.begin(&put("/orders/7").token(41), b"").await;
        let head = soon("the stream's head", reader.head()).await.expect("a head");
        assert_eq!(head.word(1), "200");
        let newer = proxy.start_request(put("/orders/7").token(42));
        let rest = soon("the stream's end", reader.wire.body(head.response_framing(false), |_| {})).await;
        rest.expect_err("it is cut, not ended as if it were whole");
        forwarded(newer).await;
        assert!(upstream.arrivals()[0].left, "the exchange with the upstream was reset");
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
        upstream.assert_no_overtaking();
    }

    async fn an_older_client_that_stalls_its_download_holds_nobody_up(store: Store) {
        // Neither the drain nor the settling could let 42 through within the wait.
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s, grace: 300s, settle: 300s }").await;
        let megabytes = "x".repeat(24 << 20);
        upstream.on_token(41, [Step::answer("200 OK", "", &megabytes)]);
        let mut stalled = proxy.begin(&put("/orders/7").token(41), b"").await;
        soon("the answer's head", stalled.head()).await.expect("a head");
        proxy.forward(put("/orders/7").token(42)).await;
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
    }

    async fn an_older_client_that_stalls_its_upload_is_cut_after_the_drain(store: Store) {
        let more = "{ barrier: { wait: 25s, grace: 500ms, settle: 1s }, body: { buffer: 1KiB } }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        let request = put("/orders/7").token(41).header("Content-Length", "1000000");
        let _stalled = proxy.begin(&request, "x".repeat(20_000).as_bytes()).await;
        upstream.until("a part of the body", |all| all.first().is_some_and(|one| !one.body.is_empty())).await;
        proxy.forward(put("/orders/7").token(42)).await;
        let arrivals = upstream.arrivals();
        assert!(!arrivals[0].whole);
        assert_eq!(upstream.tokens("order:7"), [41, 42]);
    }

    async fn a_client_that_pauses_a_small_upload_holds_nobody_up(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s, grace: 300s, settle: 300s }").await;
        let request = put("/orders/7").token(41).header("Content-Length", "8");
        let mut paused = proxy.begin(&request, b"half").await;
        proxy.forward(put("/orders/7").token(40)).await;
        assert_eq!(proxy.token("order:7").await, Some(40), "half a request raises no mark");
        proxy.forward(put("/orders/7").token(42)).await;
        paused.wire.send(b"done").await.expect("the rest is taken");
        paused.finish().await.assert_problem(412, "stale-token");
        assert_eq!(upstream.tokens("order:7"), [40, 42]);
    }

    async fn reads_with_a_token_wait_like_all_others(store: Store) {
        let (upstream, proxy) = with_barrier(&store, "{ wait: 25s }").await;
        let (held, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let read = proxy.start_request(crate::support::get("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        crate::support::get("/orders/7").send(proxy.data()).await.assert_forwarded();
        gate.open();
        all_forwarded([held, read]).await;
        upstream.assert_no_overtaking();
    }
}
