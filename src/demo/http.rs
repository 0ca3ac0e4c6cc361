//! The demo's own services: axum on a loopback port that the kernel picks, JSON in and out.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A JSON answer, with a line end for readers at a terminal.
pub struct JsonReply(pub StatusCode, pub Value);

impl JsonReply {
    /// A refusal with its reason.
    pub fn error(status: StatusCode, reason: &str) -> Self {
        Self(status, json!({ "error": reason }))
    }
}

impl IntoResponse for JsonReply {
    fn into_response(self) -> Response {
        let Self(status, body) = self;
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (status, kind, format!("{body}\n")).into_response()
    }
}

/// The request's body as JSON, whatever its type: `curl -d` announces a form. An empty one is
/// `null`.
pub struct JsonBody(pub Value);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = JsonReply;

    async fn from_request(request: Request, state: &S) -> Result<Self, JsonReply> {
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| JsonReply::error(rejection.status(), &rejection.body_text()))?;
        if body.is_empty() {
            return Ok(Self(Value::Null));
        }
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let reason = format!("the body is not JSON: {error}");
            JsonReply::error(StatusCode::BAD_REQUEST, &reason)
        })
    }
}

/// A running server. Dropping it ends it.
#[must_use]
pub struct Server {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds a free loopback port and serves these routes.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start(routes: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("cannot bind a loopback port")?;
        let addr = listener
            .local_addr()
            .context("a bound port has no address")?;
        let task = tokio::spawn(async move {
            // It accepts for good.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { addr, task })
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
