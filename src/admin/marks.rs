//! `/v1/marks`: reading marks, and the three things an operator may do to one. `/v1/prune` forgets
//! marks that have not changed for long.

use std::time::Duration;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::AdminState;
use super::api::{
    ActOutcome, Acted, Json, ListQuery, MarkList, MarkReport, NewMark, PruneAnswer, PruneBody,
    Resolution, Why,
};
use super::auth::MayWrite;
use super::problem::{
    AdminProblem, Answer, EPOCHS_OPEN, INTERNAL, MALFORMED, NO_MARK, NO_SUCH_UNKNOWN, NOT_FOUND,
    STALE, TOO_LARGE,
};
use crate::fencing::operators::{EpochView, OperatorError};
use crate::fencing::prune::Pruning;
use crate::routing::{Decision, ResourceKey};
use crate::store::{Override, PruneStep, Signature};

const DEFAULT_LIMIT: u16 = 100;
const MAX_LIMIT: u16 = 1000;
/// Refusals and audit rows in the view of one mark.
const LAST: u16 = 20;
/// Bytes in a request's body.
pub(super) const BODY_LIMIT: usize = 16 * 1024;
/// No younger mark is pruned: the holder of an older token may be anywhere still.
const LEAST: Duration = Duration::from_hours(1);
/// Characters in a reason or an actor's name.
const MAX_TEXT: usize = 1000;

/// The query of a list of keys, and its limit.
pub(super) fn list_query(uri: &Uri) -> Result<(ListQuery, u16), AdminProblem> {
    let list: ListQuery = query(uri)?;
    parts_of_keys(&list.prefix, list.after.as_deref())?;
    let limit = limit(list.limit)?;
    Ok((list, limit))
}

/// Cuts a list to its limit. Returns the `after` of the next page, if there is one.
pub(super) fn cut<T>(list: &mut Vec<T>, limit: u16, key: fn(&T) -> &ResourceKey) -> Option<String> {
    let more = list.len() > limit.into();
    list.truncate(limit.into());
    let end = list.last().filter(|_| more);
    end.map(|end| key(end).to_string())
}

/// `GET /v1/marks`.
pub async fn list(State(state): State<AdminState>, uri: Uri) -> Answer<MarkList> {
    let (query, limit) = list_query(&uri)?;
    let (store, after) = (state.fencing.store(), query.after.as_deref());
    // One more than requested, to find out whether there is a next page.
    let most = u32::from(limit) + 1;
    let mut marks = store.list(&query.prefix, after, most).await?;
    let next = cut(&mut marks, limit, |row| &row.resource);
    Ok(Json(MarkList { marks, next }))
}

/// The parameters of a read, which have to be known ones.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, AdminProblem> {
    let read = Query::try_from_uri(uri).map(|Query(query)| query);
    read.map_err(|error| MALFORMED.detail(error.body_text()))
}

/// The limit of a list.
pub(super) fn limit(asked: Option<u16>) -> Result<u16, AdminProblem> {
    let limit = asked.unwrap_or(DEFAULT_LIMIT);
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(limit);
    }
    Err(MALFORMED.detail(format!("`limit` is {limit}. Send 1 to {MAX_LIMIT}.")))
}

pub(super) fn parts_of_keys(prefix: &str, after: Option<&str>) -> Result<(), AdminProblem> {
    let mut letters = prefix.chars().chain(after.unwrap_or_default().chars());
    if !letters.any(char::is_control) {
        return Ok(());
    }
    Err(MALFORMED.detail(
        "`prefix` and `after` are parts of resource keys, and no key has control characters. Leave \
         them out.",
    ))
}

/// `GET /v1/marks/{resource}`.
pub async fn view(State(state): State<AdminState>, uri: Uri) -> Answer<MarkReport> {
    let resource = key(behind_marks(&uri))?;
    let (fencing, rejections) = (&state.fencing, &state.rejections);
    let mark = fencing.view(&resource).await?;
    Ok(Json(MarkReport {
        mark: mark.ok_or_else(|| NO_MARK.detail(MARK_IS_ABSENT))?,
        instance: fencing.instance().name(),
        rejections: rejections.latest(false, Some(&resource), LAST.into()),
        latest_unknown: rejections.latest(true, Some(&resource), LAST.into()),
        audit: fencing.store().audit(&resource, LAST.into()).await?,
    }))
}

/// The acts of an operator on a mark.
const VERBS: [&str; 3] = ["advance", "override", "resolve"];

