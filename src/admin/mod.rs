//! The admin port: probes, metrics, and the marks for operators and scripts. Probes and metrics are
//! open. Reads below `/v1` are open on the loopback and over a Unix socket; elsewhere they need
//! `Authorization: Bearer <the content of admin.read_token_file>`. Writes need that of
//! `admin.token_file`, always.
//!
//! | request | answer |
//! |---|---|
//! | `GET /livez` | 200 `{"live":true,"version":"0.1.0"}` |
//! | `GET /readyz` | 200 or 503, [`ReadyReport`](api::ReadyReport) |
//! | `GET /drained` | 200 `{"drained":true}` once it has drained; waits for it; 503 `not-draining` where none begins within 10 seconds |
//! | `GET /metrics` | Prometheus text 0.0.4 |
//! | `GET /v1/marks?prefix=&after=&limit=` | `{"marks":[mark…],"next":"order:9"}`; `next` is the `after` of the next page, or null |
//! | `GET /v1/marks/{resource}` | mark, and beside its members `instance` (that answers), `in_flight`, `waiting`, `unknown`, `epochs`, `rejections`, `latest_unknown`, `audit` |
//! | `POST /v1/marks/{resource}/advance` | `{"token":"43"}` → `{"resource","outcome":"advanced"\|"current","mark"}`; 412 `stale-token` |
//! | `POST /v1/marks/{resource}/override` | `{"token":"7","reason":"…"}` → `{"resource","outcome":"overridden","before","mark","era"}`; 409 `epochs-open`, 404 `no-mark` |
//! | `POST /v1/marks/{resource}/resolve` | `{"id":"…","reason":"…"}` → `{"resource","outcome":"resolved","id"}`; 404 `no-such-unknown` |
//! | `GET /v1/operations?prefix=&limit=` | `{"operations":[operation…],"more":false}`: the operations whose outcome is not known, in the order of keys |
//! | `POST /v1/operations/resolve` | `{"resource":"…","operation":"…","done":true,"status":201,"reason":"…"}` → `{"resource","operation","done","status"}`; 409 `refused` while it may be in flight, 404 `no-such-unknown` |
//! | `GET /v1/requests?limit=` | `{"requests":[request…],"total":3}`: the requests in progress, the oldest first |
//! | `GET /v1/rejections?limit=` | `{"rejections":[rejection…]}`, the latest first |
//! | `GET /v1/unknown?prefix=&limit=&after=` | `{"open":[busy…],"next":null,"unknown":[rejection…]}`: `open`, the resources with unknown outcomes that have not settled; `unknown`, the latest requests that were sent and whose outcome was not known, settled or not |
//! | `GET /v1/waiting?prefix=&limit=&after=` | `{"waiting":[busy…],"next":null}`: the resources where requests wait for older ones |
//! | `GET /v1/status` | [`StatusView`](api::StatusView): instance, version, uptime, readiness, store, lease, routes, and how much is under way |
//! | `GET /v1/instances` | `{"instances":[{"id","state":"this"\|"alive"\|"dead","silent_seconds","settles_in_seconds"}…]}` as this instance sees them |
//! | `GET /v1/config` | `{"loaded_at","kept":[field…],"config":{…}}`: the file with flags and environment variables over it, without secrets; `kept`: fields whose new values need a restart |
//!
//! A mark is
//! `{"resource":"order:42","mark":"43","spent":false,"era":0,"since":"2025-01-31T12:00:00.000Z"}`;
//! a busy resource `{"resource","in_flight","waiting","unknown":[unknown…]}`, in the order of keys;
//! an unknown outcome `{"id","token","settles_in_seconds","instance","inherited"}`
//! (`settles_in_seconds` is null while the instance lives elsewhere); an epoch
//! `{"instance","number","token"}`; an operation
//! `{"resource","operation","attempt","token","instance","settled","since"}`; an audit entry
//! `{"resource","action","before","after","reason","actor","at"}`; a rejection
//! `{"at","route","resource","token","mark","gap","outcome","status","method","path","client",
//! "forwarded_for","user_agent","request_id","trace_id","times","first_at"}`, which stands for
//! `times` alike since `first_at`; a request in progress
//! `{"age_seconds","waits_for","older":[token…],"ends_in_seconds","route","resource","token",
//! "client","method","path","forwarded_for","user_agent","request_id","trace_id"}`. Tokens, marks and gaps are JSON strings.
//! Bodies may name an `actor` for the audit table; unknown members are refused.
//!
//! `{resource}` is the rest of the raw path (less the verb of a POST), percent-decoded once: a key
//! may be written with its slashes as they are or as `%2F`, and a `%` of its own is `%25`.
//!
//! Errors are `application/problem+json` (RFC 9457). The page at `/` reads `/v1` by script.

