//! The servers of the demo beside fencepost, on loopback ports, with JSON in and out.
//!
//! The API is of the kind that fencepost is made for: it has accounts and orders, accepts every
//! request, and does not know tokens.
//!
//! | request | effect |
//! |---|---|
//! | `POST /accounts/7/charge` `{"amount": 30, "by": "A"}` | adds a ledger entry, lowers the balance |
//! | `PUT /orders/7` (any JSON) | overwrites the order's document |
//! | `GET /accounts/7`, `GET /orders/7` | show them |
//! | `GET /journal` | what arrived and what took effect, in order |
//!
//! The demo can make it stall a request ([`Servers::hold`]). The stall comes where it hurts: after
//! the request has arrived whole and before it takes effect.
//!
//! The lock service grants leases, as etcd, Consul or Redis with a counter would: every grant comes
//! with a number that is larger than that of the grant before. `POST /locks/order-7` with
//! `{"owner": "A", "ttl_ms": 1200}` gets 201 and the token, or 409 while the lock is held.
//!
//! The naive proxy ([`start_naive`]) is the one that most developers write first: it checks the
//! token and forwards. The check is right (a mark per resource, under a lock, older tokens refused),
//! but not enough: nothing keeps the order between the check and the arrival.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::locked::locked;

/// The balance of each account at the start of a story.
pub(super) const OPENING_BALANCE: i64 = 100;
/// The token of the first grant.
const FIRST_TOKEN: u64 = 41;
/// How long any one request of the demo may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The API and the lock service, running.
pub(super) struct Servers {
    /// The URL of the API.
    pub api: String,
    /// The URL of the lock service.
    pub locks: String,
    books: SharedBooks,
}

/// Short sections, never across an await: every effect is one of them.
type SharedBooks = Arc<Mutex<Books>>;

#[derive(Default)]
struct Books {
    /// Accounts and orders, by path.
    documents: BTreeMap<String, Value>,
    journal: Vec<String>,
    hold: Option<Arc<Hold>>,
    /// The last lease of each lock. It stays after its end: the next token is counted from it.
    leases: BTreeMap<String, Lease>,
}

/// A stall: the API reports the arrival, and the demo releases the request.
#[derive(Default)]
pub(super) struct Hold {
    /// The next request of this method and path stalls: `PUT /orders/8`.
    request: String,
    pub arrived: Notify,
    pub released: Notify,
}

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

impl Servers {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let books = SharedBooks::default();
        let api = Router::new()
            .route("/journal", get(journal))
            .route("/accounts/{id}", get(show))
            .route("/accounts/{id}/charge", post(write))
            .route("/orders/{id}", get(show).put(write));
        let locks = Router::new().route("/locks/{name}", post(acquire));
        let servers = Self {
            api: serve(api.with_state(Arc::clone(&books))).await?,
            locks: serve(locks.with_state(Arc::clone(&books))).await?,
            books,
        };
        servers.reset();
        Ok(servers)
    }

    /// Forgets everything, as at the start. Every lease and every grant, too, so that each story
    /// starts with 41: a real lock service must never do that.
    pub(super) fn reset(&self) {
        let mut books = Books::default();
        for id in [7, 8, 9] {
            let account = json!({ "balance": OPENING_BALANCE, "ledger": [] });
            let order = json!({ "status": "new", "by": "nobody" });
            books.documents.insert(format!("/accounts/{id}"), account);
            books.documents.insert(format!("/orders/{id}"), order);
        }
        *locked(&self.books) = books;
    }

    /// Stalls the next `request`, such as `PUT /orders/8`, when it has arrived.
    pub(super) fn hold(&self, request: &str) -> Arc<Hold> {
        let hold = Arc::new(Hold {
            request: request.to_owned(),
            ..Hold::default()
        });
        locked(&self.books).hold = Some(Arc::clone(&hold));
        hold
    }
}

async fn journal(State(books): State<SharedBooks>) -> Response {
    reply(StatusCode::OK, json!(locked(&books).journal))
}

async fn show(State(books): State<SharedBooks>, uri: Uri) -> Response {
    match locked(&books).documents.get(uri.path()) {
        Some(document) => reply(StatusCode::OK, document.clone()),
        None => error(StatusCode::NOT_FOUND, "not found"),
    }
}

