//! `fencepost demo --serve`: the program as a client's tests use it.

use std::net::SocketAddr;

use serde_json::Value;

use super::client::{Answer, get, request};
use super::process::Process;
use super::proxy::fencepost;
use super::wait::eventually;

/// A running conformance server. Killed when dropped.
pub struct Conformance {
    pub process: Process,
    pub address: SocketAddr,
}

impl Conformance {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let mut command = fencepost();
        command.args(["demo", "--serve", "--listen", "127.0.0.1:0"]);
        let mut process = Process::start(&mut command);
        let address = eventually("the conformance server to listen", || {
            assert!(process.ended().is_none(), "it ended instead of listening");
            let lines = process.lines();
            let mut lines = lines.iter();
            std::future::ready(lines.find_map(|line| line.split_once("http://")?.1.parse().ok()))
        })
        .await;
        Self { process, address }
    }

    /// The base URL of a run.
    pub fn url(&self, scenario: &str, run: &str) -> String {
        format!("http://{}/{scenario}/{run}", self.address)
    }

    pub async fn verdict(&self, scenario: &str, run: &str) -> Value {
        let answer = get(&format!("/verdict/{scenario}/{run}"))
            .send(self.address)
            .await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer.json()
    }

    /// The names of all scenarios.
    pub async fn scenarios(&self) -> Vec<String> {
        let list = get("/").header("Accept", "application/json");
        let list = list.send(self.address).await.json();
        let rows = list.as_array().expect("a list");
        let name = |row: &Value| row["name"].as_str().expect("a name").to_owned();
        rows.iter().map(name).collect()
    }

    /// One request of a run; an error: no answer came.
    pub async fn send(
        &self,
        (scenario, run): (&str, &str),
        (method, target): (&str, &str),
        fields: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<Answer> {
        let mut asks = request(method, &format!("/{scenario}/{run}{target}")).body(body);
        for (name, value) in fields {
            asks = asks.header(name, value);
        }
        asks.attempt(self.address).await
    }
}
