//! A service such as fencepost is made for: it has accounts and orders, believes every request, and
//! has never heard of a token.
//!
//! | request | effect |
//! |---|---|
//! | `POST /accounts/7/charge` `{"amount": 30, "by": "A"}` | adds a ledger entry, lowers the balance |
//! | `PUT /orders/7` (any JSON) | overwrites the order's document |
//! | `GET /accounts/7`, `GET /orders/7` | show them |
//! | `GET /journal` | what arrived and what took effect, in order |
//!
//! The demo can tell it to stall an arriving request ([`Legacy::hold`]); people can, with
//! `X-Demo-Stall: SECONDS`. The stall lies where it hurts: after the request has arrived whole and
//! before it takes effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::http::{Call, Reply, Server, reply};

/// What each account holds at the start of a story.
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
    /// The next request of this method and path tells of its arrival and waits.
    hold: Option<(String, Gate)>,
}

struct Gate {
    arrived: oneshot::Sender<()>,
    release: oneshot::Receiver<()>,
}

/// The demo's end of a stall.
pub struct Hold {
    arrived: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl Hold {
    /// Waits until the request has arrived whole and stands still.
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
    /// Short sections, never across an await: every effect is one of them.
    books: Arc<Mutex<Books>>,
}

impl Legacy {
    /// Starts it on a free loopback port.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start() -> anyhow::Result<Self> {
        let books = Arc::new(Mutex::new(fresh()));
        let inner = Arc::clone(&books);
        let server = Server::start(move |call| handle(Arc::clone(&inner), call)).await?;
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
    pub fn hold(&self, method: &Method, path: &str) -> Hold {
        let (arrived, on_arrival) = oneshot::channel();
        let (let_go, release) = oneshot::channel();
        lock(&self.books).hold = Some((format!("{method} {path}"), Gate { arrived, release }));
        Hold {
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

async fn handle(books: Arc<Mutex<Books>>, call: Call) -> Reply {
    let body = match call.json() {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    let line = format!("{} {}", call.method, call.path);
    let by = body["by"].as_str().unwrap_or("somebody").to_owned();
    let writes = call.method != Method::GET;
    if writes {
        lock(&books)
            .journal
            .push(format!("{line} by {by}: arrived"));
        stall(&books, &call, &line).await;
    }

    let mut books = lock(&books);
    let answer = apply(&mut books, &call, body);
    if writes && answer.status().is_success() {
        books.journal.push(format!("{line} by {by}: took effect"));
    }
    answer
}

/// Stands still for as long as the demo, or the request's own header, says.
async fn stall(books: &Mutex<Books>, call: &Call, line: &str) {
    let gate = {
        let mut books = lock(books);
        match books.hold.take() {
            Some((held, gate)) if held == line => Some(gate),
            other => {
                books.hold = other;
                None
            }
        }
    };
    if let Some(gate) = gate {
        let _ = gate.arrived.send(());
        // An error: the demo has dropped its end, and nothing holds the request any more.
        let _ = gate.release.await;
    }
    let asked = call
        .headers
        .get("x-demo-stall")
        .and_then(|value| value.to_str().ok());
    if let Some(seconds) = asked.and_then(|text| text.parse::<u64>().ok()) {
        tokio::time::sleep(Duration::from_secs(seconds.min(LONGEST_STALL))).await;
    }
}

fn apply(books: &mut Books, call: &Call, body: Value) -> Reply {
    match (call.method.as_str(), call.segments().as_slice()) {
        ("GET", ["journal"]) => reply(StatusCode::OK, &json!(books.journal)),
        ("GET", ["accounts", id]) => match books.accounts.get(*id) {
            Some(account) => reply(
                StatusCode::OK,
                &json!({ "balance": account.balance, "ledger": account.ledger }),
            ),
            None => missing(),
        },
        ("GET", ["orders", id]) => match books.orders.get(*id) {
            Some(order) => reply(StatusCode::OK, order),
            None => missing(),
        },
        ("POST", ["accounts", id, "charge"]) => {
            let Some(amount) = body["amount"].as_i64() else {
                let reason = json!({ "error": "a charge needs an integer `amount`" });
                return reply(StatusCode::BAD_REQUEST, &reason);
            };
            let account = books.accounts.entry((*id).to_owned()).or_default();
            account.balance = account.balance.saturating_sub(amount);
            account.ledger.push(body);
            reply(StatusCode::CREATED, &json!({ "balance": account.balance }))
        }
        ("PUT", ["orders", id]) => {
            books.orders.insert((*id).to_owned(), body.clone());
            reply(StatusCode::OK, &body)
        }
        _ => missing(),
    }
}

fn missing() -> Reply {
    reply(
        StatusCode::NOT_FOUND,
        &json!({ "error": "no such thing here" }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::client;

    async fn get(api: &Legacy, path: &str) -> Value {
        let answer = client()
            .get(format!("{}{path}", api.url()))
            .send()
            .await
            .expect("answers");
        answer.json().await.expect("is JSON")
    }

    #[tokio::test]
    async fn believes_every_charge_and_every_write() {
        let api = Legacy::start().await.expect("starts");
        let http = client();
        for by in ["A", "B"] {
            let charge = http
                .post(format!("{}/accounts/7/charge", api.url()))
                .json(&json!({ "amount": 30, "by": by }))
                .send()
                .await
                .expect("answers");
            assert_eq!(charge.status(), 201);
            let write = http
                .put(format!("{}/orders/7", api.url()))
                .json(&json!({ "status": "paid", "by": by }))
                .send()
                .await
                .expect("answers");
            assert_eq!(write.status(), 200);
        }
        let account = get(&api, "/accounts/7").await;
        assert_eq!(account["balance"], 40);
        assert_eq!(account["ledger"].as_array().map(Vec::len), Some(2));
        assert_eq!(get(&api, "/orders/7").await["by"], "B");

        api.reset();
        assert_eq!(get(&api, "/accounts/7").await["balance"], OPENING_BALANCE);
        assert_eq!(get(&api, "/journal").await, json!([]));
    }

    #[tokio::test]
    async fn a_held_request_takes_effect_after_one_that_came_later() {
        let api = Legacy::start().await.expect("starts");
        let mut hold = api.hold(&Method::PUT, "/orders/8");
        let url = format!("{}/orders/8", api.url());
        let first = tokio::spawn(client().put(&url).json(&json!({ "by": "A" })).send());
        hold.arrived().await.expect("arrives");
        let second = client()
            .put(&url)
            .json(&json!({ "by": "B" }))
            .send()
            .await
            .expect("answers");
        assert_eq!(second.status(), 200);
        assert_eq!(get(&api, "/orders/8").await["by"], "B");
        hold.release();
        assert_eq!(first.await.expect("runs").expect("answers").status(), 200);
        assert_eq!(get(&api, "/orders/8").await["by"], "A");
        assert_eq!(
            get(&api, "/journal").await,
            json!([
                "PUT /orders/8 by A: arrived",
                "PUT /orders/8 by B: arrived",
                "PUT /orders/8 by B: took effect",
                "PUT /orders/8 by A: took effect",
            ])
        );
    }

    #[tokio::test]
    async fn refuses_what_it_cannot_read() {
        let api = Legacy::start().await.expect("starts");
        let url = format!("{}/accounts/7/charge", api.url());
        let broken = client().post(&url).body("{").send().await.expect("answers");
        assert_eq!(broken.status(), 400);
        let no_amount = client()
            .post(&url)
            .json(&json!({}))
            .send()
            .await
            .expect("answers");
        assert_eq!(no_amount.status(), 400);
        let nowhere = client()
            .get(format!("{}/x", api.url()))
            .send()
            .await
            .expect("answers");
        assert_eq!(nowhere.status(), 404);
        assert_eq!(get(&api, "/accounts/7").await["balance"], OPENING_BALANCE);
    }
}
