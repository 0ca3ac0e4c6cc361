//! Tests of the demo's upstream: what it stores, holds and answers.

use super::*;
use crate::demo::http::client;

async fn get(api: &Legacy, path: &str) -> Value {
    let answer = client()
        .get(format!("{}{path}", api.url))
        .send()
        .await
        .expect("answers");
    answer.json().await.expect("is JSON")
}

#[tokio::test]
async fn believes_every_charge_and_every_write() {
    let api = Legacy::start().await.expect("starts");
    let http = client();
    for by in ["A", "B"] {
        let charge = http
            .post(format!("{}/accounts/7/charge", api.url))
            .json(&json!({ "amount": 30, "by": by }))
            .send()
            .await
            .expect("answers");
        assert_eq!(charge.status(), 201);
        let write = http
            .put(format!("{}/orders/7", api.url))
            .json(&json!({ "status": "paid", "by": by }))
            .send()
            .await
            .expect("answers");
        assert_eq!(write.status(), 200);
    }
    let account = get(&api, "/accounts/7").await;
    assert_eq!(account["balance"], 40);
    assert_eq!(account["ledger"].as_array().map(Vec::len), Some(2));
    assert_eq!(get(&api, "/orders/7").await["by"], "B");

    api.reset();
    assert_eq!(get(&api, "/accounts/7").await["balance"], OPENING_BALANCE);
    assert_eq!(get(&api, "/journal").await, json!([]));
}

#[tokio::test]
async fn a_held_request_takes_effect_after_one_that_came_later() {
    let api = Legacy::start().await.expect("starts");
    let hold = api.hold("PUT /orders/8");
    let url = format!("{}/orders/8", api.url);
    let first = tokio::spawn(client().put(&url).json(&json!({ "by": "A" })).send());
    hold.arrived.notified().await;
    let second = client()
        .put(&url)
        .json(&json!({ "by": "B" }))
        .send()
        .await
        .expect("answers");
    assert_eq!(second.status(), 200);
    assert_eq!(get(&api, "/orders/8").await["by"], "B");
    hold.released.notify_one();
    assert_eq!(first.await.expect("runs").expect("answers").status(), 200);
    assert_eq!(get(&api, "/orders/8").await["by"], "A");
    assert_eq!(
        get(&api, "/journal").await,
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
    let api = Legacy::start().await.expect("starts");
    let url = format!("{}/accounts/7/charge", api.url);
    let broken = client().post(&url).body("{").send().await.expect("answers");
    assert_eq!(broken.status(), 400);
    let nowhere = client()
        .get(format!("{}/x", api.url))
        .send()
        .await
        .expect("answers");
    assert_eq!(nowhere.status(), 404);
    assert_eq!(get(&api, "/accounts/7").await["balance"], OPENING_BALANCE);
}
