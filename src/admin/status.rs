//! `/v1/status` and the lists beside it: what this instance is, how it is doing, and what is stuck.
//! All of it comes from memory, so that an outage of the store delays none of it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::AdminState;
use super::json::{Json, UnknownJson, UnknownList, rfc3339_ms};
use super::marks::limit;
use super::problem::AdminProblem;
use super::readiness::ReadyReport;
use crate::build_info::{COMMIT, VERSION};
use crate::config::{Mode, Settings, StoreTarget};
use crate::fencing::failure_detector::{InstanceState, InstanceView};
use crate::fencing::overview::{Busy, BusyResource};

/// The configuration in force, and when it was read.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    settings: Arc<Settings>,
    at: SystemTime,
    /// Fields whose new values need a restart.
    kept: Vec<String>,
}

impl LoadedConfig {
    /// The settings in force.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The namespace of the marks.
    pub(super) fn namespace(&self) -> String {
        self.settings.store.namespace.clone()
    }

    /// Read just now.
    #[must_use]
    pub fn now(settings: Arc<Settings>, kept: Vec<String>) -> Self {
        Self {
            settings,
            #[expect(
                clippy::disallowed_methods,
                reason = "for people to read; nothing rests on it"
            )]
            at: SystemTime::now(),
            kept,
        }
    }
}

/// `GET /v1/status`.
#[derive(Serialize)]
pub struct StatusView {
    version: &'static str,
    /// `unknown` in a debug build.
    commit: &'static str,
    started: String,
    uptime_seconds: u64,
    #[serde(flatten)]
    ready: ReadyReport,
    namespace: String,
    /// `sqlite` or `postgres`.
    store_kind: &'static str,
    /// null: the lease does not end, or has ended for good.
    lease_remaining_seconds: Option<f64>,
    in_flight: usize,
    waiting: usize,
    unknown: usize,
    routes: Vec<RouteView>,
    log_level: String,
    config_loaded: String,
    /// As in `fencepost_config_info`.
    config_digest: String,
}

#[derive(Serialize)]
struct RouteView {
    route: String,
    path: String,
    mode: Mode,
    resource: Option<String>,
}

/// `GET /v1/status`.
pub async fn status(State(state): State<AdminState>) -> Json<StatusView> {
    let loaded = state.loaded.borrow().clone();
    let settings = &loaded.settings;
    let (counts, started) = (state.fencing.busy_counts(), state.readiness.started());
    let routes = settings.routes.iter().map(|route| RouteView {
        route: route.label.clone(),
        path: route.path.clone(),
        mode: route.mode,
        resource: route.key.as_ref().map(|key| key.as_str().to_owned()),
    });
    Json(StatusView {
        version: VERSION,
        commit: COMMIT,
        started: text(started),
        uptime_seconds: started.elapsed().unwrap_or_default().as_secs(),
        ready: state.readiness.report(),
        namespace: settings.store.namespace.clone(),
        store_kind: match settings.store.target {
            StoreTarget::Sqlite { .. } => "sqlite",
            StoreTarget::Postgres(_) => "postgres",
        },
        lease_remaining_seconds: state
            .fencing
            .lease()
            .remaining()
            .map(|left| left.as_secs_f64()),
        in_flight: counts.in_flight,
        waiting: counts.waiting,
        unknown: counts.unknown,
        routes: routes.collect(),
        log_level: state.log.now().to_string(),
        config_loaded: text(loaded.at),
        config_digest: loaded.settings.document.digest(),
    })
}

fn text(at: SystemTime) -> String {
    let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
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
        loaded_at: text(loaded.at),
        kept: loaded.kept,
        config: loaded.settings.document.0.clone(),
    })
}

/// `GET /v1/instances`.
#[derive(Serialize)]
pub struct InstanceList {
    instances: Vec<InstanceJson>,
}

#[derive(Serialize)]
struct InstanceJson {
    id: String,
    state: &'static str,
    silent_seconds: Option<f64>,
    settles_in_seconds: Option<f64>,
}

impl From<InstanceView> for InstanceJson {
    fn from(view: InstanceView) -> Self {
        Self {
            id: view.id,
            state: match view.state {
                InstanceState::This => "this",
                InstanceState::Alive => "alive",
                InstanceState::Dead => "dead",
            },
            silent_seconds: view.silent_for.map(|span| span.as_secs_f64()),
            settles_in_seconds: view.settles_in.map(|span| span.as_secs_f64()),
        }
    }
}

/// `GET /v1/instances`.
pub async fn instances(State(state): State<AdminState>) -> Json<InstanceList> {
    let instances = state.fencing.instances();
    Json(InstanceList {
        instances: instances.into_iter().map(InstanceJson::from).collect(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    after: Option<String>,
    limit: Option<u32>,
}

/// A resource with requests under way here.
#[derive(Serialize)]
pub struct BusyJson {
    resource: String,
    in_flight: usize,
    waiting: usize,
    unknown: Vec<UnknownJson>,
}

impl From<BusyResource> for BusyJson {
    fn from(busy: BusyResource) -> Self {
        Self {
            resource: busy.resource.to_string(),
            in_flight: busy.in_flight,
            waiting: busy.waiting,
            unknown: busy.unknown.into_iter().map(UnknownJson::from).collect(),
        }
    }
}

/// One page of the busy resources, and where the next one begins.
fn page(
    state: &AdminState,
    kind: Busy,
    query: &PageQuery,
) -> Result<(Vec<BusyJson>, Option<String>), AdminProblem> {
    let limit = usize::try_from(limit(query.limit)?).unwrap_or(usize::MAX);
    let mut busy = state.fencing.busy(kind);
    if let Some(after) = &query.after {
        busy.retain(|one| one.resource.as_str() > after.as_str());
    }
    let more = busy.len() > limit;
    busy.truncate(limit);
    let last = busy.last().filter(|_| more);
    let next = last.map(|one| one.resource.to_string());
    Ok((busy.into_iter().map(BusyJson::from).collect(), next))
}

/// `GET /v1/waiting`.
#[derive(Serialize)]
pub struct WaitingList {
    waiting: Vec<BusyJson>,
    next: Option<String>,
}

/// `GET /v1/waiting`.
pub async fn waiting(
    State(state): State<AdminState>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<WaitingList>, AdminProblem> {
    let Query(query) = query.map_err(|error| AdminProblem::malformed(error.body_text()))?;
    let (waiting, next) = page(&state, Busy::Waiting, &query)?;
    Ok(Json(WaitingList { waiting, next }))
}

/// `GET /v1/unknown`.
#[derive(Serialize)]
pub struct UnknownOutcomes {
    open: Vec<BusyJson>,
    next: Option<String>,
    #[serde(flatten)]
    latest: UnknownList,
}

/// `GET /v1/unknown`.
pub async fn unknown(
    State(state): State<AdminState>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<UnknownOutcomes>, AdminProblem> {
    let Query(query) = query.map_err(|error| AdminProblem::malformed(error.body_text()))?;
    let (open, next) = page(&state, Busy::Unknown, &query)?;
    let limit = usize::try_from(limit(query.limit)?).unwrap_or(usize::MAX);
    let latest = UnknownList::of(state.rejections.latest_unknown(None, limit));
    Ok(Json(UnknownOutcomes { open, next, latest }))
}
