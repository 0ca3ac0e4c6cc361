//! A lock service with leases, over HTTP, as etcd, Consul or Redis with a counter would be one:
//! every grant comes with a number that is larger than that of the grant before.
//!
//! | request | answer |
//! |---|---|
//! | `POST /locks/order-7` `{"owner": "A", "ttl_ms": 1200}` | 201 and the token; 409 while another holds it |
//! | `PUT /locks/order-7` `{"owner": "A", "token": "41"}` | 200: the lease runs anew; 410: it is lost |
//! | `DELETE /locks/order-7` `{"owner": "A", "token": "41"}` | 200; 410: it was lost before |
//! | `GET /locks/order-7` | who holds it, by which token, for how long; 404: nobody |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::http::{JsonBody, JsonReply, Server};

/// The grants before the demo: the first token it gives is 41.
const GRANTED_BEFORE: u64 = 40;

/// The longest lease.
const LONGEST_TTL: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LockLease {
    owner: String,
    token: u64,
    ttl: Duration,
    ends: Instant,
}

/// All locks. Pure: the time is passed in.
#[derive(Default)]
struct LockTable {
    held: BTreeMap<String, LockLease>,
    /// Per lock, and never taken back with a lease: that is what makes it a fencing token.
    granted: BTreeMap<String, u64>,
}

impl LockTable {
    fn holder(&mut self, name: &str, now: Instant) -> Option<&mut LockLease> {
        self.held.get_mut(name).filter(|lease| now < lease.ends)
    }

    /// A token, or the lease that stands in the way.
    fn acquire(
        &mut self,
        name: &str,
        owner: &str,
        ttl: Duration,
        now: Instant,
    ) -> Result<u64, LockLease> {
        if let Some(lease) = self.holder(name, now) {
            return Err(lease.clone());
        }
        let granted = self
            .granted
            .entry(name.to_owned())
            .or_insert(GRANTED_BEFORE);
        *granted += 1;
        let token = *granted;
        let lease = LockLease {
            owner: owner.to_owned(),
            token,
            ttl,
            ends: now + ttl,
        };
        self.held.insert(name.to_owned(), lease);
        Ok(token)
    }

    /// Whether the lease was still there to be renewed.
    fn renew(&mut self, name: &str, owner: &str, token: u64, now: Instant) -> bool {
        match self.holder(name, now) {
            Some(lease) if lease.owner == owner && lease.token == token => {
                lease.ends = now + lease.ttl;
                true
            }
            _ => false,
        }
    }

    /// Whether the lease was still there to be released.
    fn release(&mut self, name: &str, owner: &str, token: u64, now: Instant) -> bool {
        let renewed = self.renew(name, owner, token, now);
        if renewed {
            self.held.remove(name);
        }
        renewed
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
        let table = Arc::new(Mutex::new(LockTable::default()));
        let server = Server::start(routes(Arc::clone(&table))).await?;
        Ok(Self { server, table })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Forgets every lease and every grant: what a real lock service must never do, and what lets
    /// each story start with 41.
    pub fn reset(&self) {
        *lock(&self.table) = LockTable::default();
    }
}

fn lock(table: &Mutex<LockTable>) -> std::sync::MutexGuard<'_, LockTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn routes(table: SharedLocks) -> Router {
    let lock = get(show).post(acquire).put(renew).delete(release);
    Router::new()
        .route("/locks/{name}", lock)
        .fallback(async || JsonReply::error(StatusCode::NOT_FOUND, "try /locks/NAME"))
        .with_state(table)
}

async fn show(State(table): State<SharedLocks>, Path(name): Path<String>) -> JsonReply {
    let now = Instant::now();
    match lock(&table).holder(&name, now) {
        Some(lease) => JsonReply(StatusCode::OK, shown(lease, now)),
        None => JsonReply::error(StatusCode::NOT_FOUND, "nobody holds it"),
    }
}

async fn acquire(
    State(table): State<SharedLocks>,
    Path(name): Path<String>,
    JsonBody(body): JsonBody,
) -> Result<JsonReply, JsonReply> {
    let (owner, now) = (owner(&body)?, Instant::now());
    let ttl = Duration::from_millis(body["ttl_ms"].as_u64().unwrap_or(10_000)).min(LONGEST_TTL);
    Ok(match lock(&table).acquire(&name, owner, ttl, now) {
        Ok(token) => {
            let grant = json!({ "token": token.to_string(), "ttl_ms": millis(ttl) });
            JsonReply(StatusCode::CREATED, grant)
        }
        Err(lease) => JsonReply(StatusCode::CONFLICT, shown(&lease, now)),
    })
}

async fn renew(
    State(table): State<SharedLocks>,
    Path(name): Path<String>,
    JsonBody(body): JsonBody,
) -> Result<JsonReply, JsonReply> {
    let (owner, token) = (owner(&body)?, token(&body)?);
    let held = lock(&table).renew(&name, owner, token, Instant::now());
    Ok(held_or_lost(held, token))
}

async fn release(
    State(table): State<SharedLocks>,
    Path(name): Path<String>,
    JsonBody(body): JsonBody,
) -> Result<JsonReply, JsonReply> {
    let (owner, token) = (owner(&body)?, token(&body)?);
    let held = lock(&table).release(&name, owner, token, Instant::now());
    Ok(held_or_lost(held, token))
}

fn owner(body: &Value) -> Result<&str, JsonReply> {
    let missing = || JsonReply::error(StatusCode::BAD_REQUEST, "who asks? `owner` is missing");
    body["owner"].as_str().ok_or_else(missing)
}

fn token(body: &Value) -> Result<u64, JsonReply> {
    let token = body["token"].as_str().and_then(|text| text.parse().ok());
    let reason = "`token` is missing, or no string of digits";
    token.ok_or_else(|| JsonReply::error(StatusCode::BAD_REQUEST, reason))
}

fn held_or_lost(held: bool, token: u64) -> JsonReply {
    if held {
        JsonReply(StatusCode::OK, json!({ "token": token.to_string() }))
    } else {
        JsonReply::error(StatusCode::GONE, "the lease is lost")
    }
}

fn shown(lease: &LockLease, now: Instant) -> Value {
    json!({
        "held_by": lease.owner,
        "token": lease.token.to_string(),
        "ends_in_ms": millis(lease.ends.saturating_duration_since(now)),
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
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
}
