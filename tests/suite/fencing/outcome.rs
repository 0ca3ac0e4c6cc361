//! The known outcome (`outcome` of a route): an operation takes effect once through the fence, though
//! another holder repeats it, and though something breaks in between.

use std::time::Duration;

use crate::support::pair::around;
use crate::support::relay::{Point, Statement};
use crate::support::wire::Head;
use crate::support::{
    Answer, Config, Pair, Proxy, Request, Step, Store, Upstream, eventually, get, or_return,
    over_both_stores, post,
};

/// Remembers outcomes on the route of the tests.
const REMEMBERS: &str = "{ outcome: { body: 4KiB } }";

/// One charge, under this token.
fn charge(token: u64) -> Request {
    charge_of(token, "charge-7", "pay 10")
}

fn charge_of(token: u64, operation: &str, body: &str) -> Request {
    post("/orders/7")
        .token(token)
        .header("X-Fencing-Operation", operation)
        .body(body)
}

/// A proxy whose route has these fields, and whose unknown outcomes settle soon.
async fn remembering(store: &Store, route: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, store).route(route);
    let config =
        config.with("{ barrier: { settle: 300ms, grace: 100ms }, upstream: { timeout: 20s } }");
    let proxy = Proxy::start(&config).await;
    (upstream, proxy)
}

/// Waits until the outcome of the charge is unknown and has settled.
async fn until_unknown(proxy: &Proxy, token: u64) {
    eventually("it has settled", async || {
        let outcome = proxy.send(charge(token)).await;
        (outcome.outcome() == Some("operation-unknown")).then_some(())
    })
    .await;
}

#[track_caller]
fn assert_replayed(answer: &Answer, body: &str) {
    let replayed = answer.header("idempotency-replayed");
    assert_eq!(replayed, Some("true"), "{answer:?}");
    let found = (answer.outcome(), &*answer.text());
    assert_eq!(found, (Some("replayed"), body));
}

