//! HTTP for the demo: the services on loopback ports, with JSON in and out, and a client for the
//! workers and the stories.

use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use serde_json::Value;
use tokio::net::TcpListener;

/// How long any one request of the demo may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves these routes on a free loopback port until the process ends. Returns the URL.
pub(super) async fn serve(routes: Router) -> anyhow::Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.context("cannot bind a loopback port")?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, routes).into_future());
    Ok(url)
}

/// A JSON answer, with a line end for readers at a terminal.
pub(super) fn reply(status: StatusCode, body: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, format!("{body}\n")).into_response()
}

/// A client that ignores the proxy settings of the environment.
pub(super) fn client() -> reqwest::Client {
    // reqwest wants a TLS provider even where nothing speaks TLS; another caller may have set one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .expect("a client without certificates or proxies has nothing that can fail")
}
