//! The servers of the demo beside fencepost, on loopback ports, with JSON in and out; and a lock.
//!
//! The API is of the kind that fencepost is made for: it has accounts and orders, accepts every
//! request, and does not know tokens.
//!
//! | request | effect |
//! |---|---|
//! | `POST /accounts/7/charge` `{"amount": 30}` | charges the account |
//! | `PUT /orders/7` (any JSON) | overwrites the order's document |
//!
//! The demo can make it stall a request ([`Servers::hold`]). The stall comes where it hurts: after
//! the request has arrived whole and before it takes effect.
//!
//! The lock is a lease, as etcd, Consul or Redis with a counter would grant it: every grant comes
//! with a number that is larger than that of the grant before ([`Servers::acquire`]).
//!
//! The naive proxy ([`start_naive`]) is the one that most developers write first: it checks the
//! token and forwards. The check is right (a mark per resource, under a lock, older tokens refused),
//! but not enough: nothing keeps the order between the check and the arrival.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{post, put};
use axum::{Json, Router};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::locked::locked;

/// The balance of each account at the start of a story.
pub(super) const OPENING_BALANCE: i64 = 100;
/// The token of the first grant.
const FIRST_TOKEN: u64 = 41;
/// The time for which the lock is granted: short, so that it can be watched.
pub(super) const LEASE: Duration = Duration::from_millis(1200);
/// How long any one request of the demo may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The API, running, and the lock.
pub(super) struct Servers {
    /// The URL of the API.
    pub api: String,
    books: SharedBooks,
}

/// Short sections, never across an await: every effect is one of them.
type SharedBooks = Arc<Mutex<Books>>;

#[derive(Default)]
struct Books {
    /// How often each account was charged, and its balance, by its path.
    accounts: BTreeMap<String, (usize, i64)>,
    /// The documents of the orders, by their path.
    orders: BTreeMap<String, Value>,
    /// The writes of orders that arrived, and those that took effect.
    journal: Vec<String>,
    hold: Option<Arc<Hold>>,
    /// The last lease. It stays after its end: the next token is counted from it.
    lease: Option<Lease>,
}

/// A stall: the API reports the arrival, and the demo releases the request.
#[derive(Default)]
pub(super) struct Hold {
    pub arrived: Notify,
    pub released: Notify,
}

struct Lease {
    owner: String,
    token: u64,
    ends: Instant,
}

impl Servers {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let books = SharedBooks::default();
        let api = Router::new()
            .route("/accounts/{id}/charge", post(charge))
            .route("/orders/{id}", put(write))
            .with_state(Arc::clone(&books));
        let api = serve(api).await?;
        Ok(Self { api, books })
    }

    /// Forgets everything, the last lease too, so that each story starts with 41: a real lock
    /// service must never do that.
    pub(super) fn reset(&self) {
        *locked(&self.books) = Books::default();
    }

    /// Stalls the next write when it has arrived.
    pub(super) fn hold(&self) -> Arc<Hold> {
        let hold = Arc::<Hold>::default();
        locked(&self.books).hold = Some(Arc::clone(&hold));
        hold
    }

    /// Grants the lock, with a token. Err: the name of its holder.
    pub(super) fn acquire(&self, owner: &str) -> Result<u64, String> {
        let now = Instant::now();
        let last = &mut locked(&self.books).lease;
        if let Some(held) = last.as_ref().filter(|lease| now < lease.ends) {
            return Err(held.owner.clone());
        }
        let token = last.as_ref().map_or(FIRST_TOKEN, |lease| lease.token + 1);
        *last = Some(Lease {
            owner: owner.to_owned(),
            token,
            ends: now + LEASE,
        });
        Ok(token)
    }

    /// The charges and the balance of an account, also in words.
    pub(super) fn account(&self, path: &str) -> (usize, i64, String) {
        let account = locked(&self.books).accounts.get(path).copied();
        let (charges, balance) = account.unwrap_or((0, OPENING_BALANCE));
        let s = if charges == 1 { "" } else { "s" };
        let text = format!("balance {balance} after {charges} charge{s}");
        (charges, balance, text)
    }

    pub(super) fn order(&self, path: &str) -> Value {
        let order = locked(&self.books).orders.get(path).cloned();
        order.unwrap_or_else(|| json!({ "status": "new", "by": "nobody" }))
    }

    /// The writes of orders, in the order of their arrivals and effects.
    pub(super) fn journal(&self) -> String {
        locked(&self.books).journal.join(", ")
    }
}

async fn write(
    State(books): State<SharedBooks>,
    uri: Uri,
    Json(order): Json<Value>,
) -> Json<Value> {
    let by = order["by"].as_str().unwrap_or("somebody");
    locked(&books).journal.push(format!("{by}: arrived"));
    stall(&books).await;
    let mut books = locked(&books);
    books.journal.push(format!("{by}: took effect"));
    books.orders.insert(uri.path().to_owned(), order.clone());
    Json(order)
}

async fn charge(State(books): State<SharedBooks>, uri: Uri, Json(charge): Json<Value>) -> Response {
    stall(&books).await;
    let account = uri.path().trim_end_matches("/charge").to_owned();
    let accounts = &mut locked(&books).accounts;
    let (charges, balance) = accounts.entry(account).or_insert((0, OPENING_BALANCE));
    *charges += 1;
    *balance -= charge["amount"].as_i64().unwrap_or(0);
    (StatusCode::CREATED, Json(json!({ "balance": balance }))).into_response()
}

/// Waits while the demo holds this write.
async fn stall(books: &SharedBooks) {
    let hold = locked(books).hold.take();
    if let Some(hold) = hold {
        hold.arrived.notify_one();
        hold.released.notified().await;
    }
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
        return (StatusCode::PRECONDITION_REQUIRED, "a token is required").into_response();
    };
    let path = uri.path();
    let mark = {
        let mut marks = locked(&marks);
        let mark = marks.entry(path.to_owned()).or_insert(token);
        *mark = token.max(*mark);
        *mark
    };
    if token < mark {
        return (StatusCode::PRECONDITION_FAILED, "a newer token was seen").into_response();
    }
    let request = client().request(method, format!("{upstream}{path}"));
    match request.json(&body).send().await {
        Ok(answer) => (answer.status(), answer.bytes().await.unwrap_or_default()).into_response(),
        Err(gone) => (StatusCode::BAD_GATEWAY, gone.to_string()).into_response(),
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
