//! The probes and the scrape.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::AdminState;
use super::json::Json;
use super::problem::{self, AdminProblem};
use crate::metrics::Metrics;

/// `GET /livez`: the process runs and its runtime schedules tasks. Nothing else: a restart mends no store.
pub async fn livez() -> Json<Value> {
    Json(json!({ "live": true, "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /readyz`: 200 or 503, and why.
pub async fn readyz(State(state): State<AdminState>) -> Response {
    let report = state.readiness.report();
    let status = if report.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(report)).into_response()
}

/// How long a drain may take to begin once somebody waits for its end. Whoever stops a pod tells all its containers
/// at once; where only the service beside the proxy is started anew, no drain comes.
const BEGINNING: Duration = Duration::from_secs(10);

/// `GET /drained`: 200 once the proxy has drained; the answer waits for it. It is a read, and asks for nothing: it is
/// there for the `preStop` hook of the service behind the proxy, which is to end after the proxy's last request.
///
/// `early` bounds those who ask before any drain has begun. Once one has, whoever asks may wait.
pub async fn drained(State(state): State<AdminState>, early: Arc<Semaphore>) -> Response {
    let readiness = &state.readiness;
    let begun = async {
        let place = early.try_acquire();
        if place.is_err() && !readiness.report().draining {
            return Err(problem::shed());
        }
        Ok(timeout(BEGINNING, readiness.draining()).await.is_ok())
    };
    let begun = match begun.await {
        Ok(begun) => begun,
        Err(problem) => return problem.into_response(),
    };
    if !begun {
        return AdminProblem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not-draining",
            "The proxy is not draining",
            "Nobody has told this proxy to stop, so there is no end of a drain to wait for. SIGTERM does, or `fencepost drain`.",
        )
        .into_response();
    }
    readiness.drained().await;
    Json(json!({ "drained": true })).into_response()
}

/// `GET /metrics`.
pub async fn metrics(State(state): State<AdminState>) -> Response {
    state.control.refresh();
    let text = state.metrics.encode(Instant::now());
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response()
}
