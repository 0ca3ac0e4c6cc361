//! `POST /v1/prune`: forgets marks that have not changed for long.

use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::AdminState;
use super::api::{Json, PruneAnswer, PruneBody};
use super::auth::{AdminPeer, MayWrite};
use super::marks::{actor, completed, parse, parts_of_keys, require_text};
use super::problem::{AdminProblem, MALFORMED};
use crate::fencing::operators::OperatorError;
use crate::fencing::prune::Pruning;
use crate::store::PruneStep;

/// No younger mark is pruned: the holder of an older token may be anywhere still.
const LEAST: Duration = Duration::from_hours(1);

/// The step that the body asks for.
fn step(body: PruneBody, peer: &str) -> Result<PruneStep, AdminProblem> {
    let unchanged = humantime::parse_duration(&body.unchanged_for)
        .map_err(|error| MALFORMED.detail(format!("unchanged_for: {error}; such as \"720h\".")))?;
    if unchanged < LEAST {
        return Err(MALFORMED.detail(format!(
            "unchanged_for: {} is too short: without its mark a resource accepts any token, also that of a \
             holder that was away for so long. At least 1h; days or weeks are usual.",
            humantime::format_duration(unchanged)
        )));
    }
    parts_of_keys(&body.prefix, body.after.as_deref())?;
    require_text("reason", &body.reason)?;
    Ok(PruneStep {
        prefix: body.prefix,
        after: body.after,
        unchanged,
        dry_run: body.dry_run,
        reason: body.reason,
        actor: actor(&body.actor, peer)?,
    })
}

/// Announces a prune to the other instances (202), or takes one step of it (200).
pub async fn prune(
    State(state): State<AdminState>,
    Extension(_): Extension<MayWrite>,
    request: Request,
) -> Result<Response, AdminProblem> {
    let peer = AdminPeer::of(&request).text;
    let body: PruneBody = parse(request.into_body()).await?;
    let step = step(body, &peer)?;
    let (step, pruning) = completed(async move {
        let pruning = state.fencing.prune(&step).await;
        let pruning = pruning.map_err(|error| match error {
            // A dry run writes nothing.
            OperatorError::Store(error) if step.dry_run => AdminProblem::from(error),
            error => error.into(),
        });
        Ok((step, pruning?))
    })
    .await?;
    let done = match pruning {
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
            actor = step.actor,
            reason = step.reason,
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
}
