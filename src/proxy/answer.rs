//! Answers every class of request. Each request is counted once, by its last outcome, and is logged
//! and remembered if it was refused.

use std::sync::Arc;

use http::StatusCode;
use opentelemetry::KeyValue;

use super::classify::Scope;
use super::context::Context;
use super::facts::RequestFacts;
use super::log::{AccessRecord, Noted};
use super::refusal::Refusal;
use super::routing_table::RoutingTable;
use super::setup::Proxy;
use crate::config::AccessLog;
use crate::fencing::Refused;
use crate::http1::Response;
use crate::metrics::{CLAIM, DecidedBy, Outcome, RouteMetrics, UNMATCHED};
use crate::proxy::client_body::ClientBody;
use crate::traces::RequestTrace;

/// A request that was answered by the upstream, or a claim that was granted.
pub(super) struct Forwarded {
    pub response: Response<ClientBody>,
    pub counted: CountAs,
}

/// The way a request is counted.
pub(super) enum CountAs {
    Outcome(Outcome),
    /// Its exchange counts it when it ends. `None`: the outcome is unknown already.
    AtEnd(Option<Outcome>),
    /// The check beside its exchange counts it.
    Beside,
}

impl Scope {
    /// The series, and the label.
    fn series<'a>(&'a self, table: &'a RoutingTable) -> (&'a RouteMetrics, &'a str) {
        match self {
            Self::Route(Some(route)) => (&route.metrics, &route.settings.label),
            Self::Route(None) => (&table.unmatched_metrics, UNMATCHED),
            Self::Claims => (&table.claim_metrics, CLAIM),
        }
    }
}

impl Proxy {
    /// Counts, logs and remembers the outcome of a request, and answers.
    pub(super) fn answer(
        &self,
        context: &Context<'_>,
        scope: &Scope,
        done: Result<Forwarded, Refusal>,
    ) -> Response<ClientBody> {
        let (metrics, label) = scope.series(context.table());
        let facts = &context.facts;
        let mut refused = None;
        let (mut response, outcome) = match done {
            Ok(Forwarded {
                mut response,
                counted,
            }) => {
                let outcome = match counted {
                    CountAs::Outcome(outcome) => {
                        metrics.request(outcome);
                        Some(outcome)
                    }
                    CountAs::AtEnd(outcome) => Some(outcome.unwrap_or(Outcome::OutcomeUnknown)),
                    CountAs::Beside => None,
                };
                log_answered(context, label, outcome, &mut response);
                (response, outcome)
            }
            Err(refusal) => {
                let refusal = &*refused.insert(refusal);
                let outcome = refusal.outcome();
                metrics.request(outcome);
                self.count_stale(facts, metrics, refusal);
                let mut response = refusal.respond(context.style(), facts.subject.get());
                let noted = Noted {
                    label,
                    facts,
                    refusal,
                    status: Some(response.status()),
                };
                context
                    .snapshot
                    .notes
                    .note(&context.table().settings.log, noted);
                // What the caller quotes is what the log says.
                facts.identify(&mut response.head.fields);
                (response, Some(outcome))
            }
        };
        trace_answer(facts, scope, response.status(), outcome, refused.as_ref());
        // Measures the request until its answer has been taken, and ends its span there.
        let span = facts.trace.as_ref().map(RequestTrace::guard);
        response.body.time(metrics.duration(facts.began), span);
        response
    }

    /// Counts a stale token by what has found it, and its resource.
    fn count_stale(&self, facts: &RequestFacts, metrics: &RouteMetrics, refusal: &Refusal) {
        let subject = facts.subject.get();
        let by = match refusal {
            Refusal::Fence { refused, .. } => match refused {
                Refused::Stale { decided_by, .. } => *decided_by,
                Refused::Spent => DecidedBy::Store,
                _ => return,
            },
            _ => return,
        };
        if let Some((key, _)) = subject {
            metrics.stale(by, refusal.gap(subject).unwrap_or_default());
            self.metrics.stale_resource(key, std::time::Instant::now());
        }
    }
}

/// Says in the request's span how it is answered.
fn trace_answer(
    facts: &RequestFacts,
    scope: &Scope,
    status: StatusCode,
    outcome: Option<Outcome>,
    refused: Option<&Refusal>,
) {
    let Some(trace) = &facts.trace else {
        return;
    };
    let mut more = Vec::new();
    let mut say = |name: &'static str, value: String| more.push(KeyValue::new(name, value));
    let subject = facts.subject.get();
    if let Some((key, token)) = subject {
        say("fencepost.resource", key.to_string());
        say("fencepost.token", token.to_string());
        if let Some(mark) = refused.and_then(|refusal| refusal.mark(subject)) {
            say("fencepost.mark", mark.to_string());
        }
        if let Some(gap) = refused.and_then(|refusal| refusal.gap(subject)) {
            say("fencepost.gap", gap.to_string());
        }
    }
    if let Some(id) = facts.text(false).request_id {
        say("fencepost.request_id", id);
    }
    let route = scope.route().map(|route| route.settings.path.as_str());
    trace.answered(route, status, outcome.map(Outcome::as_str), more);
}

/// Has an answered request logged, if `log.access` names it. An unknown outcome has another line,
/// with the reason.
fn log_answered(
    context: &Context<'_>,
    label: &str,
    outcome: Option<Outcome>,
    response: &mut Response<ClientBody>,
) {
    let settings = &context.table().settings.log;
    let wanted = match settings.access {
        AccessLog::All => true,
        AccessLog::Fenced => outcome != Some(Outcome::Unfenced),
        AccessLog::Off | AccessLog::Refusals => false,
    };
    if wanted && outcome != Some(Outcome::OutcomeUnknown) {
        let status = response.status();
        response.body.log(AccessRecord {
            facts: Arc::clone(&context.facts),
            label: label.to_owned(),
            outcome,
            status,
            query: settings.query,
            bytes: 0,
            whole: false,
        });
    }
}