over_both_stores! {
    async fn the_next_holder_gets_the_answer_that_is_on_record(store: Store) {
        let (upstream, mut proxy) = remembering(&store, REMEMBERS).await;
        let fields = "Content-Type: application/json\r\nLocation: /charges/1\r\nX-Other: 1\r\n";
        upstream.next([Step::answer("201 Created", fields, "{\"id\":1}")]);
        let first = proxy.send(charge(41)).await;
        assert_eq!((first.status(), first.header("idempotency-replayed")), (201, None));
        for token in [41, 42, 42] {
            let again = proxy.send(charge(token)).await;
            assert_eq!(again.status(), 201);
            assert_replayed(&again, "{\"id\":1}");
            assert_eq!(again.header("location"), Some("/charges/1"));
            assert_eq!(again.header("content-type"), Some("application/json"));
            assert_eq!(again.header("x-other"), None);
        }
        assert_eq!(upstream.count(), 1);
        // A stale token gets nothing of it.
        proxy.stale(charge(41)).await;
        // Nor does another request under the same name.
        let mismatch = charge_of(42, "charge-7", "pay 11");
        proxy.refuse(mismatch, 422, "operation-mismatch").await;
        // Another operation, another resource, and a request that changes nothing are not meant.
        proxy.forward(charge_of(42, "charge-8", "pay 10")).await;
        let elsewhere = post("/orders/8").token(5).header("X-Fencing-Operation", "charge-7");
        proxy.forward(elsewhere.body("pay 10")).await;
        proxy.forward(get("/orders/7").token(42)).await;
        assert_eq!(upstream.count(), 4);
        // The record outlives the process.
        proxy.stop().await;
        let config = Config::new(&upstream, &store).route(REMEMBERS);
        let proxy = Proxy::start(&config).await;
        assert_replayed(&proxy.send(charge(43)).await, "{\"id\":1}");
        assert_eq!(upstream.count(), 4);
    }

    async fn an_outcome_that_nobody_knows_is_refused_until_somebody_does(store: Store) {
        let (upstream, proxy) = remembering(&store, REMEMBERS).await;
        upstream.next([Step::Reset]);
        proxy.refuse(charge(41), 502, "outcome-unknown").await;
        // It may still be in flight, then it has settled. The same for the next holder, who waits.
        let again = proxy.send(charge(41)).await;
        assert!(again.retry_after().is_some() || again.outcome() == Some("operation-unknown"), "{again:?}");
        until_unknown(&proxy, 41).await;
        for token in [41, 42] {
            proxy.refuse(charge(token), 409, "operation-unknown").await;
        }
        assert_eq!(upstream.count(), 1);
    }

    async fn where_the_upstream_knows_keys_it_is_sent_again_under_the_same(store: Store) {
        let route = "{ outcome: { unknown: forward } }";
        let (upstream, proxy) = remembering(&store, route).await;
        upstream.next([Step::Reset]);
        proxy.refuse(charge(41), 502, "outcome-unknown").await;
        let answer = proxy.forward(charge(42)).await;
        assert_eq!(answer.header("idempotency-replayed"), None);
        let keys: Vec<_> = upstream.arrivals().iter()
            .map(|arrival| arrival.head.get("idempotency-key").map(str::to_owned)).collect();
        assert_eq!(keys.len(), 2);
        assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
        assert_eq!(proxy.send(charge(43)).await.header("idempotency-replayed"), Some("true"));
        assert_eq!(upstream.count(), 2);
    }

    async fn the_upstream_is_asked_about_an_outcome_that_nobody_knows(store: Store) {
        let route = "{ outcome: { body: 4KiB, look_up: { get: '/charges?op={resource}.{operation}', found: /data/0 } } }";
        let plain = "{ outcome: { body: 4KiB, look_up: { get: '/charges?op={resource}.{operation}' } } }";
        for (route, status, list, then) in [
            (route, "200 OK", "{\"data\":[{\"id\":1}]}", "replayed"),
            (route, "200 OK", "{\"data\":[]}", "sent"),
            (route, "404 Not Found", "", "unknown"),
            (route, "200 OK", "not JSON", "unknown"),
            (route, "503 Service Unavailable", "{\"data\":[]}", "unknown"),
            (plain, "404 Not Found", "", "sent"),
            (plain, "200 OK", "{}", "replayed"),
        ] {
            let (upstream, proxy) = remembering(&store, route).await;
            let operation = format!("pay {} {status} {list}", route.len());
            let order = |token| charge_of(token, &operation, "pay 10").header("Authorization", "Bearer x");
            upstream.next([Step::Reset]);
            let first = proxy.token("order:7").await.map_or(41, |mark| mark + 1);
            proxy.refuse(order(first), 502, "outcome-unknown").await;
            let is_look_up = |head: &Head| head.start.contains("/charges?op=order%3A7.pay%20");
            upstream.when(is_look_up, [Step::answer(status, "Content-Type: application/json\r\n", list)]);
            let answer = proxy.send(order(first + 1)).await;
            let arrivals = upstream.arrivals();
            assert_eq!((arrivals[1].method(), arrivals[1].text()), ("GET", String::new()));
            assert_eq!(arrivals[1].head.get("authorization"), Some("Bearer x"));
            assert_eq!(arrivals[1].head.get("idempotency-key"), None);
            match then {
                "replayed" => assert_replayed(&answer, list),
                "sent" => assert_eq!((answer.status(), arrivals.len()), (200, 3)),
                _ => drop(answer.assert_problem(409, "operation-unknown")),
            }
            // Asked once: what was learned is on record.
            if then != "unknown" {
                let again = proxy.send(order(first + 2)).await;
                assert_eq!(again.header("idempotency-replayed"), Some("true"));
                assert_eq!(upstream.count(), arrivals.len());
            }
        }
    }

    async fn what_was_not_done_can_be_done(store: Store) {
        let (upstream, proxy) = remembering(&store, REMEMBERS).await;
        // The last one is an outcome. 508: a loop that leads back to the proxy.
        for status in [429, 508, 422] {
            upstream.next([Step::answer(&format!("{status} No"), "", "no such account")]);
            assert_eq!(proxy.send(charge(41)).await.status(), status);
        }
        assert_replayed(&proxy.send(charge(42)).await, "no such account");
        assert_eq!(upstream.count(), 3);
    }

    async fn a_request_names_its_operation(store: Store) {
        let (upstream, proxy) = remembering(&store, "{ outcome: {}, body: { buffer: 1KiB } }").await;
        let bad = [
            post("/orders/7").token(41).body("pay 10"),
            charge_of(41, "", "pay 10"),
            charge_of(41, &"x".repeat(256), "pay 10"),
            charge(41).header("X-Fencing-Operation", "other"),
            charge(41).header("Content-Type", "application/grpc"),
        ];
        for request in bad {
            proxy.refuse(request, 400, "ambiguous-request").await;
        }
        let long = charge_of(41, "charge-7", &"x".repeat(2000));
        proxy.refuse(long, 413, "content-too-large").await;
        assert_eq!(upstream.count(), 0);
        // No body is kept, unless that is said.
        upstream.next([Step::answer("200 OK", "Content-Type: text/plain\r\n", "secret")]);
        proxy.forward(charge(41)).await;
        let again = proxy.send(charge(42)).await;
        assert_replayed(&again, "");
        assert_eq!(again.header("content-type"), None);
        let digest = "sha-256=:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=:";
        assert_eq!(again.header("x-fencing-body-digest"), Some(digest));
        // An answer without content has none to keep.
        upstream.next([Step::raw("HTTP/1.1 204 No Content\r\n\r\n")]);
        let emptied = || charge_of(42, "empty", "");
        assert_eq!(proxy.send(emptied()).await.status(), 204);
        let again = proxy.send(emptied()).await;
        assert_eq!((again.status(), again.header("x-fencing-body-digest")), (204, None));
        assert_eq!(upstream.count(), 2);
    }

    async fn the_second_of_two_at_once_is_told_to_wait(store: Store) {
        let (upstream, proxy) = remembering(&store, REMEMBERS).await;
        let gate = upstream.hold_next();
        let first = proxy.start_request(charge(41));
        upstream.reached(1).await;
        let second = proxy.send(charge(41)).await;
        second.assert_problem(409, "operation-under-way");
        assert_eq!(second.retry_after(), Some(1));
        gate.open();
        first.await.expect("an answer").assert_forwarded();
        assert_replayed(&proxy.send(charge(41)).await, "done\n");
        assert_eq!(upstream.count(), 1);
    }

    async fn an_operation_that_was_not_sent_can_be_sent(store: Store) {
        let nowhere = Config::to("http://127.0.0.1:9", &store).route(REMEMBERS);
        let mut proxy = Proxy::start(&nowhere).await;
        proxy.refuse(charge(41), 502, "upstream-unreachable").await;
        proxy.stop().await;
        let (upstream, proxy) = remembering(&store, REMEMBERS).await;
        proxy.forward(charge(41)).await;
        assert_eq!(upstream.count(), 1);
    }
}

