//! The worst minute of the person on call: what is stuck, where, since when, from whom, and when it
//! ends; what failed, and why; and nothing that hides the rest.

use serde_json::{Value, json};

use super::hooks::health;
use super::status::status;
use crate::support::postgres::Cluster;
use crate::support::store::has_postgres;
use crate::support::{
    Config, Gate, Proxy, Step, Store, all_forwarded, eventually, fenced, get, joined,
    over_both_stores, post, put, return_unless,
};

/// The request in progress with this token, once it waits for this.
async fn in_progress(proxy: &Proxy, token: u64, waits_for: &str) -> Value {
    eventually(&format!("{token} to wait for: {waits_for}"), || async {
        let list = proxy.ask("/v1/requests").await.json();
        let list = list["requests"].as_array().expect("a list").clone();
        let token = token.to_string();
        let is_it = |one: &Value| one["token"] == *token && one["waits_for"] == waits_for;
        list.into_iter().find(is_it)
    })
    .await
}

fn seconds(request: &Value, name: &str) -> f64 {
    request[name]
        .as_f64()
        .unwrap_or_else(|| panic!("no {name}: {request}"))
}

over_both_stores! {
    async fn a_hung_upstream_shows_its_request_and_who_waits_for_it(store: Store) {
        let more = "{ barrier: { wait: 80s, grace: 60s }, upstream: { timeout: 300s } }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        let none = proxy.ask("/v1/requests").await.json();
        assert_eq!(none, json!({ "requests": [], "total": 0 }));

        let hung = put("/orders/7").token(41).header("X-Request-Id", "nightly-1");
        let (older, gate) = proxy.held(&upstream, hung).await;
        let alone = in_progress(&proxy, 41, "upstream").await;
        for (name, value) in [
            ("method", "PUT"), ("path", "/orders/7"), ("route", "/orders/{id}"), ("resource", "order:7"),
            ("client", "127.0.0.1"), ("request_id", "nightly-1"),
        ] {
            assert_eq!(alone[name], value, "{alone}");
        }
        let ends = seconds(&alone, "ends_in_seconds");
        assert!(ends > 200.0 && ends <= 300.0, "upstream.timeout: {alone}");

        // The newer one says what it waits for, and until when. The older one ends earlier for it.
        let newer = proxy.start_request(put("/orders/7").token(42));
        let waits = in_progress(&proxy, 42, "older-in-flight").await;
        assert_eq!(waits["older"], json!(["41"]), "{waits}");
        let ends = seconds(&waits, "ends_in_seconds");
        assert!(ends > 40.0 && ends <= 80.0, "barrier.wait: {waits}");
        let cut = eventually("the older one to be cut earlier", || async {
            let one = in_progress(&proxy, 41, "upstream").await;
            (seconds(&one, "ends_in_seconds") <= 60.0).then_some(one)
        }).await;
        assert!(seconds(&cut, "ends_in_seconds") > 20.0, "barrier.grace: {cut}");
        assert!(seconds(&cut, "age_seconds") > 0.0, "{cut}");

        // The oldest comes first, in as many as are asked for.
        let one = proxy.ask("/v1/requests?limit=1").await.json();
        assert_eq!((&one["requests"][0]["token"], &one["total"]), (&"41".into(), &2.into()));
        let said = status(&proxy, &[]).await;
        let table = said.split_once("Oldest requests in progress, of 2\n").unwrap_or_else(|| panic!("{said}")).1;
        let rows: Vec<Vec<_>> = table.lines().skip(1).take(2).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!((rows[0][1], &rows[0][3..]), ("upstream", &["-", "PUT", "/orders/{id}", "order:7", "41", "127.0.0.1", "nightly-1"][..]));
        assert_eq!((rows[1][1], &rows[1][3..5]), ("older-in-flight", &["41", "PUT"][..]));

        gate.open();
        all_forwarded([older, newer]).await;
        eventually("the list to be empty", || async {
            (proxy.ask("/v1/requests").await.json()["total"] == 0).then_some(())
        }).await;
        for wrong in ["/v1/requests?limit=0", "/v1/requests?limits=1"] {
            assert_eq!(proxy.ask(wrong).await.status(), 400, "{wrong}");
        }
    }
}

