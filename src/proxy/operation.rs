//! Operations whose outcome is remembered (`outcome` of a route): whether a request sends its
//! operation, or gets the answer on record.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;
use tokio::time::Instant;

use super::client_body::{ClientBody, full};
use super::context::Context;
use super::headers::OUTCOME;
use super::idempotency::RequestDigest;
use super::recorder::{Recorder, kept};
use super::refusal::Refusal;
use super::routing_table::Route;
use super::setup::Proxy;
use crate::active_requests::Stage;
use crate::body::{Received, RequestBody};
use crate::config::{LookUp, OutcomeSettings, UnknownOutcome};
use crate::fencing::operations::{Begun, OwnAttempt, UnknownAttempt};
use crate::fencing::outcomes::Answer;
use crate::fencing::permit::Permit;
use crate::http1::names::HOST;
use crate::http1::{RequestHead, Response, Target};
use crate::metrics::Outcome;
use crate::routing::{CheckedPath, ResourceKey};

/// The longest answer to a look-up that is read.
const LOOKED_UP: usize = 1 << 20;

/// Marks an answer that was given before. draft-ietf-httpapi-idempotency-key-header has no name for
/// it; this one is Stripe's.
const REPLAYED: &str = "idempotency-replayed";

/// The SHA-256 of a body that was not kept, in the form of RFC 9530.
const BODY_DIGEST: &str = "x-fencing-body-digest";

/// The operation that a request names, on a route that remembers outcomes.
pub(super) struct AskedOperation<'a> {
    pub name: String,
    pub digest: RequestDigest,
    pub settings: &'a OutcomeSettings,
}

/// The turn of a request that names an operation.
pub(super) enum Turn {
    /// It may send it.
    Send(OwnAttempt),
    /// The answer of an earlier one.
    Replay(Response<ClientBody>),
}

impl Proxy {
    /// Asks the store for an operation, and if need be the upstream, under a permit.
    pub(super) async fn operation(
        &self,
        (context, route): (&Context, &Arc<Route>),
        head: &RequestHead,
        asked: AskedOperation<'_>,
        permit: &Permit,
    ) -> Result<Turn, Refusal> {
        let settings = asked.settings;
        let ends = Instant::now() + context.table().settings.store.timeout.0;
        context.progress.enter(Stage::Store, Some(ends));
        let digest = asked.digest.to_string();
        let named = (asked.name.clone(), digest, self.spend_name());
        let begun = self.fencing.begin_operation(permit, named, &self.tasks);
        let unknown = match begun.await? {
            Begun::Own(own) => return Ok(Turn::Send(own)),
            Begun::Known(answer) => return replay(&answer),
            Begun::Mismatch => return Err(Refusal::OperationMismatch),
            Begun::UnderWay => return Err(Refusal::OperationUnderWay),
            Begun::Unknown(unknown) => unknown,
        };
        let mut answered = Err(Refusal::OperationUnknown);
        if let Some(look_up) = &settings.look_up {
            let (by, name) = ((look_up, settings), (&permit.key, &*asked.name));
            answered = tokio::select! {
                answered = self.look_up((context, route), head, by, name) => answered,
                () = permit.superseded().cancelled() => {
                    return Err(self.fencing.superseded(&permit.key, permit.token).into());
                }
            };
            if let Err(error) = &answered {
                let error = error.detail(None, true);
                tracing::warn!(%error, "a look-up did not settle its operation");
            }
        }
        match answered {
            Ok(Some(answer)) if unknown.know(&answer, settings.remember.0).await? => {
                replay(&answer)
            }
            // Another request has learned it, or sends it.
            Ok(Some(_)) => Err(Refusal::OperationUnderWay),
            Ok(None) => retake(unknown, false).await,
            Err(_) if settings.unknown == UnknownOutcome::Forward => retake(unknown, true).await,
            Err(_) => Err(Refusal::OperationUnknown),
        }
    }

