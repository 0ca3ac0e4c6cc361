//! The probes and the scrape.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::AdminState;
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

/// `GET /metrics`.
pub async fn metrics(State(state): State<AdminState>) -> Response {
    state.control.refresh(&state.metrics);
    let text = state.metrics.encode(Instant::now());
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response()
}
