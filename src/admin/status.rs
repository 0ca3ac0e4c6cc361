//! The probes, the scrape, and the reads of `/v1` that need no store: what this instance is, how it
//! is doing, what was refused, and what is stuck. All of it comes from memory, so that an outage of
//! the store delays none of it.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::AdminState;
use super::api::{
    InstanceList, Json, Live, RejectionList, RequestList, RouteView, StatusView, UnknownOutcomes,
    WaitingList,
};
use super::marks::{cut, limit, list_query, query};
use super::problem::{AdminProblem, Answer, NOT_DRAINING};
use crate::build_info::{COMMIT, VERSION};
use crate::config::StoreTarget;
use crate::fencing::epochs::ResourceActivity;
use crate::fencing::operators::BusyResource;
use crate::json_values::{rfc3339, rfc3339_ms, wall_clock};
use crate::metrics::{Metrics, Outcome};

/// The hint beside a lease that has ended.
const LEASE_LAPSED: &str = "The lease of this instance has lapsed: nothing fenced is forwarded until the store \
                            has answered a renewal, or until a restart if its file was moved or replaced.";

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
    let report = state.ready();
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
pub async fn drained(State(state): State<AdminState>) -> Answer<Value> {
    let readiness = &state.readiness;
    let begun = timeout(BEGINNING, readiness.draining.cancelled()).await;
    begun.map_err(|_| {
        NOT_DRAINING.detail(
            "Nobody has told this proxy to stop, so there is no end of a drain to wait for. \
             SIGTERM does, or `fencepost drain`.",
        )
    })?;
    readiness.drained.cancelled().await;
    Ok(Json(json!({ "drained": true })))
}

/// `GET /metrics`.
pub async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    state.fencing.refresh_gauges();
    let resources = state.rejections.stale_resources(wall_clock());
    state.metrics.series.stale_resources.set(resources as u64);
    let text = state.metrics.encode();
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text)
}

/// `GET /v1/status`.
pub async fn status(State(state): State<AdminState>) -> Json<StatusView> {
    let loaded = state.loaded.borrow().clone();
    let settings = &loaded.settings;
    let routes = settings.routes.iter().map(|route| RouteView {
        route: route.label().to_owned(),
        path: route.path.to_string(),
        mode: route.mode,
        resource: route.key.as_ref().map(|key| key.as_str().to_owned()),
    });
    let lease = state.fencing.lease().remaining();
    let lapsed = lease.is_some_and(|left| left.is_zero());
    let lapsed = lapsed.then(|| LEASE_LAPSED.to_owned()).into_iter();
    let by_outcome = |counts: Vec<u64>| {
        let counts = Outcome::ALL.iter().map(Outcome::to_string).zip(counts);
        counts.filter(|(_, count)| *count > 0).collect()
    };
    let (reload_error, reload_failed) = loaded.failed.unzip();
    let operations = state.fencing.counted_unknown_operations();
    Json(StatusView {
        version: VERSION.to_owned(),
        commit: COMMIT.to_owned(),
        started: rfc3339(state.started),
        uptime_seconds: state.started.elapsed().unwrap_or_default().as_secs(),
        ready: state.ready(),
        namespace: settings.store.namespace.clone(),
        store_kind: match settings.store.target {
            StoreTarget::Sqlite { .. } => "sqlite",
            StoreTarget::Postgres(_) => "postgres",
        }
        .to_owned(),
        lease_remaining_seconds: lease.map(|left| left.as_secs_f64()),
        counts: state.fencing.busy_counts(),
        operations_unknown: operations.operations,
        operations_unknown_since: operations.since_ms.map(rfc3339_ms),
        requests: by_outcome(state.metrics.requests_by_outcome()),
        requests_last_minute: by_outcome(state.metrics.requests_of_last_minute()),
        hints: lapsed
            .chain(state.rejections.reset_hint(wall_clock()))
            .collect(),
        routes: routes.collect(),
        log_level: settings.log.level.0.to_string(),
        config_loaded: rfc3339(loaded.at),
        reload_error,
        reload_failed: reload_failed.map(rfc3339),
        config_digest: loaded.settings.digest(),
    })
}

/// `GET /v1/config`.
pub async fn config(State(state): State<AdminState>) -> Json<Value> {
    let loaded = state.loaded.borrow();
    Json(json!({
        "loaded_at": rfc3339(loaded.at),
        "kept": loaded.kept,
        "config": loaded.settings.document.0,
    }))
}

/// `GET /v1/instances`.
pub async fn instances(State(state): State<AdminState>) -> Json<InstanceList> {
    Json(InstanceList {
        instances: state.fencing.instances(),
    })
}

/// One page of the busy resources, where the next one begins, and its limit.
fn page(
    state: &AdminState,
    wanted: fn(&ResourceActivity) -> bool,
    uri: &Uri,
) -> Result<(Vec<BusyResource>, Option<String>, u16), AdminProblem> {
    let (query, limit) = list_query(uri)?;
    let mut busy = state.fencing.busy(wanted);
    busy.retain(|one| {
        let key = one.resource.as_str();
        key.starts_with(&query.prefix) && query.after.as_deref().is_none_or(|after| key > after)
    });
    let next = cut(&mut busy, limit, |one| &one.resource);
    Ok((busy, next, limit))
}

/// `GET /v1/waiting`.
pub async fn waiting(State(state): State<AdminState>, uri: Uri) -> Answer<WaitingList> {
    let (waiting, next, _) = page(&state, |activity| activity.waiting > 0, &uri)?;
    Ok(Json(WaitingList { waiting, next }))
}

/// `GET /v1/unknown`.
pub async fn unknown(State(state): State<AdminState>, uri: Uri) -> Answer<UnknownOutcomes> {
    let (open, next, limit) = page(&state, |activity| !activity.unknown.is_empty(), &uri)?;
    let unknown = state.rejections.latest(true, None, limit.into());
    Ok(Json(UnknownOutcomes {
        open,
        next,
        unknown,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitQuery {
    limit: Option<u16>,
}

/// The most requests in progress in an answer that names no limit.
const OLDEST: u16 = 50;

/// `GET /v1/requests`.
pub async fn requests(State(state): State<AdminState>, uri: Uri) -> Answer<RequestList> {
    let query: LimitQuery = query(&uri)?;
    let limit = limit(query.limit.or(Some(OLDEST)))?;
    let (requests, total) = state.active.oldest(limit.into(), &state.fencing);
    Ok(Json(RequestList { requests, total }))
}

/// `GET /v1/rejections`.
pub async fn rejected(State(state): State<AdminState>, uri: Uri) -> Answer<RejectionList> {
    let query: LimitQuery = query(&uri)?;
    let limit = limit(query.limit)?;
    let rejections = state.rejections.latest(false, None, limit.into());
    Ok(Json(RejectionList { rejections }))
}
