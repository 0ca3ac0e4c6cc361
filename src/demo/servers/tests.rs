//! Tests of the demo's servers: what they store, hold, grant and answer.

use super::*;

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
    let (charges, balance, text) = servers.account("/accounts/7");
    assert_eq!((charges, balance), (2, 40));
    assert_eq!(text, "balance 40 after 2 charges");
    assert_eq!(servers.order("/orders/7")["by"], "B");

    servers.reset();
    assert_eq!(servers.account("/accounts/7").1, OPENING_BALANCE);
    assert_eq!(servers.journal(), "");
}

#[tokio::test]
async fn a_held_request_takes_effect_after_one_that_came_later() {
    let servers = Servers::start().await.expect("starts");
    let hold = servers.hold();
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
    assert_eq!(servers.order("/orders/8")["by"], "B");
    hold.released.notify_one();
    assert_eq!(first.await.expect("runs").expect("answers").status(), 200);
    assert_eq!(servers.order("/orders/8")["by"], "A");
    assert_eq!(
        servers.journal(),
        "A: arrived, B: arrived, B: took effect, A: took effect"
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
    assert_eq!(servers.account("/accounts/7").1, OPENING_BALANCE);
}

#[tokio::test(start_paused = true)]
async fn a_lease_holds_until_it_ends_and_every_grant_has_a_larger_token() {
    let servers = Servers::start().await.expect("starts");
    assert_eq!(servers.acquire("A"), Ok(41));
    tokio::time::advance(LEASE.saturating_sub(Duration::from_millis(1))).await;
    assert_eq!(servers.acquire("B"), Err("A".to_owned()));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(servers.acquire("B"), Ok(42));
    servers.reset();
    assert_eq!(servers.acquire("B"), Ok(41));
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
