//! Tests of the demo's servers: what they store, hold, grant and answer.

use http_body_util::BodyExt as _;

use super::*;

async fn get(servers: &Servers, path: &str) -> Value {
    let answer = client()
        .get(format!("{}{path}", servers.api))
        .send()
        .await
        .expect("answers");
    answer.json().await.expect("is JSON")
}

/// Sends what is not JSON. Returns the status of the answer.
async fn send_broken(url: &str) -> StatusCode {
    let request = client().post(url).body("{");
    let request = request.header("content-type", "application/json");
    request.send().await.expect("answers").status()
}

#[tokio::test]
async fn believes_every_charge_and_every_write() {
    let servers = Servers::start().await.expect("starts");
    let http = client();
    for by in ["A", "B"] {
        let charge = http
            .post(format!("{}/accounts/7/charge", servers.api))
            .json(&json!({ "amount": 30, "by": by }))
            .send()
            .await
            .expect("answers");
        assert_eq!(charge.status(), 201);
        let write = http
            .put(format!("{}/orders/7", servers.api))
            .json(&json!({ "status": "paid", "by": by }))
            .send()
            .await
            .expect("answers");
        assert_eq!(write.status(), 200);
    }
    let account = get(&servers, "/accounts/7").await;
    assert_eq!(account["balance"], 40);
    assert_eq!(account["ledger"].as_array().map(Vec::len), Some(2));
    assert_eq!(get(&servers, "/orders/7").await["by"], "B");

    servers.reset();
    assert_eq!(
        get(&servers, "/accounts/7").await["balance"],
        OPENING_BALANCE
    );
    assert_eq!(get(&servers, "/journal").await, json!([]));
}

#[tokio::test]
async fn a_held_request_takes_effect_after_one_that_came_later() {
    let servers = Servers::start().await.expect("starts");
    let hold = servers.hold("PUT /orders/8");
    let url = format!("{}/orders/8", servers.api);
    let first = tokio::spawn(client().put(&url).json(&json!({ "by": "A" })).send());
    hold.arrived.notified().await;
    let second = client()
        .put(&url)
        .json(&json!({ "by": "B" }))
        .send()
        .await
        .expect("answers");
    assert_eq!(second.status(), 200);
    assert_eq!(get(&servers, "/orders/8").await["by"], "B");
    hold.released.notify_one();
    assert_eq!(first.await.expect("runs").expect("answers").status(), 200);
    assert_eq!(get(&servers, "/orders/8").await["by"], "A");
    assert_eq!(
        get(&servers, "/journal").await,
        json!([
            "PUT /orders/8 by A: arrived",
            "PUT /orders/8 by B: arrived",
            "PUT /orders/8 by B: took effect",
            "PUT /orders/8 by A: took effect",
        ])
    );
}

#[tokio::test]
async fn refuses_what_it_cannot_read() {
    let servers = Servers::start().await.expect("starts");
    let url = format!("{}/accounts/7/charge", servers.api);
    assert_eq!(send_broken(&url).await, 400);
    let nowhere = client()
        .get(format!("{}/x", servers.api))
        .send()
        .await
        .expect("answers");
    assert_eq!(nowhere.status(), 404);
    assert_eq!(
        get(&servers, "/accounts/7").await["balance"],
        OPENING_BALANCE
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_holds_until_it_ends_and_every_grant_has_a_larger_token() {
    let books = SharedBooks::default();
    let ask = async |name: &str, owner: &str| {
        let owner = owner.to_owned();
        let ask = Json(LockRequest {
            owner,
            ttl_ms: 1000,
        });
        let answer = acquire(State(Arc::clone(&books)), Path(name.into()), ask).await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("a body");
        let body: Value = serde_json::from_slice(&body.to_bytes()).expect("is JSON");
        (status, body)
    };
    assert_eq!(ask("x", "A").await, (201, json!({ "token": "41" })));
    tokio::time::advance(Duration::from_millis(999)).await;
    let held = json!({ "held_by": "A", "token": "41" });
    assert_eq!(ask("x", "B").await, (409, held));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(ask("x", "B").await, (201, json!({ "token": "42" })));
    let other = ask("y", "B").await;
    assert_eq!(other.1["token"], "41", "another lock, another count");
}

#[tokio::test]
async fn the_lock_service_speaks_http() {
    let servers = Servers::start().await.expect("starts");
    let url = format!("{}/locks/order-7", servers.locks);
    let ask = async |owner: &str| {
        let ask = json!({ "owner": owner, "ttl_ms": 60_000 });
        let answer = client().post(&url).json(&ask).send().await;
        answer.expect("answers").status()
    };
    assert_eq!(ask("A").await, 201);
    assert_eq!(ask("B").await, 409);
    servers.reset();
    assert_eq!(ask("B").await, 201);
    assert_eq!(send_broken(&url).await, 400);
}

#[tokio::test]
async fn the_check_of_the_naive_proxy_is_right() {
    let servers = Servers::start().await.expect("starts");
    let proxy = start_naive(servers.api).await.expect("starts");
    let put = |token: Option<&'static str>| {
        let request = client().put(format!("{proxy}/orders/7"));
        let request = request.json(&json!({ "by": token }));
        match token {
            Some(token) => request.header("x-fencing-token", token).send(),
            None => request.send(),
        }
    };
    for (token, status) in [
        (Some("9"), 200),
        (Some("10"), 200),
        (Some("9"), 412),
        (Some("10"), 200),
        (None, 428),
    ] {
        let answer = put(token).await.expect("answers");
        assert_eq!(answer.status(), status, "{token:?}");
    }
}
