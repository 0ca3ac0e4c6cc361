//! A lock service with leases, over HTTP, as etcd, Consul or Redis with a counter would be one:
//! every grant comes with a number that is larger than that of the grant before.
//!
//! `POST /locks/order-7` with `{"owner": "A", "ttl_ms": 1200}` gets 201 and the token, or 409 while
//! the lock is held.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use http::StatusCode;
use serde_json::json;
use tokio::time::Instant;

use super::http::{JsonBody, JsonReply, Server};

/// The token of the first grant.
const FIRST_TOKEN: u64 = 41;

/// The longest lease.
const LONGEST_TTL: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LockLease {
    owner: String,
    token: u64,
    ends: Instant,
}

/// The last lease of each lock. It stays after its end: the next token is counted from it.
#[derive(Default)]
struct LockTable(BTreeMap<String, LockLease>);

impl LockTable {
    /// A token, or the lease that stands in the way. Pure: the time is passed in.
    fn acquire(
        &mut self,
        name: &str,
        owner: &str,
        ttl: Duration,
        now: Instant,
    ) -> Result<u64, LockLease> {
        let token = match self.0.get(name) {
            Some(lease) if now < lease.ends => return Err(lease.clone()),
            Some(lease) => lease.token + 1,
            None => FIRST_TOKEN,
        };
        let lease = LockLease {
            owner: owner.to_owned(),
            token,
            ends: now + ttl,
        };
        self.0.insert(name.to_owned(), lease);
        Ok(token)
    }
}

/// The lock service, running.
pub struct LockService {
    server: Server,
    table: SharedLocks,
}

/// Short sections, never across an await.
type SharedLocks = Arc<Mutex<LockTable>>;

impl LockService {
    /// Starts it on a free loopback port.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start() -> anyhow::Result<Self> {
        let table = SharedLocks::default();
        let routes = Router::new()
            .route("/locks/{name}", post(acquire))
            .fallback(async || JsonReply::error(StatusCode::NOT_FOUND, "try /locks/NAME"))
            .with_state(Arc::clone(&table));
        let server = Server::start(routes).await?;
        Ok(Self { server, table })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Forgets every lease and every grant, so that each story starts with 41. A real lock service
    /// must never do that.
    pub fn reset(&self) {
        *lock(&self.table) = LockTable::default();
    }
}

fn lock(table: &Mutex<LockTable>) -> MutexGuard<'_, LockTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn acquire(
    State(table): State<SharedLocks>,
    Path(name): Path<String>,
    JsonBody(body): JsonBody,
) -> JsonReply {
    let Some(owner) = body["owner"].as_str() else {
        return JsonReply::error(StatusCode::BAD_REQUEST, "`owner` is missing");
    };
    let ttl = Duration::from_millis(body["ttl_ms"].as_u64().unwrap_or(10_000)).min(LONGEST_TTL);
    match lock(&table).acquire(&name, owner, ttl, Instant::now()) {
        Ok(token) => JsonReply(StatusCode::CREATED, json!({ "token": token.to_string() })),
        Err(lease) => {
            let holder = json!({ "held_by": lease.owner, "token": lease.token.to_string() });
            JsonReply(StatusCode::CONFLICT, holder)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::http_client::client;

    #[test]
    fn a_lease_holds_until_it_ends_and_every_grant_has_a_larger_token() {
        const TTL: Duration = Duration::from_secs(1);
        let mut table = LockTable::default();
        let start = Instant::now();
        assert_eq!(table.acquire("x", "A", TTL, start), Ok(41));
        let held = table
            .acquire("x", "B", TTL, start + TTL / 2)
            .expect_err("A holds it");
        assert_eq!((held.owner.as_str(), held.token), ("A", 41));
        assert_eq!(table.acquire("x", "B", TTL, start + TTL), Ok(42));
        let other = table.acquire("y", "B", TTL, start);
        assert_eq!(other, Ok(41), "another lock, another count");
    }

    #[tokio::test]
    async fn speaks_http() {
        let service = LockService::start().await.expect("starts");
        let url = format!("{}/locks/order-7", service.url());
        let ask = async |owner: &str| {
            let ask = json!({ "owner": owner, "ttl_ms": 60_000 });
            let answer = client().post(&url).json(&ask).send().await;
            answer.expect("answers")
        };
        let first = ask("A").await;
        assert_eq!(first.status(), 201);
        let grant: serde_json::Value = first.json().await.expect("is JSON");
        assert_eq!(grant, json!({ "token": "41" }));
        assert_eq!(ask("B").await.status(), 409);
        service.reset();
        assert_eq!(ask("B").await.status(), 201);
    }
}
