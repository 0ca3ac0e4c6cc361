//! An upstream of the kind that fencepost is made for: it has accounts and orders, accepts every
//! request, and does not know tokens.
//!
//! | request | effect |
//! |---|---|
//! | `POST /accounts/7/charge` `{"amount": 30, "by": "A"}` | adds a ledger entry, lowers the balance |
//! | `PUT /orders/7` (any JSON) | overwrites the order's document |
//! | `GET /accounts/7`, `GET /orders/7` | show them |
//! | `GET /journal` | what arrived and what took effect, in order |
//!
//! The demo can make it stall a request ([`Legacy::hold`]), and so can `curl`, with `X-Demo-Stall:
//! SECONDS`. The stall comes where it hurts: after the request has arrived whole and before it
//! takes effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{FromRequest, Path, Request, State};
use axum::routing::{get, post};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::http::{JsonBody, JsonReply, Server};

/// The balance of each account at the start of a story.
pub const OPENING_BALANCE: i64 = 100;

/// The longest stall that a request may ask for.
const LONGEST_STALL: u64 = 30;

#[derive(Default)]
struct Account {
    balance: i64,
    ledger: Vec<Value>,
}

#[derive(Default)]
struct Books {
    accounts: BTreeMap<String, Account>,
    orders: BTreeMap<String, Value>,
    journal: Vec<String>,
    /// The next request of this method and path reports its arrival and waits.
    hold: Option<(String, Gate)>,
}

/// Short sections, never across an await: every effect is one of them.
type SharedBooks = Arc<Mutex<Books>>;

struct Gate {
    arrived: oneshot::Sender<()>,
    release: oneshot::Receiver<()>,
}

/// The demo's end of a stall.
pub struct StallHandle {
    arrived: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl StallHandle {
    /// Waits until the request has arrived whole and is stalled.
    ///
    /// # Errors
    /// Another hold has taken its place.
    pub async fn arrived(&mut self) -> anyhow::Result<()> {
        (&mut self.arrived)
            .await
            .context("the stall was called off")
    }

    /// Lets the request take effect.
    pub fn release(self) {
        // The request may be gone by now; then there is nothing to release.
        let _ = self.release.send(());
    }
}

/// The legacy API, running.
pub struct Legacy {
    server: Server,
    books: SharedBooks,
}

impl Legacy {
    /// Starts it on a free loopback port.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start() -> anyhow::Result<Self> {
        let books = Arc::new(Mutex::new(fresh()));
        let server = Server::start(routes(Arc::clone(&books))).await?;
        Ok(Self { server, books })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Forgets everything, as at the start.
    pub fn reset(&self) {
        *lock(&self.books) = fresh();
    }

    /// Stalls the next request of this method and path when it has arrived.
    pub fn hold(&self, method: &Method, path: &str) -> StallHandle {
        let (arrived, on_arrival) = oneshot::channel();
        let (let_go, release) = oneshot::channel();
        lock(&self.books).hold = Some((format!("{method} {path}"), Gate { arrived, release }));
        StallHandle {
            arrived: on_arrival,
            release: let_go,
        }
    }
}

fn fresh() -> Books {
    let mut books = Books::default();
    for id in ["7", "8", "9"] {
        let account = Account {
            balance: OPENING_BALANCE,
            ledger: Vec::new(),
        };
        books.accounts.insert(id.to_owned(), account);
        books
            .orders
            .insert(id.to_owned(), json!({ "status": "new", "by": "nobody" }));
    }
    books
}

fn lock(books: &Mutex<Books>) -> std::sync::MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

fn routes(books: SharedBooks) -> Router {
    Router::new()
        .route("/journal", get(journal))
        .route("/accounts/{id}", get(account))
        .route("/accounts/{id}/charge", post(charge))
        .route("/orders/{id}", get(order).put(overwrite))
        .fallback(async || missing())
        .with_state(books)
}

async fn journal(State(books): State<SharedBooks>) -> JsonReply {
    JsonReply(StatusCode::OK, json!(lock(&books).journal))
}

async fn account(State(books): State<SharedBooks>, Path(id): Path<String>) -> JsonReply {
    let books = lock(&books);
    let Some(account) = books.accounts.get(&id) else {
        return missing();
    };
    let shown = json!({ "balance": account.balance, "ledger": account.ledger });
    JsonReply(StatusCode::OK, shown)
}

async fn order(State(books): State<SharedBooks>, Path(id): Path<String>) -> JsonReply {
    let order = lock(&books).orders.get(&id).cloned();
    order.map_or_else(missing, |order| JsonReply(StatusCode::OK, order))
}

async fn charge(
    State(books): State<SharedBooks>,
    Path(id): Path<String>,
    write: Write,
) -> JsonReply {
    write.arrive(&books).await;
    let Some(amount) = write.body["amount"].as_i64() else {
        let reason = "a charge needs an integer `amount`";
        return JsonReply::error(StatusCode::BAD_REQUEST, reason);
    };
    let mut books = lock(&books);
    books.journal.push(format!("{}: took effect", write.by));
    let account = books.accounts.entry(id).or_default();
    account.balance = account.balance.saturating_sub(amount);
    account.ledger.push(write.body);
    JsonReply(StatusCode::CREATED, json!({ "balance": account.balance }))
}

async fn overwrite(
    State(books): State<SharedBooks>,
    Path(id): Path<String>,
    write: Write,
) -> JsonReply {
    write.arrive(&books).await;
    let mut books = lock(&books);
    books.journal.push(format!("{}: took effect", write.by));
    books.orders.insert(id, write.body.clone());
    JsonReply(StatusCode::OK, write.body)
}

fn missing() -> JsonReply {
    JsonReply::error(StatusCode::NOT_FOUND, "no such thing here")
}

/// A write that has arrived whole.
struct Write {
    /// Method and path.
    line: String,
    /// The same with its writer, as the journal names it.
    by: String,
    /// The stall that the request's own header asks for.
    stall: Option<Duration>,
    body: Value,
}

impl<S: Send + Sync> FromRequest<S> for Write {
    type Rejection = JsonReply;

    async fn from_request(request: Request, state: &S) -> Result<Self, JsonReply> {
        let line = format!("{} {}", request.method(), request.uri().path());
        let asked = request.headers().get("x-demo-stall");
        let seconds = asked.and_then(|value| value.to_str().ok()?.parse().ok());
        let JsonBody(body) = JsonBody::from_request(request, state).await?;
        Ok(Self {
            by: format!("{line} by {}", body["by"].as_str().unwrap_or("somebody")),
            line,
            stall: seconds.map(|seconds: u64| Duration::from_secs(seconds.min(LONGEST_STALL))),
            body,
        })
    }
}

impl Write {
    /// Records the arrival, and stalls for as long as the demo or the header says.
    async fn arrive(&self, books: &Mutex<Books>) {
        let gate = {
            let mut books = lock(books);
            books.journal.push(format!("{}: arrived", self.by));
            books
                .hold
                .take_if(|(held, _)| *held == self.line)
                .map(|(_, gate)| gate)
        };
        if let Some(gate) = gate {
            let _ = gate.arrived.send(());
            // An error: the demo has dropped its end, and nothing holds the request any more.
            let _ = gate.release.await;
        }
        if let Some(stall) = self.stall {
            tokio::time::sleep(stall).await;
        }
    }
}

#[cfg(test)]
mod tests;
