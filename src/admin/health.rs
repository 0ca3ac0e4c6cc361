//! The probes and the scrape.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::timeout;

use super::AdminState;
use super::api::{Json, Live};
use super::problem::NOT_DRAINING;
use crate::build_info::VERSION;
use crate::metrics::Metrics;

/// `GET /livez`: the process runs and its runtime schedules tasks. It checks nothing else, because
/// a restart repairs no store.
pub async fn livez() -> Json<Live> {
    Json(Live {
        live: true,
        version: VERSION.to_owned(),
    })
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

/// A drain has this long to begin once a client waits for its end. A pod that stops signals all
/// its containers at once. If only the upstream's container restarts, no drain begins.
const BEGINNING: Duration = Duration::from_secs(10);

/// `GET /drained`: 200 once the proxy has drained; the answer waits for that. It is a read, and
/// does not start a drain. It is for the `preStop` hook of the upstream, which must end after the
/// proxy's last request.
pub async fn drained(State(state): State<AdminState>) -> Response {
    let readiness = &state.readiness;
    if timeout(BEGINNING, readiness.draining.cancelled())
        .await
        .is_err()
    {
        let problem = NOT_DRAINING.detail(
            "Nobody has told this proxy to stop, so there is no end of a drain to wait for. \
             SIGTERM does, or `fencepost drain`.",
        );
        return problem.into_response();
    }
    readiness.drained.cancelled().await;
    Json(json!({ "drained": true })).into_response()
}

/// `GET /metrics`.
pub async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    state.fencing.refresh_gauges();
    let text = state.metrics.encode(Instant::now());
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text)
}
