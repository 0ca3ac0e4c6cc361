//! `/v1/marks`: reading marks, and the three things an operator may do to one.

use std::time::Duration;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

use super::auth::MayWrite;
use super::json::{AdvanceBody, Epoch, Json, MarkLine, MarkList, OverrideBody, ResolveBody, View};
use super::peer::AdminPeer;
use super::problem::AdminProblem;
use super::{AdminState, BODY_LIMIT};
use crate::fencing::operators::OperatorError;
use crate::routing::{Decision, ResourceKey};
use crate::store::{Override, StoreError};

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;
/// Refusals and audit rows in the view of one mark.
const LAST: u32 = 20;
/// For a request's body, from the end of its head on.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters in a reason or an actor's name.
const MAX_TEXT: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    limit: Option<u32>,
}

/// `GET /v1/marks`.
pub async fn list(
    State(state): State<AdminState>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<MarkList>, AdminProblem> {
    let Query(query) = query.map_err(|error| AdminProblem::malformed(error.body_text()))?;
    let limit = limit(query.limit)?;
    for text in std::iter::once(&query.prefix).chain(&query.after) {
        if text.chars().any(char::is_control) {
            return Err(AdminProblem::malformed(
                "`prefix` and `after` are parts of resource keys, and no key has control characters.",
            ));
        }
    }
    // One more than requested, to find out whether there is a next page.
    let mut rows = state
        .fencing
        .list(&query.prefix, query.after.as_deref(), limit + 1)
        .await?;
    let asked = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = rows.len() > asked;
    rows.truncate(asked);
    let next = rows
        .last()
        .filter(|_| more)
        .map(|row| row.resource.as_str().to_owned());
    Ok(Json(MarkList {
        marks: rows.into_iter().map(MarkLine::from).collect(),
        next,
    }))
}

/// The limit of a list, as it was asked for.
pub(super) fn limit(asked: Option<u32>) -> Result<u32, AdminProblem> {
    match asked {
        None => Ok(DEFAULT_LIMIT),
        Some(limit @ 1..=MAX_LIMIT) => Ok(limit),
        Some(limit) => Err(AdminProblem::malformed(format!(
            "`limit` is {limit}; it is 1 to {MAX_LIMIT}."
        ))),
    }
}

/// `GET /v1/marks/{resource}`.
pub async fn view(State(state): State<AdminState>, uri: Uri) -> Result<Json<View>, AdminProblem> {
    let resource = key(behind_marks(&uri)?)?;
    let view = state
        .fencing
        .view(&resource)
        .await?
        .ok_or_else(|| no_mark(&resource))?;
    let audit = state.fencing.audit(&resource, LAST).await?;
    let limit = usize::try_from(LAST).unwrap_or(usize::MAX);
    let rejections = state.rejections.latest(Some(&resource), limit);
    let unknown = state.rejections.latest_unknown(Some(&resource), limit);
    Ok(Json(View::new(
        &state.fencing.instance(),
        view,
        rejections,
        unknown,
        audit,
    )))
}

/// `POST /v1/marks/{resource}/{verb}`.
pub async fn act(
    State(state): State<AdminState>,
    Extension(_): Extension<MayWrite>,
    request: Request,
) -> Result<Response, AdminProblem> {
    let peer = AdminPeer::of(&request).text;
    let (head, body) = request.into_parts();
    // The verb is split off the raw path, so that a key which ends in `/advance` can be named:
    // `…%2Fadvance`.
    let (raw_key, verb) = behind_marks(&head.uri)?
        .rsplit_once('/')
        .ok_or_else(no_verb)?;
    let act = match verb {
        "advance" => Act::Advance(parse(body).await?),
        "override" => Act::Override(parse(body).await?),
        "resolve" => Act::Resolve(parse(body).await?),
        _ => return Err(no_verb()),
    };
    let resource = key(raw_key)?;
    // In a task of its own, so that an action that has begun is completed and audited even if the
    // client leaves or the time is up.
    let task = tokio::spawn(async move { act.run(&state, &resource, &peer).await });
    task.await.unwrap_or_else(|error| {
        tracing::error!("an operator's act ended abnormally: {error}");
        Err(AdminProblem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal-error",
            "The proxy failed",
            "What was asked may have taken effect: read the mark before trying again.",
        ))
    })
}

