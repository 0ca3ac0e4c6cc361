//! The level of the log: shown, and changed without a restart.

use axum::Extension;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};

use super::AdminState;
use super::api::Json;
use super::auth::MayWrite;
use super::marks::parse;
use super::peer::AdminPeer;
use super::problem::{AdminProblem, INTERNAL, MALFORMED};
use crate::config::LogLevel;

/// The body of `POST /v1/log-level`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLevelBody {
    level: String,
}

/// The answer to both.
#[derive(Serialize)]
pub struct LogLevelView {
    level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// `GET /v1/log-level`.
pub async fn view(State(state): State<AdminState>) -> Json<LogLevelView> {
    let level = state.log.now().to_string();
    let before = None;
    Json(LogLevelView { level, before })
}

/// `POST /v1/log-level`.
pub async fn set(
    State(state): State<AdminState>,
    Extension(_): Extension<MayWrite>,
    request: Request,
) -> Result<Json<LogLevelView>, AdminProblem> {
    let cause = format!("POST /v1/log-level by {}", AdminPeer::of(&request).text);
    let body: LogLevelBody = parse(request.into_body()).await?;
    let level = LogLevel::parse(&body.level)
        .map_err(|error| MALFORMED.detail(format!("level: {}.", error.replace('\n', "; "))))?;
    let before = state.log.set(level.clone(), &cause);
    let before =
        before.map_err(|error| INTERNAL.detail(format!("The log level is as it was: {error}.")))?;
    let (level, before) = (level.to_string(), Some(before.to_string()));
    Ok(Json(LogLevelView { level, before }))
}
