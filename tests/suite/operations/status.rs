//! What waits, what is unknown, and with whom: the lists that the person on call reads, and
//! `fencepost status`, which prints them.

use serde_json::{Value, json};

use super::commands::marks;
use crate::support::{
    Config, Proxy, Step, Store, Upstream, all_forwarded, eventually, fenced, or_return,
    over_both_stores, put,
};

/// What `fencepost status` prints about this proxy.
pub async fn status(proxy: &Proxy, arguments: &[&str]) -> String {
    let (good, said) = proxy.run_admin(&[&["status"], arguments].concat()).await;
    assert!(good, "{said}");
    said
}

over_both_stores! {
    async fn what_is_stuck_is_listed(store: Store) {
        let more = "barrier: { wait: 60s, grace: 60s, settle: 300s }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        // 41 of order:7 is at the upstream, and 42 waits for it. The answer of order:8 never came.
        let (older, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let newer = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        upstream.on_token(5, [Step::Close]);
        proxy.refuse(put("/orders/8").token(5), 502, "outcome-unknown").await;

        let waiting = proxy.ask("/v1/waiting").await.json();
        assert_eq!(waiting["waiting"].as_array().map(Vec::len), Some(1), "{waiting}");
        let busy = &waiting["waiting"][0];
        let busy = json!([busy["resource"], busy["waiting"], busy["in_flight"]]);
        assert_eq!(busy, json!(["order:7", 1, 1]));
        let unknown = proxy.ask("/v1/unknown").await.json();
        let open = &unknown["open"][0];
        assert_eq!(json!([open["resource"], open["unknown"][0]["token"]]), json!(["order:8", "5"]));
        assert_eq!(unknown["unknown"][0]["resource"], "order:8");
        let about = proxy.ask("/v1/status").await.json();
        let counts = ["in_flight", "waiting", "unknown", "ready"].map(|name| &about[name]);
        assert_eq!(json!(counts), json!([1, 1, 1, true]));
        assert_eq!(about["routes"][0]["mode"], "enforce");
        assert_eq!(about["instance"], proxy.ask("/readyz").await.json()["instance"]);
        let kind = if store.is_shared() { "postgres" } else { "sqlite" };
        assert_eq!(about["store_kind"], kind);

        let said = status(&proxy, &[]).await;
        for part in ["Waiting for older requests", "order:7", "Unknown outcomes", "order:8", "enforce"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let json: Value = serde_json::from_str(&status(&proxy, &["--json"]).await).expect("JSON");
        assert_eq!(json["waiting"], waiting);
        // Who is refused, and where.
        proxy.send(put("/orders/9").token(50)).await.assert_forwarded();
        for _ in 0..3 {
            let stale = put("/orders/9").token(41).header("User-Agent", "nightly/1.2");
            proxy.stale(stale).await;
        }
        let said = status(&proxy, &[]).await;
        let row = said.lines().find(|line| line.starts_with("order:9 ")).unwrap_or_else(|| panic!("{said}"));
        let row = row.split_whitespace().collect::<Vec<_>>();
        assert_eq!((row[1], &row[3..]), ("3", &["stale-token", "41", "50", "127.0.0.1", "nightly/1.2"][..]));

        gate.open();
        all_forwarded([older, newer]).await;
        let resolved = open["unknown"][0]["id"].as_str().expect("a name").to_owned();
        let resolve = ["resolve", "order:8", &resolved, "--reason", "seen"];
        let lower = ["override", "order:8", "1", "--reason", "no"];
        assert!(!marks(&proxy, &lower).await.0, "it is unknown");
        let (good, said) = marks(&proxy, &resolve).await;
        assert!(good, "{said}");
        assert!(!marks(&proxy, &resolve).await.0, "once");
        eventually("nothing is stuck", || async {
            let about = proxy.ask("/v1/status").await.json();
            (about["waiting"] == 0 && about["unknown"] == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let (upstream, proxy) = fenced("barrier: { settle: 300s }").await;
    for order in 1..=3 {
        upstream.next([Step::Close]);
        let lost = put(&format!("/orders/{order}")).token(1);
        proxy.refuse(lost, 502, "outcome-unknown").await;
    }
    let page = async |query: &str| {
        let list = proxy.ask(&format!("/v1/unknown?{query}")).await.json();
        let open = list["open"].as_array().expect("a list").iter();
        let resources: Vec<_> = open.map(|busy| busy["resource"].clone()).collect();
        json!([resources, list["next"]])
    };
    let first = json!([["order:1", "order:2"], "order:2"]);
    assert_eq!(page("limit=2").await, first);
    let last = json!([["order:3"], null]);
    assert_eq!(page("limit=2&after=order:2").await, last);
    for wrong in ["/v1/waiting?limit=0", "/v1/waiting?afterr=x"] {
        let answer = proxy.ask(wrong).await;
        answer.assert_admin_problem(400, "malformed-request");
    }
}

#[tokio::test]
async fn the_instances_of_a_namespace_see_each_other() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store);
    let (one, mut other) = (Proxy::start(&config).await, Proxy::start(&config).await);
    let name = other.ask("/readyz").await.json()["instance"].clone();
    let seen = async |state: &str| {
        let list = one.ask("/v1/instances").await.json();
        let all = list["instances"].as_array().expect("a list").clone();
        assert_eq!(all[0]["state"], "this", "{list}");
        all.into_iter()
            .find(|instance| instance["id"] == name && instance["state"] == state)
    };
    eventually("the other is alive", || async { seen("alive").await }).await;
    other.kill9();
    let dead = eventually("the other is dead", || async { seen("dead").await }).await;
    assert!(dead["settles_in_seconds"].is_number(), "{dead}");
}

#[tokio::test]
async fn the_configuration_is_shown() {
    let (upstream, proxy) = fenced("{}").await;
    let shown = proxy.ask("/v1/config").await.json();
    let path = &shown["config"]["routes"][0]["path"];
    assert_eq!(path, "/orders/{id}", "{shown}");
    assert_eq!(shown["config"]["upstream"]["url"], upstream.url());
    assert_eq!(shown["kept"], Value::Array(Vec::new()));
}
