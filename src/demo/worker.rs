//! A worker: an ordinary HTTP client that takes a lock, does its job, and sends its token along. It
//! puts its requests and their answers on the timeline.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::screen::{Lane, Timeline, Tone};

/// How often a worker that waits for a lock asks again.
const ASK_AGAIN: Duration = Duration::from_millis(40);

/// An answer.
#[derive(Clone, Debug)]
pub struct ApiAnswer {
    pub status: StatusCode,
    /// `X-Fencing-Outcome`: fencepost's own answer, not the API's.
    pub outcome: Option<String>,
    pub body: Value,
}

/// Worker A or worker B.
pub struct Worker {
    lane: Lane,
    http: reqwest::Client,
    timeline: Timeline,
    /// The target of its requests.
    target: String,
    /// True if something stands between it and the API.
    fenced: bool,
    token: Option<u64>,
}

impl Worker {
    /// A worker that talks to `target`: the API itself, or what stands in front of it.
    pub fn new(lane: Lane, timeline: &Timeline, target: &str, fenced: bool) -> Self {
        Self {
            lane,
            http: super::http_client::client(),
            timeline: timeline.clone(),
            target: target.to_owned(),
            fenced,
            token: None,
        }
    }

    /// The same, with a token from an earlier grant.
    pub fn with_token(mut self, token: u64) -> Self {
        self.token = Some(token);
        self
    }

    fn name(&self) -> &'static str {
        if self.lane == Lane::A { "A" } else { "B" }
    }

    /// Acquires a lock, waiting for as long as another holds it.
    ///
    /// # Errors
    /// The lock service does not answer, or not as it should.
    pub async fn acquire(&mut self, lock: &str, ttl: Duration) -> anyhow::Result<()> {
        let ask = json!({ "owner": self.name(), "ttl_ms": u64::try_from(ttl.as_millis())? });
        let text = format!("acquire, for {:.1} s", ttl.as_secs_f64());
        self.timeline
            .arrow(self.lane, Lane::Lock, Tone::Plain, &text);
        let mut waited = false;
        loop {
            let answer = self.http.post(lock).json(&ask).send().await?;
            let status = answer.status();
            let body: Value = answer.json().await?;
            match status {
                StatusCode::CREATED => {
                    let token = body["token"].as_str().context("a grant has a token")?;
                    self.token = Some(token.parse()?);
                    let text = format!("granted: token {token}");
                    self.timeline
                        .arrow(Lane::Lock, self.lane, Tone::Plain, &text);
                    return Ok(());
                }
                StatusCode::CONFLICT if !waited => {
                    waited = true;
                    let holder = body["held_by"].as_str().unwrap_or("somebody");
                    let text = format!("{holder} holds it: {} asks again", self.name());
                    self.timeline
                        .arrow(Lane::Lock, self.lane, Tone::Plain, &text);
                }
                StatusCode::CONFLICT => {}
                other => bail!("the lock service answered {other}: {body}"),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Reads.
    ///
    /// # Errors
    /// No answer, or none that is a success.
    pub async fn read(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self
            .http
            .get(format!("{}{path}", self.target))
            .send()
            .await?;
        let body = answer.error_for_status()?.json().await?;
        let text = format!("GET {path}: {}", summary(&body));
        self.timeline
            .arrow(self.lane, Lane::Api, Tone::Plain, &text);
        Ok(body)
    }

    /// Sends a write, and puts both it and its answer on the timeline.
    ///
    /// # Errors
    /// No answer.
    pub async fn write(
        &self,
        method: Method,
        path: &str,
        body: Value,
    ) -> anyhow::Result<ApiAnswer> {
        let token = self.token.context("writes under a lock")?;
        let first_stop = if self.fenced { Lane::Middle } else { Lane::Api };
        let text = format!("{method} {path} ({token}): {}", summary(&body));
        self.timeline
            .arrow(self.lane, first_stop, Tone::Plain, &text);
        let response = self
            .http
            .request(method, format!("{}{path}", self.target))
            .header("x-fencing-token", token)
            .json(&body)
            .send()
            .await
            .with_context(|| format!("{} got no answer", self.name()))?;
        let status = response.status();
        let outcome = response
            .headers()
            .get("x-fencing-outcome")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let answer = ApiAnswer {
            status,
            outcome,
            body: response.json().await.unwrap_or(Value::Null),
        };
        self.show(&answer, token);
        Ok(answer)
    }

    fn show(&self, answer: &ApiAnswer, token: u64) {
        let status = answer.status.as_u16();
        if let Some(outcome) = &answer.outcome {
            let mark = answer.body["mark"].as_str();
            let mark = mark.map(|mark| format!(": {token} is below the mark, {mark}"));
            let text = format!("{status} {outcome}{}", mark.unwrap_or_default());
            self.timeline
                .arrow(Lane::Middle, self.lane, Tone::Good, &text);
        } else {
            let text = format!("{status} to {}'s {token}: done", self.name());
            self.timeline
                .arrow(Lane::Api, self.lane, Tone::Plain, &text);
        }
    }
}

/// A short form, for the timeline.
fn summary(body: &Value) -> String {
    let word = |name: &str| body[name].as_str();
    match (body["amount"].as_i64(), word("status"), word("by")) {
        (Some(amount), _, _) => format!("take {amount}"),
        (None, Some(status), Some(by)) => format!("\"{status}\" by {by}"),
        (None, Some(status), None) => format!("\"{status}\""),
        _ => body.to_string(),
    }
}