/// A request whose client has left is at the upstream nevertheless.
#[tokio::test]
async fn every_stage_has_its_word() {
    let (upstream, proxy) = fenced("claim: { path: /claim }").await;
    let ends_in = async |token: u64, stage: &'static str| {
        let one = in_progress(&proxy, token, stage).await;
        one["ends_in_seconds"].as_f64()
    };
    // The client has sent half of its body.
    let part = put("/orders/1").token(1).header("Content-Length", "4");
    let mut exchange = proxy.begin(&part, b"ab").await;
    assert!(ends_in(1, "body").await > Some(0.0), "body.timeout");
    exchange.wire.send(b"cd").await.expect("a live connection");
    exchange.finish().await.assert_forwarded();

    // The client has sent a part of a body that is forwarded as it comes.
    let put_8 = put("/orders/8").token(8);
    let gate = upstream.hold(&put_8);
    let part = put_8.header("Content-Length", "3000000");
    let mut exchange = proxy.begin(&part, &vec![b'a'; 2_000_000]).await;
    eventually("the body to have no end", || async {
        ends_in(8, "body").await.is_none().then_some(())
    })
    .await;
    let rest = vec![b'a'; 1_000_000];
    exchange.wire.send(&rest).await.expect("a live connection");
    assert!(ends_in(8, "upstream").await > Some(0.0));
    gate.open();
    exchange.finish().await.assert_forwarded();

    // The upstream has sent half of its response.
    let gate = Gate::shut();
    let half = Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
    upstream.on_token(2, [half, Step::Wait(gate.clone()), Step::raw("cd")]);
    let exchange = proxy.begin(&put("/orders/2").token(2), b"").await;
    assert_eq!(ends_in(2, "response").await, None);

    // A claim waits for it.
    let claim = post("/claim").token(3);
    let claim = claim.header("X-Fencing-Resource", "order:2");
    let claim = proxy.start_request(claim);
    let waits = in_progress(&proxy, 3, "older-in-flight").await;
    let waits = json!([waits["route"], waits["older"]]);
    assert_eq!(waits, json!(["claim", ["2"]]));
    // The client leaves.
    drop(exchange);
    in_progress(&proxy, 2, "response").await;
    gate.open();
    assert_eq!(joined(claim).await.status(), 204);

    // A read without a token is at the upstream too.
    let gate = upstream.hold_next();
    let read = proxy.start_request(get("/orders/9"));
    let one = eventually("the read to be listed", || async {
        let list = proxy.ask("/v1/requests").await.json();
        (list["total"] == 1).then(|| list["requests"][0].clone())
    })
    .await;
    let one = json!([one["waits_for"], one["resource"]]);
    assert_eq!(one, json!(["upstream", null]));
    gate.open();
    joined(read).await.assert_forwarded();
}

#[tokio::test]
async fn one_client_pushes_no_refusal_out() {
    let (_upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(9)).await;
    proxy.stale(put("/orders/7").token(8)).await;
    for number in 0..300 {
        let missing = put(&format!("/orders/{number}"));
        proxy.refuse(missing, 428, "token-required").await;
    }
    let list = proxy.ask("/v1/rejections").await.json();
    let told = list["rejections"].as_array().expect("a list").iter();
    let told: Value = told
        .map(|one| json!([one["outcome"], one["times"]]))
        .collect();
    assert_eq!(told, json!([["token-required", 300], ["stale-token", 1]]));
    let many = &list["rejections"][0];
    assert_eq!(many["path"], "/orders/299", "the latest is described");
    assert!(many["first_at"].as_str() < many["at"].as_str(), "{many}");
    // All of them count.
    let said = status(&proxy, &[]).await;
    let (_, latest) = said.split_once("Latest refusals\n").expect("a table");
    let rows = latest.lines().skip(1).take_while(|line| !line.is_empty());
    let times = rows.filter_map(|line| line.split_whitespace().nth(1));
    assert!(times.eq(["300", "1"]), "{said}");
    let row = ["token-required", "300", "300"];
    let is_it = |line: &str| line.split_whitespace().eq(row);
    let counted = said.lines().any(is_it);
    assert!(counted, "in the last minute, and since the start: {said}");
}

#[tokio::test]
async fn a_token_source_that_begins_again_is_named() {
    let (_upstream, proxy) = fenced("{}").await;
    let hints = async || proxy.ask("/v1/status").await.json()["hints"].clone();
    for order in 1..=5 {
        let path = format!("/orders/{order}");
        proxy.forward(put(&path).token(8_000 + order)).await;
        assert_eq!(hints().await, json!([]), "{order}");
        proxy.stale(put(&path).token(order)).await;
    }
    let hints = hints().await;
    let hint = hints[0].as_str().expect("a hint");
    for part in ["on 5 resources", "is 8005"] {
        assert!(hint.contains(part), "{hint}");
    }
    let said = status(&proxy, &[]).await;
    let words = "may count from the beginning again";
    assert!(said.contains(words), "{said}");
}

