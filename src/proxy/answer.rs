//! Answers every class of request. Each request is counted once, by its last outcome, and is logged
//! and remembered if it was refused.

use std::sync::Arc;

use http::StatusCode;
use opentelemetry::KeyValue;

use super::access_log::AccessRecord;
use super::classify::Scope;
use super::context::Context;
use super::notes::Noted;
use super::refusal::Refusal;
use super::request_facts::RequestFacts;
use super::routing_table::RoutingTable;
use super::setup::Proxy;
use crate::config::AccessLog;
use crate::http1::Response;
use crate::metrics::{CLAIM, DecidedBy, Outcome, RouteMetrics, UNMATCHED};
use crate::proxy::client_body::ClientBody;
use crate::routing::Token;
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
        let refusal = match done {
            Ok(Forwarded {
                mut response,
                counted,
            }) => {
                let status = response.status();
                let mut ended = None;
                match counted {
                    CountAs::Outcome(outcome) => {
                        ended = Some(outcome);
                        metrics.request(outcome);
                        log_answered(context, label, Some(outcome), &mut response);
                    }
                    CountAs::Beside => log_answered(context, label, None, &mut response),
                    CountAs::AtEnd(Some(outcome)) => {
                        ended = Some(outcome);
                        log_answered(context, label, Some(outcome), &mut response);
                    }
                    // The log has another line for it, with the reason.
                    CountAs::AtEnd(None) => ended = Some(Outcome::OutcomeUnknown),
                }
                trace_answer(facts, scope, status, ended, None);
                time(facts, metrics, &mut response);
                return response;
            }
            Err(refusal) => refusal,
        };
        let outcome = refusal.outcome();
        metrics.request(outcome);
        let subject = facts.subject.get();
        let mark = refusal.mark(subject);
        if outcome == Outcome::StaleToken
            && let Some((key, token)) = subject
        {
            let by = match &refusal {
                Refusal::Stale { decided_by, .. } => *decided_by,
                _ => DecidedBy::Store,
            };
            metrics.stale(by, mark.map_or(0, |mark| token.gap_to(mark)));
            self.metrics.stale_resource(key, std::time::Instant::now());
        }
        let mut response = refusal.respond(context.style(), subject);
        let settings = &context.table().settings.log;
        let status = response.status();
        let noted = Noted {
            label,
            facts,
            refusal: &refusal,
            status,
        };
        self.notes.note(settings, noted);
        if let Some(head) = &facts.head {
            // What the caller quotes is what the log says.
            head.identify(&mut response.head.fields);
        }
        trace_answer(facts, scope, response.status(), Some(outcome), mark);
        time(facts, metrics, &mut response);
        response
    }
}

/// Measures the request until its answer has been taken, and ends its span there.
fn time(facts: &RequestFacts, metrics: &RouteMetrics, response: &mut Response<ClientBody>) {
    let trace = facts.trace();
    let timer = metrics.duration(facts.began);
    response.body.time(timer, trace.map(RequestTrace::guard));
}

/// Says in the request's span how it is answered.
fn trace_answer(
    facts: &RequestFacts,
    scope: &Scope,
    status: StatusCode,
    outcome: Option<Outcome>,
    mark: Option<Token>,
) {
    let Some(trace) = facts.trace() else {
        return;
    };
    let mut more = Vec::new();
    let mut say = |name: &'static str, value: String| more.push(KeyValue::new(name, value));
    if let Some((key, token)) = facts.subject.get() {
        say("fencepost.resource", key.to_string());
        say("fencepost.token", token.to_string());
        if let Some(mark) = mark {
            say("fencepost.mark", mark.to_string());
            if *token <= mark {
                say("fencepost.gap", token.gap_to(mark).to_string());
            }
        }
    }
    if let Some(id) = facts.text(false).request_id {
        say("fencepost.request_id", id);
    }
    let route = scope.route().map(|route| route.settings.path.as_str());
    trace.answered(route, status, outcome.map(Outcome::as_str), more);
}

/// Has an answered request logged, if `log.access` names it.
fn log_answered(
    context: &Context<'_>,
    label: &str,
    outcome: Option<Outcome>,
    response: &mut Response<ClientBody>,
) {
    let facts = &context.facts;
    let Some(clock) = &facts.clock else {
        return;
    };
    let settings = &context.table().settings.log;
    let judged = outcome != Some(Outcome::Unfenced);
    let wanted = settings.access == AccessLog::All || judged;
    if wanted {
        let subject = facts.subject.get();
        let status = response.status();
        response.body.log(AccessRecord {
            clock: clock.clone(),
            label: label.to_owned(),
            outcome,
            status,
            client: Arc::clone(&facts.client),
            subject: subject.map(|(key, token)| (key.to_string(), token.to_string())),
            request: facts.text(settings.query),
            bytes: 0,
            whole: false,
        });
    }
}
