//! Observe mode: the fence refuses nothing, and no request waits for it. The check runs beside the
//! request, advances the marks as if the route enforced, and counts what it would have refused.
//! Overload, lack of memory and stalled clients are not decisions of the fence, and end a request
//! in every mode.

use std::sync::Arc;

use opentelemetry::KeyValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::{CountAs, Forwarded};
use super::classify::Fenced;
use super::context::Context;
use super::facts::RequestFacts;
use super::log::Noted;
use super::refusal::{Refusal, Subject};
use super::routing_table::{Route, Snapshot};
use super::setup::Proxy;
use super::tunnel;
use crate::body::{BodyRules, Received, RequestBody};
use crate::config::{AccessLog, BodySettings};
use crate::fencing::Fencing;
use crate::http1::RequestHead;
use crate::metrics::Outcome;
use crate::routing::KeyTemplate;

impl Proxy {
    /// Forwards a request of an observing route, even if enforcement would refuse it.
    pub(super) async fn observe(
        &self,
        context: &Context<'_>,
        route: Arc<Route>,
        judged: Result<Fenced, Refusal>,
        head: RequestHead,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        let permit = self.in_flight.take(context.client)?;
        let settings = route.settings.body;
        let enforced = context.snapshot.body_rules(settings);
        let too_long = enforced.admit(&body).map_err(Refusal::from);
        // The limit on length is one of the refusals that are only counted; memory and slowness are
        // not.
        let rules = BodyRules {
            settings: BodySettings {
                max: None,
                ..settings
            },
            ..enforced
        };
        let reads_body = |fenced: &Fenced| fenced.template().is_ok_and(KeyTemplate::uses_json);
        let (upload, key) = match &judged {
            Ok(fenced) if reads_body(fenced) => {
                let upload = RequestBody::read(body, &head.fields, &rules, None).await?;
                let kept = Arc::clone(&permit);
                self.key_of_body(fenced, &head, upload, kept).await
            }
            Ok(fenced) => (
                RequestBody::streamed(body, &rules)?,
                fenced.key(&head, Vec::new()),
            ),
            Err(refusal) => (RequestBody::streamed(body, &rules)?, Err(refusal.clone())),
        };
        let subject = judged.and_then(|fenced| {
            too_long?;
            Ok((key?, fenced.token))
        });
        if let Ok(subject) = &subject {
            context.is_about(subject.clone());
        }
        let check = ObservedCheck {
            fencing: Arc::clone(&self.fencing),
            snapshot: Arc::clone(&context.snapshot),
            facts: Arc::clone(&context.facts),
            route: Arc::clone(&route),
            subject,
        };
        // The in-flight permit bounds the checks that wait for the store.
        let counted = Arc::clone(&permit);
        let (failed, exchange) = oneshot::channel::<()>();
        self.tasks.spawn(async move {
            let outcome = check.run().await;
            drop(counted);
            // A stop waits for checks, and not for the exchanges beside them.
            tokio::spawn(async move {
                // The failure of an exchange is the last outcome of the request, and counts instead
                // of the check. One that did not fail, or whose client has left, drops its end.
                if exchange.await.is_err() {
                    check.route.metrics.request(outcome);
                }
            });
        });
        let upgrade = tunnel::wanted(&head.fields);
        let passed = self.pass(context, Some(&route), upgrade, (head, upload), permit);
        match passed.await {
            Ok(Forwarded { response, .. }) => Ok(Forwarded {
                response,
                counted: CountAs::Beside,
            }),
            Err(refusal) => {
                let _ = failed.send(());
                Err(refusal)
            }
        }
    }
}

/// The check of an observed request. It runs in a task of its own.
struct ObservedCheck {
    fencing: Arc<Fencing>,
    snapshot: Arc<Snapshot>,
    facts: Arc<RequestFacts>,
    route: Arc<Route>,
    subject: Result<Subject, Refusal>,
}

impl ObservedCheck {
    /// Checks, and logs what would have been refused.
    async fn run(&self) -> Outcome {
        let began = Instant::now();
        let outcome = match self.checked().await {
            Ok(true) => Outcome::Advanced,
            Ok(false) => Outcome::Current,
            Err(refusal) => {
                self.note(&refusal);
                refusal.outcome().observed()
            }
        };
        if let Some(trace) = &self.facts.trace {
            let outcome = KeyValue::new("fencepost.outcome", outcome.as_str());
            trace.part("check", began, vec![outcome]);
        }
        outcome
    }

    /// Returns whether the mark has advanced.
    async fn checked(&self) -> Result<bool, Refusal> {
        let (key, token) = self.subject.clone()?;
        let needs = self.route.settings.token_bounds.needs(token);
        self.fencing.unless_known_stale(&key, token, None)?;
        Ok(self.fencing.raise(Some(needs), &key, token).await?)
    }

    fn note(&self, refusal: &Refusal) {
        let settings = &self.snapshot.table.settings.log;
        if settings.access == AccessLog::Off {
            return;
        }
        if let Some(left_out) = self.snapshot.notes.say(refusal.outcome().observed()) {
            let line = Noted {
                label: &self.route.settings.label,
                facts: &self.facts,
                refusal,
                status: None,
            };
            let request = self.facts.text(settings.query);
            line.log(&request, left_out, "would have been refused");
        }
    }
}
