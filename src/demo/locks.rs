//! A lock service with leases, over HTTP, as etcd, Consul or Redis with a counter would be one:
//! every grant comes with a number that is larger than that of the grant before.
//!
//! | request | answer |
//! |---|---|
//! | `POST /locks/order-7` `{"owner": "A", "ttl_ms": 1200}` | 201 and the token; 409 while another holds it |
//! | `PUT /locks/order-7` `{"owner": "A", "token": "41"}` | 200: the lease is renewed; 410: it is lost |
//! | `DELETE /locks/order-7` `{"owner": "A", "token": "41"}` | 200; 410: it was lost before |
//! | `GET /locks/order-7` | the holder, its token, and for how long; 404: no holder |

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

/// The number of grants before the demo: its first token is 41.
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

    /// True if the lease was still there to be renewed.
    fn renew(&mut self, name: &str, owner: &str, token: u64, now: Instant) -> bool {
        match self.holder(name, now) {
            Some(lease) if lease.owner == owner && lease.token == token => {
                lease.ends = now + lease.ttl;
                true
            }
            _ => false,
        }
    }

    /// True if the lease was still there to be released.
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

    /// Forgets every lease and every grant, so that each story starts with 41. A real lock service
    /// must never do that.
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
mod tests;
