//! Operations whose outcome nobody knows, for the person on call: they are listed and counted, and an
//! operator says what came of them.

use serde_json::{Value, json};

use crate::support::{
    Answer, Config, Gate, Proxy, Request, Step, Upstream, eventually, over_both_stores, post,
};

const SETTLES: &str = "{ barrier: { settle: 300ms, grace: 100ms } }";

fn charge(token: u64, operation: &str) -> Request {
    let request = post("/orders/7").token(token).body("pay 10");
    request.header("X-Fencing-Operation", operation)
}

/// Sends these operations, whose answers never come, and waits until they have settled.
async fn lost(upstream: &Upstream, proxy: &Proxy, token: u64, operations: &[&str]) {
    for operation in operations {
        upstream.next([Step::Reset]);
        let request = charge(token, operation);
        proxy.refuse(request, 502, "outcome-unknown").await;
    }
    eventually("they have settled", async || {
        let list = listed(proxy).await;
        let settled = list.iter().filter(|one| one["settled"] == true).count();
        (settled == operations.len()).then_some(())
    })
    .await;
}

async fn listed(proxy: &Proxy) -> Vec<Value> {
    let list = proxy.ask("/v1/operations").await.json();
    list["operations"].as_array().expect("a list").clone()
}

async fn resolve(proxy: &Proxy, operation: &str, more: Value) -> Answer {
    let mut body = json!({ "resource": "order:7", "operation": operation, "reason": "seen" });
    let members = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(members);
    proxy.command("/v1/operations/resolve", &body).await
}

/// Runs `fencepost operations`, and says whether it was successful and what it printed.
async fn command(proxy: &Proxy, arguments: &[&str]) -> (bool, String) {
    let arguments = [&["operations"], arguments].concat();
    let (good, said) = proxy.run_admin(&arguments).await;
    (good, said.trim_end().to_owned())
}

over_both_stores! {
    async fn an_operator_says_what_came_of_an_operation(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with(SETTLES).route("{ outcome: {} }");
        let mut proxy = Proxy::start(&config).await;
        assert_eq!(listed(&proxy).await, [] as [Value; 0]);
        lost(&upstream, &proxy, 41, &["a", "b", "c"]).await;
        let list = listed(&proxy).await;
        let first = json!([list[0]["resource"], list[0]["operation"], list[0]["token"]]);
        assert_eq!(first, json!(["order:7", "a", "41"]));
        let instance = proxy.ask("/v1/status").await.json()["instance"].clone();
        assert_eq!(list[0]["instance"], instance);
        let page = proxy.ask("/v1/operations?prefix=order:&limit=2").await.json();
        assert_eq!((page["operations"].as_array().map(Vec::len), &page["more"]), (Some(2), &true.into()));
        let none = proxy.ask("/v1/operations?prefix=order:8").await.json();
        assert_eq!(none, json!({ "operations": [], "more": false }));

        // Done, with another status than 200; done, with 200; not done.
        let answer = resolve(&proxy, "a", json!({ "done": true, "status": 201, "actor": "eve" })).await;
        assert_eq!(answer.json(), json!({ "resource": "order:7", "operation": "a", "done": true, "status": 201 }));
        let reason = ["--reason", "the ledger has it"];
        let (good, said) = command(&proxy, &[&["resolve", "order:7", "b", "--done"][..], &reason].concat()).await;
        assert!(good && said == "order:7, b: its repetitions get 200", "{said}");
        let (good, said) = command(&proxy, &[&["resolve", "order:7", "c", "--not-done"][..], &reason].concat()).await;
        assert!(good && said == "order:7, c: the next request sends it", "{said}");
        for (operation, status) in [("a", 201), ("b", 200)] {
            let again = proxy.send(charge(42, operation)).await;
            assert_eq!((again.status(), &*again.text()), (status, ""));
            assert_eq!(again.header("idempotency-replayed"), Some("true"));
            assert_eq!(again.header("x-fencing-body-digest"), None);
        }
        let sent = proxy.forward(charge(42, "c")).await;
        assert_eq!(sent.header("idempotency-replayed"), None);
        assert_eq!(upstream.count(), 4);
        let mark = proxy.mark("order:7").await.expect("it has a mark");
        let audited: Value = mark["audit"].as_array().expect("a list").iter().rev()
            .map(|row| json!([row["action"], row["reason"], row["before"]])).collect();
        assert_eq!(audited, json!([
            ["resolve", "operation a: done, 201: seen", "41"],
            ["resolve", "operation b: done, 200: the ledger has it", "41"],
            ["resolve", "operation c: not done: the ledger has it", "41"],
        ]));
        assert!(mark["audit"][2]["actor"].as_str().is_some_and(|actor| actor.starts_with("eve (")));
        let (good, said) = command(&proxy, &["list"]).await;
        assert!(good && said == "no operation has an unknown outcome", "{said}");

        // An operation that is known, or was never asked for, has no outcome to state.
        for operation in ["a", "c", "d"] {
            let answer = resolve(&proxy, operation, json!({ "done": false })).await;
            answer.assert_admin_problem(404, "no-such-unknown");
        }
        for more in [
            json!({}), json!({ "done": "yes" }), json!({ "done": false, "status": 200 }),
            json!({ "done": true, "status": 199 }), json!({ "done": true, "status": 600 }),
            json!({ "done": true, "reason": " " }), json!({ "done": true, "operation": "" }),
            json!({ "done": true, "resource": "" }), json!({ "done": true, "id": "1" }),
        ] {
            resolve(&proxy, "a", more).await.assert_admin_problem(400, "malformed-request");
        }
        for query in ["limit=0", "limit=1001", "after=a", "prefix=%0a"] {
            let answer = proxy.ask(&format!("/v1/operations?{query}")).await;
            answer.assert_admin_problem(400, "malformed-request");
        }

        // A start counts what is left.
        lost(&upstream, &proxy, 42, &["e", "f"]).await;
        proxy.stop().await;
        let proxy = Proxy::start(&config).await;
        proxy.until_metric("fencepost_operations_unknown", &[], |count| count > 1.5).await;
        let status = proxy.ask("/v1/status").await.json();
        assert_eq!(status["operations_unknown"], 2);
        let left = listed(&proxy).await;
        let oldest = left.iter().filter_map(|one| one["since"].as_str()).min();
        assert_eq!(status["operations_unknown_since"].as_str(), oldest);
        let (good, said) = command(&proxy, &["list", "--limit", "1"]).await;
        assert!(good && said.contains("order:7") && said.ends_with("There are more: --limit, or --prefix"), "{said}");
    }

    async fn an_operation_that_may_be_in_flight_is_not_resolved(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with(SETTLES).route("{ outcome: {} }");
        let proxy = Proxy::start(&config).await;
        upstream.next([Step::Wait(Gate::shut()), Step::ok()]);
        let request = proxy.start_request(charge(41, "a"));
        upstream.reached(1).await;
        assert_eq!(listed(&proxy).await[0]["settled"], false);
        for done in [true, false] {
            let answer = resolve(&proxy, "a", json!({ "done": done })).await;
            answer.assert_admin_problem(409, "refused");
        }
        let (good, said) = command(&proxy, &["resolve", "order:7", "a", "--done", "--reason", "hope"]).await;
        assert!(!good && said.contains("may have the operation in flight"), "{said}");
        proxy.send(charge(41, "a")).await.assert_problem(409, "operation-under-way");
        request.abort();
    }
}
