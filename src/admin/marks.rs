//! `/v1/marks`: reading marks, and the three things an operator may do to one.

use std::time::Duration;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::api::{ActBody, Acted, Advance, Json, MarkList, MarkReport, rejections};
use super::auth::MayWrite;
use super::peer::AdminPeer;
use super::problem::AdminProblem;
use super::{AdminState, BODY_LIMIT};
use crate::fencing::operators::{EpochView, OperatorError};
use crate::routing::{Decision, ResourceKey, Token};
use crate::store::{EpochRow, Override, StoreError};

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
    Ok(Json(MarkList { marks: rows, next }))
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
pub async fn view(
    State(state): State<AdminState>,
    uri: Uri,
) -> Result<Json<MarkReport>, AdminProblem> {
    let resource = key(behind_marks(&uri)?)?;
    let mark = state
        .fencing
        .view(&resource)
        .await?
        .ok_or_else(|| no_mark(&resource))?;
    let audit = state.fencing.audit(&resource, LAST).await?;
    let limit = usize::try_from(LAST).unwrap_or(usize::MAX);
    Ok(Json(MarkReport {
        mark,
        instance: state.fencing.instance().name().to_owned(),
        rejections: rejections(state.rejections.latest(Some(&resource), limit)),
        latest_unknown: rejections(state.rejections.latest_unknown(Some(&resource), limit)),
        audit: audit.into_iter().map(Into::into).collect(),
    }))
}

/// `POST /v1/marks/{resource}/{verb}`.
pub async fn act(
    State(state): State<AdminState>,
    Extension(_): Extension<MayWrite>,
    request: Request,
) -> Result<Json<Acted>, AdminProblem> {
    let peer = AdminPeer::of(&request).text;
    let (head, body) = request.into_parts();
    // The verb is split off the raw path, so that a key which ends in `/advance` can be named:
    // `…%2Fadvance`.
    let (raw_key, verb) = behind_marks(&head.uri)?
        .rsplit_once('/')
        .filter(|(_, verb)| ["advance", "override", "resolve"].contains(verb))
        .ok_or_else(no_verb)?;
    let body: ActBody = parse(body).await?;
    let act = match (verb, body.token, body.id) {
        ("advance", Some(token), None) => Act::Advance(token),
        ("override", Some(token), None) => Act::Override(token),
        ("resolve", None, Some(id)) => {
            require_text("id", &id)?;
            Act::Resolve(id)
        }
        _ => {
            return Err(AdminProblem::malformed(
                "The body of advance and override has `token`, that of resolve has `id` instead.",
            ));
        }
    };
    if verb == "advance" {
        check_text("reason", &body.reason)?;
    } else {
        require_text("reason", &body.reason)?;
    }
    let change = Change {
        resource: key(raw_key)?,
        reason: body.reason,
        actor: actor(&body.actor, &peer)?,
    };
    // In a task of its own, so that an action that has begun is completed and audited even if the
    // client leaves or the time is up.
    let task = tokio::spawn(async move { change.run(&state, act).await });
    let acted = task.await.unwrap_or_else(|error| {
        tracing::error!("an operator's act ended abnormally: {error}");
        Err(AdminProblem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal-error",
            "The proxy failed",
            "What was asked may have taken effect: read the mark before trying again.",
        ))
    });
    acted.map(Json)
}

enum Act {
    Advance(Token),
    Override(Token),
    /// The id of an unknown outcome.
    Resolve(String),
}

/// Which mark an operator changes, and who and why.
struct Change {
    resource: ResourceKey,
    reason: String,
    actor: String,
}

impl Change {
    async fn run(self, state: &AdminState, act: Act) -> Result<Acted, AdminProblem> {
        let Self {
            resource,
            reason,
            actor,
        } = self;
        let fencing = &state.fencing;
        match act {
            Act::Advance(token) => {
                let outcome = match fencing.advance(&resource, token, &reason, &actor).await? {
                    Decision::Advanced => Advance::Advanced,
                    Decision::Current => Advance::Current,
                    Decision::Stale { mark } => return Err(stale(&resource, token, mark)),
                };
                tracing::info!(%resource, %token, %actor, reason, ?outcome, "an operator advanced a mark");
                Ok(Acted::Advanced {
                    resource,
                    outcome,
                    mark: token,
                })
            }
            Act::Override(mark) => {
                let done = fencing.override_mark(&resource, mark, &reason, &actor);
                match done.await? {
                    Override::Done { before, era } => {
                        state.metrics.series.overrides.inc();
                        tracing::warn!(%resource, %before, after = %mark, %actor, reason, "an operator overrode a mark");
                        Ok(Acted::Overridden {
                            resource,
                            before,
                            mark,
                            era,
                        })
                    }
                    Override::EpochsOpen(epochs) => Err(epochs_open(&resource, epochs)),
                    Override::Absent => Err(no_mark(&resource)),
                }
            }
            Act::Resolve(id) => {
                if !fencing.resolve(&resource, &id, &reason, &actor).await? {
                    return Err(no_such_unknown(&resource, &id));
                }
                tracing::warn!(%resource, id, %actor, reason, "an operator resolved an unknown outcome");
                Ok(Acted::Resolved {
                    resource,
                    id,
                    resolved: true,
                })
            }
        }
    }
}

fn stale(resource: &ResourceKey, token: Token, mark: Token) -> AdminProblem {
    AdminProblem::new(
        StatusCode::PRECONDITION_FAILED,
        "stale-token",
        "The token is stale",
        format!("The mark is {mark}, above {token}. Only an override lowers it."),
    )
    .with("resource", resource.as_str())
    .with("token", token.to_string())
    .with("mark", mark.to_string())
    .with("gap", token.gap_to(mark).to_string())
}

fn epochs_open(resource: &ResourceKey, epochs: Vec<EpochRow>) -> AdminProblem {
    let epochs: Vec<_> = epochs.into_iter().map(EpochView::from).collect();
    AdminProblem::new(
        StatusCode::CONFLICT,
        "epochs-open",
        "Requests may be in flight",
        "Epochs of this resource are open, so an override could let an older request in between. \
         They close about a minute after the last request, or as soon as its requests have ended once the mark is above \
         their token: an advance shuts them out. Unknown outcomes have to settle or be resolved first.",
    )
    .with("resource", resource.as_str())
    .with("epochs", serde_json::to_value(epochs).unwrap_or_default())
}

fn no_such_unknown(resource: &ResourceKey, id: &str) -> AdminProblem {
    AdminProblem::not_found(
        "no-such-unknown",
        "No such unknown outcome",
        "This instance has no unknown outcome of that id for this resource: it has settled, was \
         resolved, or belongs to another instance. GET the resource for the list.",
    )
    .with("resource", resource.as_str())
    .with("id", id)
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
