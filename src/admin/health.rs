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
use crate::build_info::VERSION;
use crate::metrics::Metrics;

/// `GET /livez`: the process runs and its runtime schedules tasks. It checks nothing else, because
/// a restart repairs no store.
pub async fn livez() -> Json<Value> {
    Json(json!({ "live": true, "version": VERSION }))
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

/// How long a drain may take to begin once a client waits for its end. A pod that stops signals all
/// its containers at once. If only the upstream's container restarts, no drain begins.
const BEGINNING: Duration = Duration::from_secs(10);

/// `GET /drained`: 200 once the proxy has drained; the answer waits for that. It is a read, and
/// does not start a drain. It is for the `preStop` hook of the upstream, which must end after the
/// proxy's last request.
///
/// `early` bounds the requests that come before any drain has begun. During a drain, every request
/// may wait.
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
pub async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    state.fencing.refresh_gauges();
    let text = state.metrics.encode(Instant::now());
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text)
}
