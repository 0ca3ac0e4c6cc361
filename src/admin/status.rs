//! `/v1/status` and the lists beside it: what this instance is, how it is doing, and what is stuck.
//! All of it comes from memory, so that an outage of the store delays none of it.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::Uri;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::AdminState;
use super::api::{
    InstanceList, Json, RouteView, StatusView, UnknownOutcomes, WaitingList, rejections,
};
use super::marks::{limit, query};
use super::problem::AdminProblem;
use crate::build_info::{COMMIT, VERSION};
use crate::config::{Settings, StoreTarget};
use crate::fencing::overview::{Busy, BusyResource};
use crate::json_values::{rfc3339, wall_clock};

/// The configuration in force, and when it was read.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    settings: Arc<Settings>,
    at: SystemTime,
    /// Fields whose new values need a restart.
    kept: Vec<String>,
}

impl LoadedConfig {
    /// Read just now.
    #[must_use]
    pub fn now(settings: Arc<Settings>, kept: Vec<String>) -> Self {
        Self {
            settings,
            at: wall_clock(),
            kept,
        }
    }
}

/// `GET /v1/status`.
pub async fn status(State(state): State<AdminState>) -> Json<StatusView> {
    Json(view(&state))
}

/// The state of this instance.
pub(super) fn view(state: &AdminState) -> StatusView {
    let loaded = state.loaded.borrow().clone();
    let settings = &loaded.settings;
    let started = state.readiness.started;
    let routes = settings.routes.iter().map(|route| RouteView {
        route: route.label().to_owned(),
        path: route.path.to_string(),
        mode: route.mode,
        resource: route.key.as_ref().map(|key| key.as_str().to_owned()),
    });
    let lease = state.fencing.lease().remaining();
    StatusView {
        version: VERSION.to_owned(),
        commit: COMMIT.to_owned(),
        started: rfc3339(started),
        uptime_seconds: started.elapsed().unwrap_or_default().as_secs(),
        ready: state.readiness.report(),
        namespace: settings.store.namespace.clone(),
        store_kind: match settings.store.target {
            StoreTarget::Sqlite { .. } => "sqlite",
            StoreTarget::Postgres(_) => "postgres",
        }
        .to_owned(),
        lease_remaining_seconds: lease.map(|left| left.as_secs_f64()),
        counts: state.fencing.busy_counts(),
        routes: routes.collect(),
        log_level: state.log.now().to_string(),
        config_loaded: rfc3339(loaded.at),
        config_digest: loaded.settings.document.digest(),
    }
}

/// `GET /v1/config`.
#[derive(Serialize)]
pub struct ConfigView {
    loaded_at: String,
    kept: Vec<String>,
    config: Value,
}

/// `GET /v1/config`.
pub async fn config(State(state): State<AdminState>) -> Json<ConfigView> {
    let loaded = state.loaded.borrow().clone();
    Json(ConfigView {
        loaded_at: rfc3339(loaded.at),
        kept: loaded.kept,
        config: loaded.settings.document.0.clone(),
    })
}

/// `GET /v1/instances`.
pub async fn instances(State(state): State<AdminState>) -> Json<InstanceList> {
    Json(InstanceList {
        instances: state.fencing.instances(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    after: Option<String>,
    limit: Option<u16>,
}

/// One page of the busy resources, where the next one begins, and its limit.
fn page(
    state: &AdminState,
    kind: Busy,
    uri: &Uri,
) -> Result<(Vec<BusyResource>, Option<String>, usize), AdminProblem> {
    let query: PageQuery = query(uri)?;
    let limit = limit(query.limit)?.into();
    let mut busy = state.fencing.busy(kind);
    if let Some(after) = &query.after {
        busy.retain(|one| one.resource.as_str() > after.as_str());
    }
    let more = busy.len() > limit;
    busy.truncate(limit);
    let last = busy.last().filter(|_| more);
    let next = last.map(|one| one.resource.to_string());
    Ok((busy, next, limit))
}

/// `GET /v1/waiting`.
pub async fn waiting(
    State(state): State<AdminState>,
    uri: Uri,
) -> Result<Json<WaitingList>, AdminProblem> {
    let (waiting, next, _) = page(&state, Busy::Waiting, &uri)?;
    Ok(Json(WaitingList { waiting, next }))
}

/// `GET /v1/unknown`.
pub async fn unknown(
    State(state): State<AdminState>,
    uri: Uri,
) -> Result<Json<UnknownOutcomes>, AdminProblem> {
    let (open, next, limit) = page(&state, Busy::Unknown, &uri)?;
    let unknown = rejections(state.rejections.latest_unknown(None, limit));
    Ok(Json(UnknownOutcomes {
        open,
        next,
        unknown,
    }))
}