#[tokio::test]
async fn a_failed_reload_is_told_with_its_first_error() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), "{}").await;
    let failed = async || {
        let status = proxy.ask("/v1/status").await.json();
        let at = status["reload_failed"].as_str().map(str::to_owned);
        at.map(|at| (at, status["reload_error"].as_str().expect("why").to_owned()))
    };
    assert_eq!(failed().await, None);
    let two_errors = "{ stale_status: 418, log: { format: tabular } }";
    let other_keys = config.clone().route("resource: 'other:{id}'");
    let wrong = config.clone().with(two_errors);
    for (bad, words, not) in [
        (wrong, "log.format", "stale_status"),
        (other_keys, "/orders/{id}", "log.format"),
    ] {
        proxy.reload(&bad);
        let (at, why) = eventually("the failure to show", || async {
            failed().await.filter(|(_, why)| why.contains(words))
        })
        .await;
        assert!(!why.contains('\n'), "{why}");
        assert!(at.starts_with("20") && !why.contains(not), "{at}: {why}");
        let said = status(&proxy, &[]).await;
        let told = said.contains("reload error") && said.contains(words);
        assert!(told, "{said}");
    }
    proxy.reload(&config);
    eventually("the error to go", || async {
        failed().await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_store_that_is_away_is_told_with_the_reason() {
    // It was never reached.
    let away = "store: { url: 'postgres://u:pass%3Fw@127.0.0.1:9/d', namespace: a }";
    let proxy =
        Proxy::start_unready(&Config::to("http://127.0.0.1:9", &Store::sqlite()).with(away)).await;
    let ready = eventually("the reason", || async {
        let ready = proxy.ask("/readyz").await.json();
        ready["store_error"].is_string().then_some(ready)
    })
    .await;
    let states = json!([ready["state"], ready["store"], ready["ready"]]);
    assert_eq!(states, json!(["alive", "unknown", false]));
    let why = ready["store_error"].as_str().expect("a reason");
    assert!(why.contains("refused") && !why.contains("pass"), "{why}");
    let shown = proxy.ask("/v1/config").await.text();
    assert!(shown.contains("postgres://…"), "{shown}");
    assert!(!shown.contains("pass%3Fw"), "{shown}");
    // A caller is not told of a lease that there never was.
    let first = put("/orders/7").token(1);
    let problem = proxy.refuse(first, 503, "store-unavailable").await;
    let detail = problem["detail"].to_string();
    assert!(detail.contains("has not been reached"), "{detail}");
    assert!(!detail.contains("lapsed"), "{detail}");
    let said = status(&proxy, &[]).await;
    assert!(said.contains(why), "{said}");
    let admin = proxy.admin().to_string();
    let (code, _, said) = health(&admin, &[]).await;
    assert_eq!(code, Some(1));
    let not_ready = "alive, not ready: the store has not been reached";
    let told = said.starts_with(not_ready) && said.contains("refused");
    assert!(told, "{said}");
    assert_eq!(health(&admin, &["live"]).await.1, "alive");

    // It was, and is down now.
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let store = Store::on(&cluster).await;
    let more = "{ store: { timeout: 1s, lease: 6s }, upstream: { timeout: 300s } }";
    let (upstream, proxy) = Proxy::before(&store, more).await;
    assert_eq!(proxy.ask("/readyz").await.json()["state"], "ready");
    let (_hung, _gate) = proxy.held(&upstream, put("/orders/7").token(7)).await;
    assert!(seconds(&in_progress(&proxy, 7, "upstream").await, "ends_in_seconds") > 100.0);
    cluster.stop();
    let (code, said, _) = eventually("health to tell", || async {
        let told = health(&proxy.admin().to_string(), &[]).await;
        (told.1 != "ready").then_some(told)
    })
    .await;
    // The probe of the orchestrator does not follow the store.
    assert_eq!(code, Some(0), "{said}");
    let down = "alive: the store is down, and fenced requests are refused";
    assert!(said.starts_with(down), "{said}");
    let ready = proxy.ask("/readyz").await;
    assert_eq!(ready.status(), 200);
    assert_eq!(ready.json()["state"], "alive");
    let said = status(&proxy, &[]).await;
    let alive = |line: &str| line.split_whitespace().eq(["state", "alive"]);
    let told = said.contains("store error") && said.lines().any(alive);
    assert!(told, "{said}");
    // Once the lease has lapsed, what is at the upstream will be cut, long before upstream.timeout.
    eventually("the cut to be announced", || async {
        let hung = in_progress(&proxy, 7, "upstream").await;
        (seconds(&hung, "ends_in_seconds") <= 20.0).then_some(())
    })
    .await;
}