enum Act {
    Advance(AdvanceBody),
    Override(OverrideBody),
    Resolve(ResolveBody),
}

impl Act {
    async fn run(
        self,
        state: &AdminState,
        resource: &ResourceKey,
        peer: &str,
    ) -> Result<Response, AdminProblem> {
        match self {
            Self::Advance(body) => advance(state, resource, &body, peer).await,
            Self::Override(body) => override_mark(state, resource, &body, peer).await,
            Self::Resolve(body) => resolve(state, resource, &body, peer).await,
        }
    }
}

async fn advance(
    state: &AdminState,
    resource: &ResourceKey,
    body: &AdvanceBody,
    peer: &str,
) -> Result<Response, AdminProblem> {
    check_text("reason", &body.reason)?;
    let actor = actor(&body.actor, peer)?;
    let token = body.token.0;
    let (outcome, mark) = match state
        .fencing
        .advance(resource, token, &body.reason, &actor)
        .await?
    {
        Decision::Advanced => ("advanced", token),
        Decision::Current => ("current", token),
        Decision::Stale { mark } => {
            return Err(AdminProblem::new(
                StatusCode::PRECONDITION_FAILED,
                "stale-token",
                "The token is stale",
                format!("The mark is {mark}, above {token}. Only an override lowers it."),
            )
            .with("resource", resource.as_str())
            .with("token", token.to_string())
            .with("mark", mark.to_string())
            .with("gap", token.gap_to(mark).to_string()));
        }
    };
    tracing::info!(%resource, %token, %actor, reason = %body.reason, outcome, "an operator advanced a mark");
    let answer = json!({
        "resource": resource.as_str(),
        "outcome": outcome,
        "mark": mark.to_string(),
    });
    Ok(Json(answer).into_response())
}

async fn override_mark(
    state: &AdminState,
    resource: &ResourceKey,
    body: &OverrideBody,
    peer: &str,
) -> Result<Response, AdminProblem> {
    require_text("reason", &body.reason)?;
    let actor = actor(&body.actor, peer)?;
    let token = body.token.0;
    match state
        .fencing
        .override_mark(resource, token, &body.reason, &actor)
        .await?
    {
        Override::Done { before, era } => {
            state.metrics.series.overrides.inc();
            tracing::warn!(%resource, %before, after = %token, %actor, reason = %body.reason, "an operator overrode a mark");
            let answer = json!({
                "resource": resource.as_str(),
                "before": before.to_string(),
                "mark": token.to_string(),
                "era": era,
            });
            Ok(Json(answer).into_response())
        }
        Override::EpochsOpen(epochs) => {
            let epochs: Vec<_> = epochs.into_iter().map(Epoch::from).collect();
            Err(AdminProblem::new(
                StatusCode::CONFLICT,
                "epochs-open",
                "Requests may be in flight",
                "Epochs of this resource are open, so an override could let an older request in between. \
                 They close about a minute after the last request, or as soon as its requests have ended once the mark is above \
                 their token: an advance shuts them out. Unknown outcomes have to settle or be resolved first.",
            )
            .with("resource", resource.as_str())
            .with("epochs", serde_json::to_value(epochs).unwrap_or_default()))
        }
        Override::Absent => Err(no_mark(resource)),
    }
}

async fn resolve(
    state: &AdminState,
    resource: &ResourceKey,
    body: &ResolveBody,
    peer: &str,
) -> Result<Response, AdminProblem> {
    require_text("id", &body.id)?;
    require_text("reason", &body.reason)?;
    let actor = actor(&body.actor, peer)?;
    if !state
        .fencing
        .resolve(resource, &body.id, &body.reason, &actor)
        .await?
    {
        return Err(AdminProblem::not_found(
            "no-such-unknown",
            "No such unknown outcome",
            "This instance has no unknown outcome of that id for this resource: it has settled, was \
             resolved, or belongs to another instance. GET the resource for the list.",
        )
        .with("resource", resource.as_str())
        .with("id", body.id.as_str()));
    }
    tracing::warn!(%resource, id = %body.id, %actor, reason = %body.reason, "an operator resolved an unknown outcome");
    let answer = json!({ "resource": resource.as_str(), "id": body.id, "resolved": true });
    Ok(Json(answer).into_response())
}

