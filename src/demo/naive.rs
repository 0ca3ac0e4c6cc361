//! The proxy that most developers write first: it checks the token and forwards. The check is right
//! (a mark per resource, under a lock, older tokens refused), but not enough: nothing keeps the
//! order between the check and the arrival. The third story shows that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};

use super::http::{client, reply, serve};

struct Naive {
    /// `http://host:port`
    upstream: String,
    http: reqwest::Client,
    /// The section is short and holds no await: the check alone is atomic.
    marks: Mutex<HashMap<String, u64>>,
}

/// Starts it in front of `upstream` (`http://host:port`). Returns its URL.
pub(super) async fn start(upstream: String) -> anyhow::Result<String> {
    let (http, marks) = (client(), Mutex::default());
    let naive = Arc::new(Naive {
        upstream,
        http,
        marks,
    });
    serve(Router::new().fallback(handle).with_state(naive)).await
}

async fn handle(
    State(naive): State<Arc<Naive>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let error = |status, reason: &str| reply(status, &json!({ "error": reason }));
    let token = headers.get("x-fencing-token");
    let Some(token) = token.and_then(|value| value.to_str().ok()?.parse().ok()) else {
        return error(StatusCode::PRECONDITION_REQUIRED, "a token is required");
    };
    if !naive.check(uri.path(), token) {
        return error(StatusCode::PRECONDITION_FAILED, "a newer token was seen");
    }
    let url = format!("{}{}", naive.upstream, uri.path());
    match naive.http.request(method, url).body(body).send().await {
        Ok(answer) => {
            let status = answer.status();
            reply(status, &answer.json().await.unwrap_or(Value::Null))
        }
        Err(gone) => error(StatusCode::BAD_GATEWAY, &gone.to_string()),
    }
}

impl Naive {
    /// Raises the mark, unless it is above this token.
    fn check(&self, path: &str, token: u64) -> bool {
        let mut marks = self.marks.lock().expect("not poisoned");
        let mark = marks.entry(path.to_owned()).or_insert(token);
        *mark = token.max(*mark);
        token == *mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::legacy::Legacy;

    #[tokio::test]
    async fn the_check_itself_is_right() {
        let api = Legacy::start().await.expect("starts");
        let proxy = start(api.url).await.expect("starts");
        let put = |token: Option<&'static str>| {
            let request = client().put(format!("{proxy}/orders/7"));
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
            let answer = put(token).await.expect("answers");
            assert_eq!(answer.status(), status, "{token:?}");
        }
    }
}
