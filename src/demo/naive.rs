//! The proxy that most developers write first: it checks the token and forwards. The check is right
//! (a mark per resource, under a lock, older tokens refused), but not enough: nothing keeps the
//! order between the check and the arrival. The third story shows that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};

use super::http::{JsonReply, Server};

struct Naive {
    /// `http://host:port`
    upstream: String,
    http: reqwest::Client,
    /// The section is short and holds no await: the check alone is atomic.
    marks: Mutex<HashMap<String, u64>>,
}

/// Starts it in front of `upstream` (`http://host:port`).
///
/// # Errors
/// No port could be bound.
pub async fn start(upstream: String) -> anyhow::Result<Server> {
    let naive = Naive {
        upstream,
        http: super::http_client::client(),
        marks: Mutex::default(),
    };
    let routes = Router::new().fallback(handle).with_state(Arc::new(naive));
    Server::start(routes).await
}

async fn handle(
    State(naive): State<Arc<Naive>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<JsonReply, JsonReply> {
    naive.check(&headers, uri.path())?;
    naive.forward(method, uri.path(), body).await
}

impl Naive {
    /// Raises the mark, or says why not.
    fn check(&self, headers: &HeaderMap, path: &str) -> Result<(), JsonReply> {
        let token = headers.get("x-fencing-token");
        let token: Option<u64> = token.and_then(|value| value.to_str().ok()?.parse().ok());
        let required =
            || JsonReply::error(StatusCode::PRECONDITION_REQUIRED, "a token is required");
        let token = token.ok_or_else(required)?;
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = marks.entry(path.to_owned()).or_insert(token);
        if token < *mark {
            let reason = json!({ "error": "stale", "mark": mark.to_string() });
            return Err(JsonReply(StatusCode::PRECONDITION_FAILED, reason));
        }
        *mark = token;
        Ok(())
    }

    async fn forward(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<JsonReply, JsonReply> {
        let url = format!("{}{path}", self.upstream);
        let sent = self.http.request(method, url).body(body).send().await;
        let gone =
            |error: reqwest::Error| JsonReply::error(StatusCode::BAD_GATEWAY, &error.to_string());
        let answer = sent.map_err(gone)?;
        let status = answer.status();
        Ok(JsonReply(
            status,
            answer.json::<Value>().await.unwrap_or(Value::Null),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::legacy::Legacy;

    #[tokio::test]
    async fn the_check_itself_is_right() {
        let api = Legacy::start().await.expect("starts");
        let proxy = start(api.url()).await.expect("starts");
        let put = |token: Option<&'static str>| {
            let request =
                crate::demo::http_client::client().put(format!("{}/orders/7", proxy.url()));
            let request = request.json(&json!({ "by": token }));
            match token {
                Some(token) => request.header("x-fencing-token", token).send(),
                None => request.send(),
            }
        };
        for (token, status) in [
            (Some("9"), 200),
            (Some("10"), 200),
            (Some("9"), 412),
            (Some("10"), 200),
            (None, 428),
        ] {
            assert_eq!(
                put(token).await.expect("answers").status(),
                status,
                "{token:?}"
            );
        }
    }
}
