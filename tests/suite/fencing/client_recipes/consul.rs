//! Consul's side of the recipe in Go: its answers are those of its documentation, because no Consul
//! can be installed where the tests run.
//! <https://developer.hashicorp.com/consul/api-docs/session>,
//! <https://developer.hashicorp.com/consul/api-docs/kv>

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::{Step, Upstream};

/// A request that Consul expects, and its answer.
struct Turn {
    method: &'static str,
    target: String,
    answer: Value,
}

/// The turns that are still to come.
type Turns = Arc<Mutex<VecDeque<Turn>>>;

/// The server, and the requests that it waits for, in their order.
pub struct Consul {
    server: Upstream,
    script: Turns,
}

/// The session of the holder that gets this grant.
fn session(grant: u64) -> String {
    format!("adf4238a-882b-9ddc-4a9d-{grant:012x}")
}

impl Consul {
    pub async fn start() -> Self {
        let server = Upstream::start().await;
        let script = Turns::default();
        let turns = Arc::clone(&script);
        server.otherwise(move |head| {
            let turn = turns.lock().expect("no panic").pop_front();
            let asked = format!("{} {}", head.word(0), head.word(1));
            let expected = turn
                .as_ref()
                .map(|turn| format!("{} {}", turn.method, turn.target));
            match turn {
                Some(turn) if expected.as_ref() == Some(&asked) => {
                    let kind = "Content-Type: application/json\r\n";
                    vec![Step::answer("200 OK", kind, &turn.answer.to_string())]
                }
                _ => {
                    let wrong = format!("expected {expected:?}, got {asked}");
                    vec![Step::answer("400 Bad Request", "", &wrong)]
                }
            }
        });
        Self { server, script }
    }

    pub fn url(&self) -> &str {
        self.server.url()
    }

    fn expect(&self, method: &'static str, target: String, answer: Value) {
        let turn = Turn {
            method,
            target,
            answer,
        };
        self.script.lock().expect("no panic").push_back(turn);
    }

    /// A session begins.
    pub fn begins(&self, grant: u64) {
        let answer = json!({ "ID": session(grant) });
        self.expect("PUT", "/v1/session/create".to_owned(), answer);
    }

    /// It asks for the lock, which it gets or not; when it reads the key, grant `holder` has it.
    pub fn asks(&self, grant: u64, granted: bool, holder: u64) {
        let target = format!("/v1/kv/orders?acquire={}", session(grant));
        self.expect("PUT", target, json!(granted));
        let entry = json!([{
            "CreateIndex": 100,
            "ModifyIndex": 200 + holder,
            "LockIndex": holder,
            "Key": "orders",
            "Flags": 0,
            "Value": null,
            "Session": session(holder),
        }]);
        self.expect("GET", "/v1/kv/orders?consistent".to_owned(), entry);
    }

    /// It releases the lock, and ends.
    pub fn ends(&self, grant: u64) {
        let session = session(grant);
        self.expect(
            "PUT",
            format!("/v1/kv/orders?release={session}"),
            json!(true),
        );
        self.expect("PUT", format!("/v1/session/destroy/{session}"), json!(true));
    }

    /// Checks that every request that was expected has come, and what each session was made of.
    pub fn assert_complete(&self) {
        let left = self.script.lock().expect("no panic");
        let left = left
            .iter()
            .map(|turn| format!("{} {}", turn.method, turn.target));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
        for arrival in self.server.arrivals() {
            if arrival.target() == "/v1/session/create" {
                let asked: Value = serde_json::from_slice(&arrival.body).expect("JSON");
                // Its behavior is `release`, the default: with `delete`, LockIndex begins again.
                assert_eq!(asked, json!({ "TTL": "30s" }));
            }
        }
    }
}
