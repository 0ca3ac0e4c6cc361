//! Answers every class of request. Each request is counted once, by its last outcome, and is logged
//! and remembered if it was refused.

use std::sync::Arc;

use http::StatusCode;
use opentelemetry::KeyValue;

use super::context::Context;
use super::log::AccessRecord;
use super::refusal::Refusal;
use super::routing_table::Route;
use super::setup::Proxy;
use crate::config::AccessLog;
use crate::fencing::Refused;
use crate::http1::Response;
use crate::metrics::{CLAIM, DecidedBy, Outcome, RouteMetrics, UNMATCHED};
use crate::proxy::client_body::ClientBody;

/// A request that was answered by the upstream, or a claim that was granted.
pub(super) struct Forwarded {
    pub response: Response<ClientBody>,
    /// `None`: the check beside its exchange decides it.
    pub outcome: Option<Outcome>,
}

impl Proxy {
    /// Counts, logs and remembers the outcome of a request, and answers.
    pub(super) fn answer(
        &self,
        context: &Arc<Context>,
        route: Option<&Arc<Route>>,
        is_claim: bool,
        done: Result<Forwarded, Refusal>,
    ) -> Response<ClientBody> {
        let table = context.table();
        let (metrics, label) = match route {
            Some(route) => (&*route.metrics, route.settings.label()),
            None if is_claim => (&*table.claim_metrics, CLAIM),
            None => (&*table.unmatched_metrics, UNMATCHED),
        };
        let mut refused = None;
        let (mut response, outcome) = match done {
            Ok(Forwarded {
                mut response,
                outcome,
            }) => {
                // An exchange under a permit, or the check of an observed request, counts its
                // request when it ends.
                let later = [Outcome::Advanced, Outcome::Current, Outcome::OutcomeUnknown];
                if let Some(outcome) = outcome.filter(|outcome| !later.contains(outcome)) {
                    metrics.request(outcome);
                }
                log_answered(context, label, outcome, &mut response);
                (response, outcome)
            }
            Err(refusal) => {
                let refusal = &*refused.insert(refusal);
                let outcome = refusal.outcome();
                metrics.request(outcome);
                self.count_stale(context, metrics, refusal);
                let response = context.refuse(refusal);
                context.note(label, refusal, Some(response.status()));
                (response, Some(outcome))
            }
        };
        trace_answer(context, route, response.status(), outcome, refused.as_ref());
        // Measures the request until its answer has been taken, and ends its span there.
        let timer = metrics.duration(context.progress.began);
        response.body.time(timer, context.trace.clone());
        response
    }

    /// Counts a stale token by what has found it, and its resource.
    fn count_stale(&self, context: &Context, metrics: &RouteMetrics, refusal: &Refusal) {
        let subject = context.subject.get();
        let by = match refusal.refused() {
            Some(Refused::Stale { decided_by, .. }) => *decided_by,
            Some(Refused::Spent) => DecidedBy::Store,
            _ => return,
        };
        if let Some((key, _)) = subject {
            metrics.stale(by, refusal.gap(subject).unwrap_or_default());
            self.metrics.stale_resource(key, std::time::Instant::now());
        }
    }
}

impl Context {
    /// The answer of a refusal or an unknown outcome.
    pub(super) fn refuse(&self, refusal: &Refusal) -> Response<ClientBody> {
        let mut response = refusal.respond(self.style(), self.subject.get());
        // The caller can quote the id that the log has.
        self.identify(&mut response.head.fields);
        response
    }
}

/// Says in the request's span how it is answered.
fn trace_answer(
    context: &Context,
    route: Option<&Arc<Route>>,
    status: StatusCode,
    outcome: Option<Outcome>,
    refused: Option<&Refusal>,
) {
    let Some(trace) = &context.trace else {
        return;
    };
    let (subject, (key, token)) = (context.subject.get(), context.key_and_token());
    let mark = refused.and_then(|refusal| refusal.mark(subject));
    let gap = refused.and_then(|refusal| refusal.gap(subject));
    let more = [
        ("fencepost.resource", key.map(ToString::to_string)),
        ("fencepost.token", token.map(ToString::to_string)),
        ("fencepost.mark", mark.map(|mark| mark.to_string())),
        ("fencepost.gap", gap.map(|gap| gap.to_string())),
        ("fencepost.request_id", context.text(false).request_id),
    ];
    let more = more.into_iter();
    let more = more.filter_map(|(name, value)| Some(KeyValue::new(name, value?)));
    let route = route.map(|route| route.settings.path.as_str());
    trace.answered(route, status, outcome.map(Outcome::as_str), more);
}

/// Has an answered request logged, if `log.access` names it. An unknown outcome has another line,
/// with the reason.
fn log_answered(
    context: &Arc<Context>,
    label: &str,
    outcome: Option<Outcome>,
    response: &mut Response<ClientBody>,
) {
    let wanted = match context.log().access {
        AccessLog::All => true,
        AccessLog::Fenced => outcome != Some(Outcome::Unfenced),
        AccessLog::Off | AccessLog::Refusals => false,
    };
    if wanted && outcome != Some(Outcome::OutcomeUnknown) {
        let status = response.status();
        response.body.log(AccessRecord {
            context: Arc::clone(context),
            label: label.to_owned(),
            outcome,
            status,
            bytes: 0,
            whole: false,
        });
    }
}
