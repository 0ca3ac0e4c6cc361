//! A worker: an ordinary HTTP client that takes a lock, does its job, and sends its token along. It
//! puts its requests and their answers on the timeline.

use std::time::Duration;

use anyhow::Context as _;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::screen::{Lane, Timeline};
use super::servers::{LEASE, Servers, client};

/// How often a worker that waits for a lock asks again.
const ASK_AGAIN: Duration = Duration::from_millis(40);

/// The answer to a write.
pub(super) struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

/// Worker A or worker B, under a lock.
pub(super) struct Worker {
    lane: Lane,
    http: reqwest::Client,
    timeline: Timeline,
    /// The URL of the API itself, or of the proxy in front of it.
    target: String,
    token: u64,
}

impl Worker {
    /// A worker with the token of a grant.
    pub(super) fn new(lane: Lane, timeline: &Timeline, target: &str, token: u64) -> Self {
        Self {
            lane,
            http: client(),
            timeline: *timeline,
            target: target.to_owned(),
            token,
        }
    }

    /// Acquires the lock, waiting for as long as another worker holds it.
    pub(super) async fn acquire(
        lane: Lane,
        timeline: &Timeline,
        target: &str,
        servers: &Servers,
    ) -> Self {
        let text = format!("acquire, for {:.1} s", LEASE.as_secs_f64());
        timeline.arrow(lane, Lane::Lock, &text);
        let answered = |text: String| timeline.arrow(Lane::Lock, lane, &text);
        let name = format!("{lane:?}");
        let mut waited = false;
        loop {
            match servers.acquire(&name) {
                Ok(token) => {
                    answered(format!("granted: token {token}"));
                    return Self::new(lane, timeline, target, token);
                }
                Err(holder) if !waited => answered(format!("{holder} holds it: {name} asks again")),
                Err(_) => {}
            }
            waited = true;
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    pub(super) async fn charge(&self, path: &str, amount: i64) -> anyhow::Result<Answer> {
        // A repetition sends the same request.
        let body = json!({ "amount": amount });
        let text = format!("take {amount}");
        self.write(Method::POST, path, &body, &text).await
    }

    pub(super) async fn put_order(&self, path: &str, status: &str) -> anyhow::Result<Answer> {
        let body = json!({ "status": status, "by": format!("{:?}", self.lane) });
        self.write(Method::PUT, path, &body, &order(&body)).await
    }

    /// Puts both the write and its answer on the timeline.
    async fn write(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        summary: &str,
    ) -> anyhow::Result<Answer> {
        let (lane, timeline, token) = (self.lane, &self.timeline, self.token);
        let text = format!("{method} {path} ({token}): {summary}");
        timeline.arrow(lane, timeline.entry(), &text);
        let request = self.http.request(method, format!("{}{path}", self.target));
        let request = request.header("x-fencing-operation", format!("{path}: {summary}"));
        let sent = request.header("x-fencing-token", token).json(body).send();
        let response = sent.await.context("a worker got no answer")?;
        let status = response.status();
        // fencepost's own answer, not the API's.
        let outcome = response.headers().get("x-fencing-outcome").cloned();
        let body: Value = response.json().await.unwrap_or(Value::Null);
        let code = status.as_u16();
        if let Some(outcome) = outcome {
            let mark = body["mark"].as_str();
            let mark = mark.map(|mark| format!(": {token} is below the mark, {mark}"));
            let (outcome, mark) = (outcome.to_str()?, mark.unwrap_or_default());
            timeline.arrow(Lane::Middle, lane, &format!("{code} {outcome}{mark}"));
        } else {
            let text = format!("{code} to {lane:?}'s {token}: done");
            timeline.arrow(Lane::Api, lane, &text);
        }
        Ok(Answer { status, body })
    }
}

/// A short form of an order: `"paid" by A`.
pub(super) fn order(order: &Value) -> String {
    let by = order["by"].as_str().unwrap_or("?");
    format!("{} by {by}", order["status"])
}
