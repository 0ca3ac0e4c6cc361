//! Observe mode: the fence refuses nothing, and no request waits for it. The check runs beside the
//! request, advances the marks as if the route enforced, and counts what it would have refused.
//! Overload, lack of memory and stalled clients are not decisions of the fence, and end a request
//! in every mode.

use std::sync::Arc;

use opentelemetry::KeyValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::Forwarded;
use super::classify::Fenced;
use super::context::Context;
use super::fenced::key_of_body;
use super::refusal::{Refusal, Subject};
use super::routing_table::Route;
use super::setup::Proxy;
use crate::body::{BodyRules, Received, RequestBody};
use crate::config::{BodySettings, OrNone};
use crate::fencing::Fencing;
use crate::http1::RequestHead;
use crate::metrics::Outcome;
use crate::routing::KeyTemplate;

impl Proxy {
    /// Forwards a request of an observing route, even if enforcement would refuse it.
    pub(super) async fn observe(
        &self,
        context: &Arc<Context>,
        route: Arc<Route>,
        judged: Result<Fenced, Refusal>,
        head: RequestHead,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        let permit = self.in_flight.take(&context.client)?;
        let settings = route.settings.body;
        let enforced = context.snapshot.body_rules(settings);
        let too_long = enforced.admit(&body).map_err(Refusal::from);
        // The limit on length is one of the refusals that are only counted; memory and slowness are
        // not.
        let rules = BodyRules {
            settings: BodySettings {
                max: OrNone(None),
                ..settings
            },
            ..enforced
        };
        let judged = judged.and_then(|fenced| too_long.map(|()| fenced));
        let (upload, subject) = match judged {
            Ok(fenced) if fenced.route.template().is_ok_and(KeyTemplate::uses_json) => {
                let upload = RequestBody::read(body, &head.fields, &rules, None).await?;
                let key = key_of_body(&fenced, &head, &upload);
                (upload, key.map(|key| (key, fenced.token)))
            }
            judged => (
                RequestBody::streamed(body, &rules)?,
                judged.and_then(|fenced| Ok((fenced.key(&head, None)?, fenced.token))),
            ),
        };
        if let Ok(subject) = &subject {
            let _ = context.subject.set(subject.clone());
        }
        let (fencing, of) = (Arc::clone(&self.fencing), Arc::clone(context));
        let check = check(fencing, of, Arc::clone(&route), subject);
        // The in-flight permit bounds the checks that wait for the store.
        let (counted, metrics) = (Arc::clone(&permit), Arc::clone(&route.metrics));
        let (failed, exchange) = oneshot::channel::<()>();
        self.tasks.spawn(async move {
            let outcome = check.await;
            drop(counted);
            // A stop waits for checks, and not for the exchanges beside them.
            tokio::spawn(async move {
                // The failure of an exchange is the last outcome of the request, and counts instead
                // of the check. One that did not fail, or whose client has left, drops its end.
                if exchange.await.is_err() {
                    metrics.request(outcome);
                }
            });
        });
        let passed = self.pass(context, true, head, upload, permit);
        match passed.await {
            Ok(response) => Ok(Forwarded {
                response,
                outcome: None,
            }),
            Err(refusal) => {
                let _ = failed.send(());
                Err(refusal)
            }
        }
    }
}

/// The check of an observed request, which logs what would have been refused. It runs in a task of
/// its own.
async fn check(
    fencing: Arc<Fencing>,
    context: Arc<Context>,
    route: Arc<Route>,
    subject: Result<Subject, Refusal>,
) -> Outcome {
    let began = Instant::now();
    let advanced = async {
        let (key, token) = subject?;
        let needs = route.settings.token.bounds().needs(token);
        fencing.unless_known_stale(&key, token, None)?;
        Ok(fencing.raise(Some(needs), &key, token).await?)
    };
    let outcome = match advanced.await {
        Ok(true) => Outcome::Advanced,
        Ok(false) => Outcome::Current,
        Err(refusal) => {
            context.note(&refusal, None);
            refusal.outcome().observed()
        }
    };
    if let Some(trace) = &context.trace {
        let outcome = KeyValue::new("fencepost.outcome", outcome.as_str());
        trace.part("check", began, vec![outcome]);
    }
    outcome
}