/// `POST /v1/marks/{resource}/{verb}`.
pub async fn act(
    State(state): State<AdminState>,
    Extension(writer): Extension<MayWrite>,
    uri: Uri,
    body: Body,
) -> Answer<Acted> {
    // The verb is split off the raw path, so that a key which ends in `/advance` can be named:
    // `…%2Fadvance`.
    let (raw_key, verb) = behind_marks(&uri).rsplit_once('/').unwrap_or_default();
    if !VERBS.contains(&verb) {
        return Err(NOT_FOUND
            .detail("Writes are POST /v1/marks/{resource}/advance, …/override and …/resolve."));
    }
    let (resource, verb) = (key(raw_key)?, verb.to_owned());
    completed(async move {
        let fencing = &state.fencing;
        let outcome = match verb.as_str() {
            "advance" => {
                let NewMark { token, why } = parse(body).await?;
                let by = signed(why, &writer, false)?;
                let outcome = match fencing.advance(&resource, token, &by).await? {
                    Decision::Advanced => ActOutcome::Advanced { mark: token },
                    Decision::Current => ActOutcome::Current { mark: token },
                    Decision::Stale { mark } => {
                        let gap = json!(token.gap_to(mark).to_string());
                        let members = [("mark", json!(mark)), ("gap", gap)];
                        let detail = format!("The mark is {mark}, above {token}. Only an override lowers it.");
                        return Err(STALE.with(detail, members));
                    }
                };
                let Signature { reason, actor } = by;
                tracing::info!(%resource, %token, actor, reason, ?outcome, "an operator advanced a mark");
                outcome
            }
            "override" => {
                let NewMark { token: mark, why } = parse(body).await?;
                let by = signed(why, &writer, true)?;
                let (before, era) = match fencing.override_mark(&resource, mark, &by).await? {
                    Override::Done { before, era } => (before, era),
                    Override::Absent => return Err(NO_MARK.detail(MARK_IS_ABSENT)),
                    Override::EpochsOpen(epochs) => {
                        let epochs: Vec<_> = epochs.into_iter().map(EpochView::from).collect();
                        let members = [("epochs", json!(epochs))];
                        return Err(EPOCHS_OPEN.with(EPOCHS_ARE_OPEN, members));
                    }
                };
                state.metrics.series.overrides.inc();
                let Signature { reason, actor } = by;
                tracing::warn!(%resource, %before, after = %mark, actor, reason, "an operator overrode a mark");
                ActOutcome::Overridden { before, mark, era }
            }
            _ => {
                let Resolution { id, why } = parse(body).await?;
                check_text("id", &id, true)?;
                let by = signed(why, &writer, true)?;
                if !fencing.resolve(&resource, &id, &by).await? {
                    return Err(NO_SUCH_UNKNOWN.detail(UNKNOWN_IS_ABSENT));
                }
                let Signature { reason, actor } = by;
                tracing::warn!(%resource, id, actor, reason, "an operator resolved an unknown outcome");
                ActOutcome::Resolved { id }
            }
        };
        Ok(Json(Acted { resource, outcome }))
    })
    .await
}

/// Runs a write in a task of its own, so that one that has begun is completed and audited even if
/// the client leaves.
pub(super) async fn completed<T: Send + 'static>(
    write: impl Future<Output = Result<T, AdminProblem>> + Send + 'static,
) -> Result<T, AdminProblem> {
    tokio::spawn(write).await.unwrap_or_else(|error| {
        tracing::error!("an operator's act ended abnormally: {error}");
        Err(INTERNAL
            .detail("What was asked may have taken effect: read the mark before trying again."))
    })
}

const EPOCHS_ARE_OPEN: &str = "Epochs of this resource are in use, so an override could let an older request in between. \
     Wait until their requests have ended and unknown outcomes have settled, or resolve those.";

const UNKNOWN_IS_ABSENT: &str = "This instance has no unknown outcome of that id for this resource: it has settled, was \
     resolved, or belongs to another instance. GET the resource for the list.";

const MARK_IS_ABSENT: &str = "No token has been accepted for this resource key yet. Keys are compared byte by byte; \
     GET /v1/marks?prefix=… lists those there are.";

/// The raw path behind `/v1/marks/`.
fn behind_marks(uri: &Uri) -> &str {
    uri.path().strip_prefix("/v1/marks/").unwrap_or_default()
}