async fn write(
    State(books): State<SharedBooks>,
    method: Method,
    uri: Uri,
    Json(body): Json<Value>,
) -> Response {
    let path = uri.path();
    let request = format!("{method} {path}");
    let by = body["by"].as_str().unwrap_or("somebody");
    let note = |books: &mut Books, event: &str| {
        books.journal.push(format!("{request} by {by}: {event}"));
    };
    let hold = {
        let mut books = locked(&books);
        note(&mut books, "arrived");
        books.hold.take_if(|hold| hold.request == request)
    };
    if let Some(hold) = hold {
        hold.arrived.notify_one();
        hold.released.notified().await;
    }
    let mut books = locked(&books);
    note(&mut books, "took effect");
    if let Some(account) = path.strip_suffix("/charge") {
        return reply(StatusCode::CREATED, books.charge(account, body));
    }
    books.documents.insert(path.to_owned(), body.clone());
    reply(StatusCode::OK, body)
}

impl Books {
    /// Adds an entry to an account's ledger. Returns the new balance.
    fn charge(&mut self, account: &str, entry: Value) -> Value {
        let account = self.documents.entry(account.to_owned());
        let account = account.or_insert_with(|| json!({ "balance": 0, "ledger": [] }));
        let [balance, amount] = [&account["balance"], &entry["amount"]].map(Value::as_i64);
        let balance = balance.unwrap_or(0).saturating_sub(amount.unwrap_or(0));
        account["balance"] = balance.into();
        let ledger = account["ledger"].as_array_mut();
        ledger.expect("a list").push(entry);
        json!({ "balance": balance })
    }
}

async fn acquire(
    State(books): State<SharedBooks>,
    Path(name): Path<String>,
    Json(LockRequest { owner, ttl_ms }): Json<LockRequest>,
) -> Response {
    let now = Instant::now();
    let leases = &mut locked(&books).leases;
    let last = leases.get(&name);
    if let Some(held) = last.filter(|lease| now < lease.ends) {
        let holder = json!({ "held_by": held.owner, "token": held.token.to_string() });
        return reply(StatusCode::CONFLICT, holder);
    }
    let token = last.map_or(FIRST_TOKEN, |lease| lease.token + 1);
    let ends = now + Duration::from_millis(ttl_ms.into());
    leases.insert(name, Lease { owner, token, ends });
    let grant = json!({ "token": token.to_string() });
    reply(StatusCode::CREATED, grant)
}

/// The upstream of the naive proxy, and its mark of each path. The check alone is atomic.
type Naive = (String, Arc<Mutex<BTreeMap<String, u64>>>);

/// Starts the naive proxy in front of `upstream` (`http://host:port`). Returns its URL.
pub(super) async fn start_naive(upstream: String) -> anyhow::Result<String> {
    let naive: Naive = (upstream, Arc::default());
    serve(Router::new().fallback(check_then_forward).with_state(naive)).await
}

async fn check_then_forward(
    State((upstream, marks)): State<Naive>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let token = headers.get("x-fencing-token");
    let Some(token) = token.and_then(|token| token.to_str().ok()?.parse().ok()) else {
        return error(StatusCode::PRECONDITION_REQUIRED, "a token is required");
    };
    let path = uri.path();
    let mark = {
        let mut marks = locked(&marks);
        let mark = marks.entry(path.to_owned()).or_insert(token);
        *mark = token.max(*mark);
        *mark
    };
    if token < mark {
        return error(StatusCode::PRECONDITION_FAILED, "a newer token was seen");
    }
    let request = client().request(method, format!("{upstream}{path}"));
    match request.json(&body).send().await {
        Ok(answer) => {
            let status = answer.status();
            reply(status, answer.json().await.unwrap_or_default())
        }
        Err(gone) => error(StatusCode::BAD_GATEWAY, &gone.to_string()),
    }
}

/// Serves these routes on a free loopback port until the process ends. Returns the URL.
async fn serve(routes: Router) -> anyhow::Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.context("cannot bind a loopback port")?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, routes).into_future());
    Ok(url)
}

fn reply(status: StatusCode, body: Value) -> Response {
    (status, Json(body)).into_response()
}

fn error(status: StatusCode, reason: &str) -> Response {
    reply(status, json!({ "error": reason }))
}

/// A client that ignores the proxy settings of the environment.
pub(super) fn client() -> reqwest::Client {
    // reqwest wants a TLS provider even where nothing speaks TLS; another caller may have set one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .expect("a client without certificates or proxies has nothing that can fail")
}

#[cfg(test)]
mod tests;
