//! The admin port over an instance whose store is in memory: the probes here, the rest by subject.

mod access;
pub(crate) mod fixture;
mod marks;
mod serving;

use std::time::Duration;

use axum::http::header;
use serde_json::json;

use self::fixture::Admin;
use super::*;

#[tokio::test]
async fn probes() {
    let admin = Admin::new().await;
    assert_eq!(admin.get("/livez").await.status, 200);
    let answer = admin.get("/readyz").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["ready"], false);
    assert_eq!(answer.json()["store"], "unknown");
    admin.rig.metrics().store_answered();
    admin.reach_store();
    let answer = admin.get("/readyz").await;
    assert_eq!(
        (answer.status, &answer.json()["store"]),
        (200, &json!("up"))
    );
    admin.state.readiness.draining.cancel();
    assert_eq!(admin.get("/readyz").await.status, 503);
    assert_eq!(admin.get("/livez").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_end_of_a_drain_hears_of_it() {
    let admin = Admin::new().await;
    let answer = admin.get("/drained").await;
    assert_eq!(
        (answer.status, &answer.json()["type"]),
        (503, &json!("urn:fencepost:problem:not-draining"))
    );
    let mut asked = std::pin::pin!(admin.get("/drained"));
    let a_while = std::time::Duration::from_secs(9);
    assert!(tokio::time::timeout(a_while, &mut asked).await.is_err());
    admin.state.readiness.draining.cancel();
    let an_hour = std::time::Duration::from_hours(1);
    assert!(
        tokio::time::timeout(an_hour, &mut asked).await.is_err(),
        "no other limit holds"
    );
    admin.state.readiness.drained.cancel();
    assert_eq!(asked.await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_scrape_refreshes_first() {
    let admin = Admin::new().await;
    for left in [5, 3] {
        let answer = admin.get("/metrics").await;
        assert_eq!(answer.headers[header::CONTENT_TYPE], Metrics::CONTENT_TYPE);
        let gauge = format!("\nfencepost_lease_remaining_seconds {left}\n");
        assert!(answer.text.contains(&gauge), "{}", answer.text);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
}
