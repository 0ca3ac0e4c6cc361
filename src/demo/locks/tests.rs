//! Tests of the demo's lock service: grants, expiry, and tokens that only grow.

use super::*;
use crate::demo::http_client::client;

const TTL: Duration = Duration::from_secs(1);

#[test]
fn a_lease_holds_until_it_ends_and_every_grant_has_a_larger_token() {
    let mut table = LockTable::default();
    let start = Instant::now();
    assert_eq!(table.acquire("x", "A", TTL, start), Ok(41));
    let held = table
        .acquire("x", "B", TTL, start + TTL / 2)
        .expect_err("A holds it");
    assert_eq!((held.owner.as_str(), held.token), ("A", 41));
    assert_eq!(table.acquire("x", "B", TTL, start + TTL), Ok(42));
    assert_eq!(
        table.acquire("y", "B", TTL, start),
        Ok(41),
        "another lock, another count"
    );
}

#[test]
fn renewing_extends_and_a_lost_lease_cannot_be_renewed_or_released() {
    let mut table = LockTable::default();
    let start = Instant::now();
    assert_eq!(table.acquire("x", "A", TTL, start), Ok(41));
    assert!(table.renew("x", "A", 41, start + TTL / 2));
    assert!(
        table.acquire("x", "B", TTL, start + TTL).is_err(),
        "A has renewed"
    );
    assert!(
        !table.renew("x", "A", 40, start + TTL),
        "an older token is no proof"
    );
    assert!(!table.renew("x", "A", 41, start + 2 * TTL), "ended");
    assert_eq!(table.acquire("x", "B", TTL, start + 2 * TTL), Ok(42));
    assert!(!table.release("x", "A", 41, start + 2 * TTL), "B's now");
    assert!(table.release("x", "B", 42, start + 2 * TTL));
    assert_eq!(
        table.acquire("x", "A", TTL, start + 2 * TTL),
        Ok(43),
        "counted on"
    );
}

#[tokio::test]
async fn speaks_http() {
    let service = LockService::start().await.expect("starts");
    let url = format!("{}/locks/order-7", service.url());
    let http = client();
    let ask = |owner: &str| {
        http.post(&url)
            .json(&json!({ "owner": owner, "ttl_ms": 60_000 }))
    };
    let first = ask("A").send().await.expect("answers");
    assert_eq!(first.status(), 201);
    let grant: Value = first.json().await.expect("is JSON");
    assert_eq!(grant, json!({ "token": "41", "ttl_ms": 60_000 }));
    let second = ask("B").send().await.expect("answers");
    assert_eq!(second.status(), 409);
    let seen: Value = http
        .get(&url)
        .send()
        .await
        .expect("answers")
        .json()
        .await
        .expect("JSON");
    assert_eq!(
        (&seen["held_by"], &seen["token"]),
        (&json!("A"), &json!("41"))
    );
    let mine = json!({ "owner": "A", "token": "41" });
    let renewed = http.put(&url).json(&mine).send().await.expect("answers");
    assert_eq!(renewed.status(), 200);
    let released = http.delete(&url).json(&mine).send().await.expect("answers");
    assert_eq!(released.status(), 200);
    let lost = http.put(&url).json(&mine).send().await.expect("answers");
    assert_eq!(lost.status(), 410);
    service.reset();
    let again: Value = ask("B")
        .send()
        .await
        .expect("answers")
        .json()
        .await
        .expect("is JSON");
    assert_eq!(again["token"], "41");
}
