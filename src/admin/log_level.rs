//! What the log shows, and another level for it, without a restart.

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use axum::{Extension, response::Response};
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
struct LogLevelView {
    level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// `GET /v1/log-level`.
pub async fn view(State(state): State<AdminState>) -> Response {
    let level = state.log.now().to_string();
    Json(LogLevelView {
        level,
        before: None,
    })
    .into_response()
}

/// `POST /v1/log-level`.
pub async fn set(
    State(state): State<AdminState>,
    Extension(_): Extension<MayWrite>,
    request: Request,
) -> Result<Response, AdminProblem> {
    let cause = format!("POST /v1/log-level by {}", AdminPeer::of(&request).text);
    let body: LogLevelBody = parse(request.into_body()).await?;
    let level = LogLevel::parse(&body.level)
        .map_err(|error| MALFORMED.detail(format!("level: {error}.")))?;
    let before = state.log.set(level.clone(), &cause);
    let before =
        before.map_err(|error| INTERNAL.detail(format!("The log level is as it was: {error}.")))?;
    let view = LogLevelView {
        level: level.to_string(),
        before: Some(before.to_string()),
    };
    Ok(Json(view).into_response())
}