    /// Asks the upstream whether an operation has been done, and for its answer. Nothing of it is
    /// in flight. `None`: it has not been done.
    ///
    /// # Errors
    /// The upstream says neither.
    async fn look_up(
        &self,
        (context, route): (&Context, &Arc<Route>),
        head: &RequestHead,
        (look_up, settings): (&LookUp, &OutcomeSettings),
        (resource, operation): (&ResourceKey, &str),
    ) -> Result<Option<String>, Refusal> {
        let target = look_up.get.of(resource.as_str(), operation);
        let target = head.target.at(&target);
        // A name with a slash or of dots alone would make another path of it.
        let is_plain = |target: &Target| {
            let path = CheckedPath::parse(target.path());
            path.is_ok_and(|path| path.oddity_not_in(route.settings.allow).is_none())
        };
        let target = target.filter(is_plain).ok_or(Refusal::OperationUnknown)?;
        let mut fields = kept(&head.fields, &look_up.headers);
        if let Some(host) = target.host(&head.fields) {
            fields.insert(HOST, host);
        }
        let rules = context.snapshot.body_rules(route.settings.body);
        let upstream = &context.snapshot.upstream;
        let timeout = route.settings.upstream.timeout.0;
        context
            .progress
            .enter(Stage::Upstream, Some(Instant::now() + timeout));
        let answered = async {
            let ask = async || {
                let (target, fields) = (target.clone(), fields.clone());
                let asked = RequestHead::new(Method::GET, target, head.version, fields);
                let body = RequestBody::streamed(Received::Whole(Bytes::new()), &rules)?;
                let exchange = self.exchange(context, asked, body, None, None);
                let reserved = upstream.reserve(None).await?;
                Ok::<_, Refusal>(upstream.send(reserved, exchange.request).await?)
            };
            // An idle connection may have ended under the first one.
            let answer = match ask().await {
                Ok(answer) => answer,
                Err(_) => ask().await?,
            };
            let Response { head, body } = answer;
            let body = Limited::new(body, LOOKED_UP).collect().await;
            let body = body.map_err(|error| Refusal::Unreachable(error.to_string()))?;
            let body = body.to_bytes();
            recorded(&Response { head, body }, look_up, settings)
        };
        // The answer does not matter if it is not whole: nothing was changed by asking.
        let answered = tokio::time::timeout(timeout, answered).await;
        answered
            .unwrap_or_else(|_| Err(Refusal::Unreachable("the look-up took too long".to_owned())))
    }
}

async fn retake(unknown: UnknownAttempt, again: bool) -> Result<Turn, Refusal> {
    let taken = unknown.retake(again).await?;
    taken.map(Turn::Send).ok_or(Refusal::OperationUnderWay)
}

/// The document on record for an upstream's answer to a look-up. `None`: the operation has not been
/// done.
fn recorded(
    answer: &Response<Bytes>,
    look_up: &LookUp,
    settings: &OutcomeSettings,
) -> Result<Option<String>, Refusal> {
    let done = match (answer.status(), &look_up.found) {
        (StatusCode::NOT_FOUND | StatusCode::GONE, None) => false,
        (status, _) if !status.is_success() || status == StatusCode::PARTIAL_CONTENT => {
            return Err(Refusal::Unreachable(format!("the status is {status}")));
        }
        (_, None) => true,
        (_, Some(pointer)) => {
            let document: Value = serde_json::from_slice(&answer.body).map_err(|error| {
                Refusal::Unreachable(format!("the answer is not JSON: {error}"))
            })?;
            !matches!(document.pointer(&pointer.0), None | Some(Value::Null))
        }
    };
    Ok(done.then(|| {
        let mut recorder = Recorder::new(settings, &answer.head);
        recorder.feed(&answer.body);
        recorder.answer()
    }))
}

/// The answer of a document on record.
fn replay(document: &str) -> Result<Turn, Refusal> {
    let response = replayed(document).ok_or_else(|| {
        tracing::error!("the answer on record to an operation cannot be read");
        Refusal::OperationUnknown
    })?;
    Ok(Turn::Replay(response))
}

fn replayed(document: &str) -> Option<Response<ClientBody>> {
    let answer: Answer = serde_json::from_str(document).ok()?;
    let body = answer.body.map(|body| BASE64_STANDARD.decode(body));
    let body = body.transpose().ok()?;
    let is_kept = body.is_some();
    let status = StatusCode::from_u16(answer.status).ok()?;
    let mut response = Response::new(status, full(body.unwrap_or_default()));
    let fields = &mut response.head.fields;
    for (name, value) in &answer.fields {
        fields.append(name, BASE64_STANDARD.decode(value).ok()?);
    }
    fields.append(REPLAYED, "true");
    fields.append(OUTCOME, Outcome::Replayed.as_str());
    if !is_kept {
        fields.append(BODY_DIGEST, format!("sha-256=:{}:", answer.digest));
    }
    Some(response)
}