/// The raw path behind `/v1/marks/`.
fn behind_marks(uri: &Uri) -> Result<&str, AdminProblem> {
    uri.path()
        .strip_prefix("/v1/marks/")
        .ok_or_else(|| AdminProblem::malformed("The path does not begin with /v1/marks/."))
}

/// The key in a raw path, percent-decoded once.
fn key(raw: &str) -> Result<ResourceKey, AdminProblem> {
    let broken = raw.match_indices('%').any(|(at, _)| {
        !raw.as_bytes()
            .get(at + 1..at + 3)
            .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    });
    if broken {
        return Err(AdminProblem::malformed(
            "A `%` in the path is not followed by two hex digits; a `%` of the key itself is written %25.",
        ));
    }
    let text = percent_decode_str(raw).decode_utf8().map_err(|_| {
        AdminProblem::malformed("The resource key is not UTF-8 once percent-decoded.")
    })?;
    ResourceKey::new(&*text)
        .map_err(|error| AdminProblem::malformed(format!("The resource key is not one: {error}.")))
}

pub(super) async fn parse<T: DeserializeOwned>(body: Body) -> Result<T, AdminProblem> {
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, BODY_LIMIT)).await;
    let bytes = bytes.map_err(|_| {
        AdminProblem::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-timeout",
            "The body took too long",
            "The body did not arrive whole within 10 seconds. Nothing was done.",
        )
        .with_header(header::CONNECTION, "close")
    })?;
    let bytes = bytes.map_err(|_| {
        AdminProblem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "content-too-large",
            "The body is too large",
            "The body did not arrive whole, or is longer than 16 KiB.",
        )
    })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        AdminProblem::malformed(format!("The body is not the JSON expected here: {error}."))
    })
}

fn check_text(name: &str, text: &str) -> Result<(), AdminProblem> {
    if text.chars().count() > MAX_TEXT || text.chars().any(char::is_control) {
        return Err(AdminProblem::malformed(format!(
            "`{name}` is at most {MAX_TEXT} characters, without control characters."
        )));
    }
    Ok(())
}

pub(super) fn require_text(name: &str, text: &str) -> Result<(), AdminProblem> {
    if text.trim().is_empty() {
        return Err(AdminProblem::malformed(format!(
            "`{name}` is empty; it goes into the audit table."
        )));
    }
    check_text(name, text)
}

/// The actor for the audit table: the given name, which is not verified, and the address.
pub(super) fn actor(name: &str, peer: &str) -> Result<String, AdminProblem> {
    check_text("actor", name)?;
    let name = name.trim();
    Ok(if name.is_empty() {
        format!("admin API, {peer}")
    } else {
        format!("{name} (admin API, {peer})")
    })
}

fn no_mark(resource: &ResourceKey) -> AdminProblem {
    AdminProblem::not_found(
        "no-mark",
        "The resource has no mark",
        "No token has been accepted for this resource key yet. Keys are compared byte by byte; \
         GET /v1/marks?prefix=… lists those there are.",
    )
    .with("resource", resource.as_str())
}

fn no_verb() -> AdminProblem {
    AdminProblem::not_found(
        "not-found",
        "Nothing is here",
        "Writes are POST /v1/marks/{resource}/advance, …/override and …/resolve.",
    )
}

impl From<StoreError> for AdminProblem {
    fn from(error: StoreError) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "The store cannot answer",
            format!("{error}."),
        )
        .with_header(header::RETRY_AFTER, "1")
    }
}

impl From<OperatorError> for AdminProblem {
    fn from(error: OperatorError) -> Self {
        match error {
            OperatorError::Store(error) => Self::from(error)
                .adding(" The write may still take effect: read the mark before trying again."),
            OperatorError::Refused(why) => Self::new(
                StatusCode::CONFLICT,
                "refused",
                "The proxy will not do that",
                why,
            ),
        }
    }
}