/// The upstream would read another path.
#[tokio::test]
async fn a_name_that_changes_the_path_of_the_look_up_is_not_asked_about() {
    let route = "{ outcome: { look_up: { get: '/charges/{operation}' } } }";
    let (upstream, proxy) = remembering(&Store::sqlite(), route).await;
    let names = ["..", "../orders/7", ".", "a/b", "a.b_c~d-e"];
    for (token, name) in (41..).step_by(2).zip(names) {
        upstream.next([Step::Reset]);
        let charge = |token| charge_of(token, name, "x");
        proxy.refuse(charge(token), 502, "outcome-unknown").await;
        let again = proxy.send(charge(token + 1)).await;
        if name != names[4] {
            again.assert_problem(409, "operation-unknown");
        }
    }
    // Each was sent once; behind the last one comes its look-up.
    let arrived = upstream.arrivals();
    assert_eq!(arrived[names.len()].target(), "/charges/a.b_c~d-e");
}

/// Two proxies on one Postgres whose route remembers outcomes.
async fn pair(more: &str) -> Option<Pair> {
    let routes =
        "routes: [{ path: '/orders/{id}', resource: 'order:{id}', outcome: { body: 4KiB } }]";
    Pair::mortal_a(&format!("{{ {routes}, {more} }}")).await
}