pub(crate) mod api;
mod auth;
mod listener;
mod loaded;
mod marks;
mod operations;
mod page;
mod problem;
mod readiness;
mod status;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{from_fn, map_response};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tokio::sync::watch;

use self::auth::{Access, AdminPeer};
pub use self::listener::serve;
pub use self::loaded::LoadedConfig;
use self::problem::{METHOD, NOT_FOUND};
pub use self::readiness::Readiness;
use crate::active_requests::ActiveRequests;
use crate::fencing::Fencing;
use crate::metrics::Metrics;
use crate::rejections::Rejections;
use crate::store::routes::RouteRecord;

/// Shared by the handlers.
#[derive(Clone)]
pub struct AdminState {
    pub fencing: Arc<Fencing>,
    pub metrics: Arc<Metrics>,
    pub rejections: Arc<Rejections>,
    pub active: Arc<ActiveRequests>,
    pub readiness: Arc<Readiness>,
    pub routes: Arc<RouteRecord>,
    pub started: SystemTime,
    /// A reload changes it.
    pub loaded: watch::Receiver<LoadedConfig>,
}

/// The admin port's routes and layers. Probes and metrics come from memory, and do not wait for
/// other reads.
pub fn router(state: AdminState) -> Router {
    let access = Access::new(state.loaded.clone(), Arc::clone(&state.metrics));
    let guard = move |Extension(peer): Extension<AdminPeer>, request: Request, next| {
        Arc::clone(&access).guard(peer, request, next)
    };
    Router::new()
        .route("/v1/marks", get(marks::list))
        .route("/v1/marks/{*rest}", get(marks::view).post(marks::act))
        .route("/v1/prune", post(marks::prune))
        .route("/v1/operations", get(operations::list))
        .route("/v1/operations/resolve", post(operations::resolve))
        .route("/v1/requests", get(status::requests))
        .route("/v1/rejections", get(status::rejected))
        .route("/v1/unknown", get(status::unknown))
        .route("/v1/status", get(status::status))
        .route("/v1/instances", get(status::instances))
        .route("/v1/waiting", get(status::waiting))
        .route("/v1/config", get(status::config))
        .layer(from_fn(guard))
        .merge(page::routes())
        .route("/livez", get(status::livez))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .route("/drained", get(status::drained))
        .fallback(async || {
            NOT_FOUND.detail(
                "The admin port serves a page at /, /livez, /readyz, /drained, /metrics and, \
                 below /v1, what docs/metrics.md describes.",
            )
        })
        .method_not_allowed_fallback(async || {
            METHOD.detail(
                "Reads are GET; writes are POST /v1/marks/{resource}/advance, …/override and \
                 …/resolve, POST /v1/prune and POST /v1/operations/resolve.",
            )
        })
        .with_state(state)
        .layer(map_response(async |mut response: Response| {
            let no_store = HeaderValue::from_static("no-store");
            let headers = response.headers_mut();
            headers.insert(header::CACHE_CONTROL, no_store);
            response
        }))
}
