//! `/v1/operations`: the operations whose outcome is not known, and what operators know of them.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;

use super::AdminState;
use super::api::{Json, OperationList, OperationQuery, OperationVerdict, ResolvedOperation};
use super::auth::MayWrite;
use super::marks::{check_text, completed, limit, parse, parts_of_keys, query, signed};
use super::problem::{Answer, MALFORMED, NO_SUCH_UNKNOWN};
use crate::config::OutcomeSettings;

/// The status of an operation that was done, if the operator names none.
const OK: u16 = 200;

/// `GET /v1/operations`.
pub async fn list(State(state): State<AdminState>, uri: Uri) -> Answer<OperationList> {
    let query: OperationQuery = query(&uri)?;
    parts_of_keys(&query.prefix, None)?;
    let limit = limit(query.limit)?;
    // One more than requested, to find out whether there are more.
    let most = u32::from(limit) + 1;
    let store = state.fencing.store();
    let mut operations = store.unknown_operations(&query.prefix, None, most).await?;
    let more = operations.len() > limit.into();
    operations.truncate(limit.into());
    Ok(Json(OperationList { operations, more }))
}

/// `POST /v1/operations/resolve`.
pub async fn resolve(
    State(state): State<AdminState>,
    Extension(writer): Extension<MayWrite>,
    body: Body,
) -> Answer<ResolvedOperation> {
    let body: OperationVerdict = parse(body).await?;
    check_text("operation", &body.operation, true)?;
    let by = signed(body.why, &writer, true)?;
    let status = match (body.done, body.status.unwrap_or(OK)) {
        (false, _) if body.status.is_none() => None,
        (true, status @ 200..600) => Some(status),
        _ => {
            return Err(MALFORMED.detail(
                "`status` is what repetitions of an operation get that was done: 200 to 599. Leave it out if \
                 `done` is false.",
            ));
        }
    };
    let remember = state.loaded.borrow().settings.remembers();
    let remember = remember.unwrap_or(OutcomeSettings::default().remember.0);
    completed(async move {
        let asked = (&body.resource, body.operation.as_str());
        let verdict = (status, remember);
        let resolved = state.fencing.resolve_operation(asked, verdict, &by);
        if !resolved.await? {
            return Err(NO_SUCH_UNKNOWN.detail(
                "The resource has no operation of this name whose outcome is unknown: it is known, was \
                 resolved, or is sent again just now. GET /v1/operations lists those there are.",
            ));
        }
        tracing::warn!(
            resource = %body.resource,
            operation = body.operation,
            ?status,
            actor = by.actor,
            reason = by.reason,
            "an operator resolved an operation"
        );
        Ok(Json(ResolvedOperation {
            resource: body.resource,
            operation: body.operation,
            done: body.done,
            status,
        }))
    })
    .await
}
