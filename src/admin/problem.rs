//! The admin API's errors: problem details (RFC 9457), like the data port's.

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::api::Json;

/// An error for the client: what went wrong, where, and what to do.
#[derive(Clone, Debug)]
pub struct AdminProblem {
    status: StatusCode,
    /// The last word of the type.
    word: &'static str,
    title: &'static str,
    detail: String,
    /// Further members of the body.
    members: Map<String, Value>,
    headers: Vec<(header::HeaderName, HeaderValue)>,
}

impl AdminProblem {
    /// A problem of type `urn:fencepost:problem:<word>`.
    pub fn new(
        status: StatusCode,
        word: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            word,
            title,
            detail: detail.into(),
            members: Map::new(),
            headers: Vec::new(),
        }
    }

    /// 400: the request itself is wrong.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "malformed-request",
            "The request is malformed",
            detail,
        )
    }

    /// 404.
    pub fn not_found(word: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, word, title, detail)
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The problem with more in its detail.
    #[must_use]
    pub fn adding(mut self, more: &str) -> Self {
        self.detail += more;
        self
    }

    /// The problem with a further member.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// The problem with a header.
    #[must_use]
    pub fn with_header(mut self, name: header::HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }
}

impl IntoResponse for AdminProblem {
    fn into_response(self) -> Response {
        let mut body = Map::new();
        body.insert(
            "type".into(),
            format!("urn:fencepost:problem:{}", self.word).into(),
        );
        body.insert("title".into(), self.title.into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("detail".into(), self.detail.into());
        body.extend(self.members);
        let mut response = (self.status, Json(Value::Object(body))).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.extend(
            self.headers
                .into_iter()
                .map(|(name, value)| (Some(name), value)),
        );
        response
    }
}

/// Gives a problem's body to the errors of layers and extractors, which are empty or plain text.
/// Keeps every answer out of caches.
pub async fn complete(request: Request, next: Next) -> Response {
    let reads = request.method().is_safe();
    let response = next.run(request).await;
    let status = response.status();
    let has_body_of_ours = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| {
            let kind = value.as_bytes();
            kind.starts_with(b"application/") || kind.starts_with(b"text/html")
        });
    let mut response = if status.as_u16() >= 400 && !has_body_of_ours {
        let allow = response.headers().get(header::ALLOW).cloned();
        let mut completed = of_status(status, reads).into_response();
        if let Some(allow) = allow {
            completed.headers_mut().insert(header::ALLOW, allow);
        }
        completed
    } else {
        response
    };
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The answer to a request beyond a limit.
pub fn shed() -> AdminProblem {
    AdminProblem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "overloaded",
        "Too many wait for this already",
        "As many requests as the admin port lets wait at once are waiting for the same thing.",
    )
}

fn of_status(status: StatusCode, reads: bool) -> AdminProblem {
    let (word, title, detail) = match status {
        StatusCode::NOT_FOUND => (
            "not-found",
            "Nothing is here",
            "The admin port serves a page at /, /livez, /readyz, /drained, /metrics and, below /v1, what docs/metrics.md describes.",
        ),
        StatusCode::METHOD_NOT_ALLOWED => (
            "method-not-allowed",
            "The method is not allowed here",
            "Reads are GET; writes are POST /v1/marks/{resource}/advance, …/override and …/resolve.",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => (
            "content-too-large",
            "The body is too large",
            "A body of the admin API fits in 16 KiB.",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (
            "overloaded",
            "The answer took too long",
            if reads {
                "The store or the proxy is too busy to answer."
            } else {
                "The store or the proxy is too busy to answer; the write may still take effect: read the mark before trying again."
            },
        ),
        _ => (
            "malformed-request",
            "The request cannot be served",
            "The request is malformed.",
        ),
    };
    AdminProblem::new(status, word, title, detail)
}