#[tokio::test]
async fn what_a_proxy_had_in_flight_when_it_died_is_not_sent_again() {
    let short = "store: { lease: 2s }, barrier: { settle: 500ms, wait: 100ms }, upstream: { undelivered: 1s, timeout: 20s }";
    let mut pair = or_return!(pair(short).await);
    pair.upstream.hold_next();
    let _lost = pair.a.start_request(charge(41));
    pair.upstream.reached(1).await;
    pair.a.kill9();
    // The same token, as the same holder may send it: the instance has to settle.
    let b = &pair.b;
    b.refuse(charge(41), 409, "operation-under-way").await;
    until_unknown(b, 41).await;
    b.refuse(charge(42), 409, "operation-unknown").await;
    assert_eq!(pair.upstream.count(), 1);
}

#[tokio::test]
async fn an_operation_whose_record_got_no_answer_can_be_sent() {
    for point in around(Statement::BeginOperation) {
        let pair = or_return!(pair("").await);
        let (a, b, way_of_a, upstream, store) = pair.parts();
        let trap = way_of_a.cut(point);
        a.refuse(charge(41), 503, "store-unavailable").await;
        trap.sprung().await;
        store.until("SELECT count(*) FROM operations", 0).await;
        b.forward(charge(42)).await;
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn an_answer_whose_record_got_no_answer_is_on_record() {
    for point in around(Statement::KnowOperation) {
        let pair = or_return!(pair("").await);
        let (a, b, way_of_a, upstream, _) = pair.parts();
        let trap = way_of_a.cut(point);
        a.forward(charge(41)).await;
        trap.sprung().await;
        assert_replayed(&b.send(charge(42)).await, "done\n");
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn the_next_holder_waits_until_the_answer_is_on_record() {
    let pair = or_return!(pair("barrier: { wait: 25s, grace: 25s }").await);
    let (a, b, way_of_a, upstream, _) = pair.parts();
    let held = way_of_a.hold(Point::Before(Statement::KnowOperation));
    let first = a.start_request(charge(41));
    held.sprung().await;
    let mut second = b.start_request(charge(42));
    b.waiting("order:7", 1).await;
    let early = tokio::time::timeout(Duration::from_secs(1), &mut second).await;
    assert!(early.is_err(), "{early:?}");
    drop(held);
    first.await.expect("an answer").assert_forwarded();
    assert_replayed(&second.await.expect("an answer"), "done\n");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_operation_along() {
    let pair = or_return!(pair("").await);
    let (a, b, way_of_a, upstream, store) = pair.parts();
    let held = way_of_a.hold(Point::After(Statement::BeginOperation));
    let leaves = a.begin(&charge(41), b"pay 10").await;
    held.sprung().await;
    drop(leaves);
    eventually("the proxy to notice", async || {
        let requests = a.ask("/v1/requests").await.text();
        (!requests.contains("order:7")).then_some(())
    })
    .await;
    drop(held);
    store.until("SELECT count(*) FROM operations", 0).await;
    b.forward(charge(42)).await;
    assert_eq!(upstream.count(), 1);
    // One that leaves while its operation is under way misses the answer; the next holder has it.
    let gate = upstream.hold_next();
    let leaves = a.begin(&charge_of(43, "second", "x"), b"x").await;
    upstream.reached(2).await;
    drop(leaves);
    gate.open();
    assert_replayed(&b.send(charge_of(44, "second", "x")).await, "done\n");
}