/// The key in a raw path, percent-decoded once.
fn key(raw: &str) -> Result<ResourceKey, AdminProblem> {
    let is_hex = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !raw.split('%').skip(1).all(is_hex) {
        return Err(MALFORMED.detail(
            "A `%` in the path is not followed by two hex digits; write a `%` of the key itself as %25.",
        ));
    }
    let text = percent_decode_str(raw).decode_utf8().map_err(|_| {
        MALFORMED
            .detail("The resource key is not UTF-8 once percent-decoded. Encode its UTF-8 bytes.")
    })?;
    ResourceKey::new(&*text).map_err(|error| {
        MALFORMED.detail(format!(
            "The resource key is not one: {error}. Send another one."
        ))
    })
}

pub(super) async fn parse<T: DeserializeOwned>(body: Body) -> Result<T, AdminProblem> {
    let detail = "The body did not arrive whole, or is longer than 16 KiB. Send at most that.";
    let bytes = to_bytes(body, BODY_LIMIT).await;
    let bytes = bytes.map_err(|_| TOO_LARGE.detail(detail))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        MALFORMED.detail(format!(
            "The body is not the JSON expected here: {error}. Correct it."
        ))
    })
}

/// Checks a text for the audit table. `needed`: it may not be empty.
pub(super) fn check_text(name: &str, text: &str, needed: bool) -> Result<(), AdminProblem> {
    let detail = if needed && text.trim().is_empty() {
        format!("`{name}` is empty. Send the text for the audit table.")
    } else if text.chars().count() > MAX_TEXT || text.chars().any(char::is_control) {
        format!("Send `{name}` with at most {MAX_TEXT} characters, and without control characters.")
    } else {
        return Ok(());
    };
    Err(MALFORMED.detail(detail))
}

/// The signature of an act. `needed`: it needs a reason.
pub(super) fn signed(why: Why, writer: &MayWrite, needed: bool) -> Result<Signature, AdminProblem> {
    check_text("reason", &why.reason, needed)?;
    check_text("actor", &why.actor, false)?;
    Ok(Signature {
        actor: writer.actor(&why.actor),
        reason: why.reason,
    })
}

/// The step that the body asks for.
fn step(body: PruneBody, writer: &MayWrite) -> Result<PruneStep, AdminProblem> {
    let unchanged = humantime::parse_duration(&body.unchanged_for).map_err(|error| {
        MALFORMED.detail(format!(
            "unchanged_for: {error}. Send a duration such as \"720h\"."
        ))
    })?;
    if unchanged < LEAST {
        return Err(MALFORMED.detail(format!(
            "unchanged_for: {} is too short: without its mark a resource accepts any token, also that of a \
             holder that was away for so long. At least 1h; days or weeks are usual.",
            humantime::format_duration(unchanged)
        )));
    }
    parts_of_keys(&body.prefix, body.after.as_deref())?;
    Ok(PruneStep {
        prefix: body.prefix,
        after: body.after,
        unchanged,
        dry_run: body.dry_run,
        by: signed(body.why, writer, !body.dry_run)?,
    })
}

/// Announces a prune to the other instances (202), or takes one step of it (200).
pub async fn prune(
    State(state): State<AdminState>,
    Extension(writer): Extension<MayWrite>,
    body: Body,
) -> Result<Response, AdminProblem> {
    let step = step(parse(body).await?, &writer)?;
    completed(async move {
        let pruning = state.fencing.prune(&step).await;
        let pruning = pruning.map_err(|error| match error {
            // A dry run writes nothing.
            OperatorError::Store(error) if step.dry_run => AdminProblem::from(error),
            error => error.into(),
        });
        let done = match pruning? {
            Pruning::Announced(wait) => {
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                let answer = Json(PruneAnswer::Announced {
                    announced: true,
                    again_in_seconds: seconds,
                });
                let again = [(header::RETRY_AFTER, seconds.to_string())];
                return Ok((StatusCode::ACCEPTED, again, answer).into_response());
            }
            Pruning::Done(done) => done,
        };
        if done.era.is_some() {
            tracing::warn!(
                deleted = done.deleted,
                prefix = step.prefix,
                unchanged_for = %humantime::format_duration(step.unchanged),
                actor = step.by.actor,
                reason = step.by.reason,
                "an operator pruned marks"
            );
        }
        let answer = PruneAnswer::Step {
            deleted: done.deleted,
            open: done.open,
            dry_run: step.dry_run,
            next: done.next,
        };
        Ok(Json(answer).into_response())
    })
    .await
}
