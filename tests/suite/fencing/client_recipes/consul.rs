//! Consul's side of the recipe in Go: its answers are those of its documentation, because no Consul
//! can be installed where the tests run.
//! <https://developer.hashicorp.com/consul/api-docs/session>,
//! <https://developer.hashicorp.com/consul/api-docs/kv>

use serde_json::{Value, json};

use crate::support::{Step, Upstream};

/// The server, and the requests that must come, in their order.
pub struct Consul {
    server: Upstream,
    expected: Vec<String>,
}

/// The session of the holder that gets this grant.
fn session(grant: u64) -> String {
    format!("adf4238a-882b-9ddc-4a9d-{grant:012x}")
}

impl Consul {
    pub async fn start() -> Self {
        let server = Upstream::start().await;
        server.otherwise(|_| vec![Step::answer("400 Bad Request", "", "not expected")]);
        let expected = Vec::new();
        Self { server, expected }
    }

    pub fn url(&self) -> &str {
        self.server.url()
    }

    fn expect(&mut self, request: String, answer: &Value) {
        let kind = "Content-Type: application/json\r\n";
        let answer = Step::answer("200 OK", kind, &answer.to_string());
        self.server.next([answer]);
        self.expected.push(request);
    }

    /// A session begins.
    pub fn begins(&mut self, grant: u64) {
        let answer = json!({ "ID": session(grant) });
        self.expect("PUT /v1/session/create".to_owned(), &answer);
    }

    /// It asks for the lock, which it gets or not; when it reads the key, grant `holder` has it.
    pub fn asks(&mut self, grant: u64, granted: bool, holder: u64) {
        let asks = format!("PUT /v1/kv/orders?acquire={}", session(grant));
        self.expect(asks, &json!(granted));
        let entry = json!([{
            "CreateIndex": 100,
            "ModifyIndex": 200 + holder,
            "LockIndex": holder,
            "Key": "orders",
            "Flags": 0,
            "Value": null,
            "Session": session(holder),
        }]);
        self.expect("GET /v1/kv/orders?consistent".to_owned(), &entry);
    }

    /// It releases the lock, and ends.
    pub fn ends(&mut self, grant: u64) {
        let session = session(grant);
        for target in ["kv/orders?release=", "session/destroy/"] {
            self.expect(format!("PUT /v1/{target}{session}"), &json!(true));
        }
    }

    /// Checks that the requests that were expected have come, and what each session was made of.
    pub fn assert_complete(&self) {
        let mut asked = Vec::new();
        for arrival in self.server.arrivals() {
            asked.push(format!("{} {}", arrival.method(), arrival.target()));
            if arrival.target() == "/v1/session/create" {
                let asked: Value = serde_json::from_slice(&arrival.body).expect("JSON");
                // Its behavior is `release`, the default: with `delete`, LockIndex begins again.
                assert_eq!(asked, json!({ "TTL": "30s" }));
            }
        }
        // The requests behind them were refused.
        asked.truncate(self.expected.len());
        assert_eq!(asked, self.expected);
    }
}
