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
use super::routing_table::Route;
use super::setup::Proxy;
use super::tunnel;
use crate::body::{BodyRules, Received, RequestBody};
use crate::config::AccessLog;
use crate::config::BodySettings;
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
        let enforced = self.body_rules(settings);
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
                fenced.key(&head, None),
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
            route: Arc::clone(&route),
            subject,
        };
        let in_flight = Arc::clone(&permit);
        let (failed, exchange) = oneshot::channel();
        let settings = &context.table().settings.log;
        let shown = (settings.access != AccessLog::Off).then_some(settings.query);
        self.check_beside(
            check,
            (Arc::clone(&context.facts), shown),
            in_flight,
            exchange,
        );
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

    /// Checks in a task of its own, and counts the request. If `exchange` reports a failure, the
    /// failure is the last outcome of the request, and counts instead of the check. `held`: the
    /// in-flight permit, which bounds the checks that wait for the store.
    fn check_beside(
        &self,
        check: ObservedCheck,
        (facts, shown): (Arc<RequestFacts>, Option<bool>),
        held: impl Send + 'static,
        exchange: oneshot::Receiver<()>,
    ) {
        let notes = Arc::clone(&self.notes);
        self.tasks.spawn(async move {
            let _held = held;
            let began = Instant::now();
            let outcome = check.run().await.unwrap_or_else(|refusal| {
                let outcome = refusal.outcome().observed();
                if let Some(query) = shown
                    && let Some(left_out) = notes.say(outcome)
                {
                    let line = Noted {
                        label: &check.route.settings.label,
                        facts: &facts,
                        refusal: &refusal,
                        status: None,
                    };
                    line.log(&facts.text(query), left_out, "would have been refused");
                }
                outcome
            });
            if let Some(trace) = &facts.trace {
                let outcome = KeyValue::new("fencepost.outcome", outcome.as_str());
                trace.part("check", began, vec![outcome]);
            }
            let route = check.route;
            // A stop waits for checks, and not for the exchanges beside them.
            tokio::spawn(async move {
                // An exchange that did not fail, or whose client has left, only drops its end.
                if exchange.await.is_err() {
                    route.metrics.request(outcome);
                }
            });
        });
    }
}

/// The check of an observed request.
struct ObservedCheck {
    fencing: Arc<Fencing>,
    route: Arc<Route>,
    subject: Result<Subject, Refusal>,
}

impl ObservedCheck {
    async fn run(&self) -> Result<Outcome, Refusal> {
        let (key, token) = self.subject.clone()?;
        let needs = self.route.settings.token_bounds.needs(token);
        self.fencing.unless_known_stale(&key, token, None)?;
        let advanced = self.fencing.raise(Some(needs), &key, token).await?;
        Ok(if advanced {
            Outcome::Advanced
        } else {
            Outcome::Current
        })
    }
}
