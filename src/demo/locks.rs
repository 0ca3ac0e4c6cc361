//! A lock service with leases, over HTTP, as etcd, Consul or Redis with a counter would be one:
//! every grant comes with a number that is larger than that of the grant before.
//!
//! `POST /locks/order-7` with `{"owner": "A", "ttl_ms": 1200}` gets 201 and the token, or 409 while
//! the lock is held.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::http::{reply, serve};

/// The token of the first grant.
const FIRST_TOKEN: u64 = 41;

/// The lock service, running.
pub(super) struct LockService {
    pub url: String,
    leases: Leases,
}

/// The last lease of each lock. It stays after its end: the next token is counted from it. Short
/// sections, never across an await.
type Leases = Arc<Mutex<BTreeMap<String, Lease>>>;

struct Lease {
    owner: String,
    token: u64,
    ends: Instant,
}

#[derive(Deserialize)]
struct LockRequest {
    owner: String,
    ttl_ms: u32,
}

impl LockService {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let leases = Leases::default();
        let routes = Router::new().route("/locks/{name}", post(acquire));
        let url = serve(routes.with_state(Arc::clone(&leases))).await?;
        Ok(Self { url, leases })
    }

    /// Forgets every lease and every grant, so that each story starts with 41. A real lock service
    /// must never do that.
    pub(super) fn reset(&self) {
        self.leases.lock().expect("not poisoned").clear();
    }
}

/// The body is JSON whatever its type: `curl -d` announces a form.
async fn acquire(
    State(leases): State<Leases>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, JsonRejection> {
    let Json(LockRequest { owner, ttl_ms }) = Json::from_bytes(&body)?;
    let now = Instant::now();
    let mut leases = leases.lock().expect("not poisoned");
    let last = leases.get(&name);
    if let Some(held) = last.filter(|lease| now < lease.ends) {
        let holder = json!({ "held_by": held.owner, "token": held.token.to_string() });
        return Ok(reply(StatusCode::CONFLICT, &holder));
    }
    let token = last.map_or(FIRST_TOKEN, |lease| lease.token + 1);
    let ends = now + Duration::from_millis(ttl_ms.into());
    leases.insert(name, Lease { owner, token, ends });
    let grant = json!({ "token": token.to_string() });
    Ok(reply(StatusCode::CREATED, &grant))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::*;
    use crate::demo::http::client;

    #[tokio::test(start_paused = true)]
    async fn a_lease_holds_until_it_ends_and_every_grant_has_a_larger_token() {
        let leases = Leases::default();
        let ask = async |name: &str, owner: &str| {
            let body = json!({ "owner": owner, "ttl_ms": 1000 }).to_string();
            let answer = acquire(State(Arc::clone(&leases)), Path(name.into()), body.into()).await;
            let answer = answer.expect("is JSON");
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
    async fn speaks_http() {
        let service = LockService::start().await.expect("starts");
        let url = format!("{}/locks/order-7", service.url);
        let ask = async |owner: &str| {
            let ask = json!({ "owner": owner, "ttl_ms": 60_000 });
            let answer = client().post(&url).json(&ask).send().await;
            answer.expect("answers").status()
        };
        assert_eq!(ask("A").await, 201);
        assert_eq!(ask("B").await, 409);
        service.reset();
        assert_eq!(ask("B").await, 201);
        let broken = client().post(&url).body("{").send().await;
        assert_eq!(broken.expect("answers").status(), 400);
    }
}
