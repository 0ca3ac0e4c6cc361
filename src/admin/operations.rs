//! `/v1/operations`: the operations whose outcome is not known, and what operators know of them.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::Uri;
use serde::Deserialize;

use super::AdminState;
use super::api::{Json, OperationList, OperationVerdict, ResolvedOperation};
use super::auth::{AdminPeer, MayWrite};
use super::marks::{actor, completed, limit, parse, parts_of_keys, query, require_text};
use super::problem::{AdminProblem, MALFORMED, NO_SUCH_UNKNOWN};
use crate::config::OutcomeSettings;
use crate::fencing::outcomes::Verdict;

/// The status of an operation that was done, if the operator names none.
const OK: u16 = 200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationQuery {
    #[serde(default)]
    prefix: String,
    limit: Option<u16>,
}

/// `GET /v1/operations`.
pub async fn list(
    State(state): State<AdminState>,
    uri: Uri,
) -> Result<Json<OperationList>, AdminProblem> {
    let query: OperationQuery = query(&uri)?;
    parts_of_keys(&query.prefix, None)?;
    let limit = limit(query.limit)?;
    // One more than requested, to find out whether there are more.
    let most = u32::try_from(limit + 1).unwrap_or(u32::MAX);
    let found = state.fencing.unknown_operations(&query.prefix, None, most);
    let mut operations = found.await?;
    let more = operations.len() > limit;
    operations.truncate(limit);
    Ok(Json(OperationList { operations, more }))
}

/// `POST /v1/operations/resolve`.
pub async fn resolve(
    State(state): State<AdminState>,
    Extension(_): Extension<MayWrite>,
    request: Request,
) -> Result<Json<ResolvedOperation>, AdminProblem> {
    let peer = AdminPeer::of(&request).text;
    let body: OperationVerdict = parse(request.into_body()).await?;
    require_text("operation", &body.operation)?;
    require_text("reason", &body.reason)?;
    let actor = actor(&body.actor, &peer)?;
    let verdict = match (body.done, body.status) {
        (false, None) => Verdict::NotDone,
        (true, status) if status.is_none_or(|status| (200..600).contains(&status)) => {
            let remember = state.loaded.borrow().settings().remembers();
            let remember = remember.unwrap_or(OutcomeSettings::default().remember.0);
            Verdict::Done(status.unwrap_or(OK), remember)
        }
        _ => {
            return Err(MALFORMED.detail(
                "`status` is what repetitions of an operation get that was done: 200 to 599. Leave it out if \
                 `done` is false.",
            ));
        }
    };
    let OperationVerdict {
        resource,
        operation,
        reason,
        done,
        ..
    } = body;
    completed(async move {
        let asked = (&resource, operation.as_str());
        let resolved = state
            .fencing
            .resolve_operation(asked, verdict, &reason, &actor);
        if !resolved.await? {
            return Err(NO_SUCH_UNKNOWN.detail(
                "The resource has no operation of this name whose outcome is unknown: it is known, was \
                 resolved, or is sent again just now. GET /v1/operations lists those there are.",
            ));
        }
        tracing::warn!(%resource, operation, ?verdict, actor, reason, "an operator resolved an operation");
        let status = match verdict {
            Verdict::Done(status, _) => Some(status),
            Verdict::NotDone => None,
        };
        Ok(Json(ResolvedOperation {
            resource,
            operation,
            done,
            status,
        }))
    })
    .await
}
