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
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::http::{reply, serve};

/// The balance of each account at the start of a story.
pub(super) const OPENING_BALANCE: i64 = 100;

/// The longest stall that a request may ask for, in seconds.
const LONGEST_STALL: u64 = 30;

/// The legacy API, running.
pub(super) struct Legacy {
    pub url: String,
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
}

/// A stall: the API reports the arrival, and the demo releases the request.
pub(super) struct Hold {
    /// The next request of this method and path stalls: `PUT /orders/8`.
    request: String,
    pub arrived: Notify,
    pub released: Notify,
}

impl Legacy {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let books = SharedBooks::default();
        let routes = Router::new()
            .route("/journal", get(journal))
            .route("/accounts/{id}", get(show))
            .route("/accounts/{id}/charge", post(write))
            .route("/orders/{id}", get(show).put(write))
            .with_state(Arc::clone(&books));
        let api = Self {
            url: serve(routes).await?,
            books,
        };
        api.reset();
        Ok(api)
    }

    /// Forgets everything, as at the start.
    pub(super) fn reset(&self) {
        let mut books = Books::default();
        for id in [7, 8, 9] {
            let account = json!({ "balance": OPENING_BALANCE, "ledger": [] });
            let order = json!({ "status": "new", "by": "nobody" });
            books.documents.insert(format!("/accounts/{id}"), account);
            books.documents.insert(format!("/orders/{id}"), order);
        }
        *self.books.lock().expect("not poisoned") = books;
    }

    /// Stalls the next `request`, such as `PUT /orders/8`, when it has arrived.
    pub(super) fn hold(&self, request: &str) -> Arc<Hold> {
        let hold = Arc::new(Hold {
            request: request.to_owned(),
            arrived: Notify::new(),
            released: Notify::new(),
        });
        self.books.lock().expect("not poisoned").hold = Some(Arc::clone(&hold));
        hold
    }
}

async fn journal(State(books): State<SharedBooks>) -> Response {
    let journal = json!(books.lock().expect("not poisoned").journal);
    reply(StatusCode::OK, &journal)
}

async fn show(State(books): State<SharedBooks>, uri: Uri) -> Response {
    let books = books.lock().expect("not poisoned");
    match books.documents.get(uri.path()) {
        Some(document) => reply(StatusCode::OK, document),
        None => reply(StatusCode::NOT_FOUND, &json!({ "error": "not found" })),
    }
}

/// The body is JSON whatever its type: `curl -d` announces a form.
async fn write(
    State(books): State<SharedBooks>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, JsonRejection> {
    let Json(body) = Json::<Value>::from_bytes(&body)?;
    let path = uri.path();
    let request = format!("{method} {path}");
    let by = body["by"].as_str().unwrap_or("somebody");
    let hold = {
        let mut books = books.lock().expect("not poisoned");
        books.journal.push(format!("{request} by {by}: arrived"));
        books.hold.take_if(|hold| hold.request == request)
    };
    if let Some(hold) = hold {
        hold.arrived.notify_one();
        hold.released.notified().await;
    }
    let stall = headers.get("x-demo-stall");
    let stall = stall.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    tokio::time::sleep(Duration::from_secs(stall.unwrap_or(0).min(LONGEST_STALL))).await;

    let mut books = books.lock().expect("not poisoned");
    books
        .journal
        .push(format!("{request} by {by}: took effect"));
    if let Some(account) = path.strip_suffix("/charge") {
        return Ok(reply(StatusCode::CREATED, &books.charge(account, body)));
    }
    books.documents.insert(path.to_owned(), body.clone());
    Ok(reply(StatusCode::OK, &body))
}

impl Books {
    /// Adds an entry to an account's ledger. Returns the new balance.
    fn charge(&mut self, account: &str, entry: Value) -> Value {
        let opened = || json!({ "balance": 0, "ledger": [] });
        let account = self
            .documents
            .entry(account.to_owned())
            .or_insert_with(opened);
        let [balance, amount] = [&account["balance"], &entry["amount"]].map(Value::as_i64);
        let balance = balance.unwrap_or(0).saturating_sub(amount.unwrap_or(0));
        account["balance"] = balance.into();
        account["ledger"]
            .as_array_mut()
            .expect("a list")
            .push(entry);
        json!({ "balance": balance })
    }
}

#[cfg(test)]
mod tests;
