//! The proxy that most people write first: it checks the token and forwards. The check is right (a
//! mark per resource, under a lock, older tokens refused) and it is not enough: nothing keeps the
//! order between the check and the arrival. The third story shows that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use serde_json::{Value, json};

use super::http::{Call, Reply, Server, reply};

/// Starts it in front of `upstream` (`http://host:port`).
///
/// # Errors
/// No port could be bound.
pub async fn start(upstream: String) -> anyhow::Result<Server> {
    // The section is short and holds no await: the check alone is atomic.
    let marks = Arc::new(Mutex::new(HashMap::<String, u64>::new()));
    let http = super::client();
    Server::start(move |call| {
        let (marks, http, upstream) = (Arc::clone(&marks), http.clone(), upstream.clone());
        async move {
            if let Some(refusal) = check(&marks, &call) {
                return refusal;
            }
            forward(&http, &upstream, call).await
        }
    })
    .await
}

/// The refusal, if there is one; else the mark is raised.
fn check(marks: &Mutex<HashMap<String, u64>>, call: &Call) -> Option<Reply> {
    let token = call
        .headers
        .get("x-fencing-token")
        .and_then(|value| value.to_str().ok());
    let Some(token) = token.and_then(|text| text.parse::<u64>().ok()) else {
        let reason = json!({ "error": "a token is required" });
        return Some(reply(StatusCode::PRECONDITION_REQUIRED, &reason));
    };
    let mut marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
    let mark = marks.entry(call.path.clone()).or_insert(token);
    if token < *mark {
        let reason = json!({ "error": "stale", "mark": mark.to_string() });
        return Some(reply(StatusCode::PRECONDITION_FAILED, &reason));
    }
    *mark = token;
    None
}

async fn forward(http: &reqwest::Client, upstream: &str, call: Call) -> Reply {
    let url = format!("{upstream}{}", call.path);
    let sent = http.request(call.method, url).body(call.body).send().await;
    let answer = match sent {
        Ok(answer) => answer,
        Err(error) => {
            return reply(
                StatusCode::BAD_GATEWAY,
                &json!({ "error": error.to_string() }),
            );
        }
    };
    let status = answer.status();
    reply(status, &answer.json::<Value>().await.unwrap_or(Value::Null))
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
            let request = crate::demo::client().put(format!("{}/orders/7", proxy.url()));
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
