//! Answers every class of request. Each request is counted once, by its last outcome, and is logged
//! and remembered if it was refused.

use std::sync::Arc;

use opentelemetry::KeyValue;

use super::context::Context;
use super::log::AnswerRecord;
use super::refusal::Refusal;
use crate::config::AccessLog;
use crate::fencing::Refused;
use crate::http1::Response;
use crate::metrics::{DecidedBy, Outcome};
use crate::proxy::client_body::ClientBody;

/// A request that was answered by the upstream, or a claim that was granted.
pub(super) struct Forwarded {
    pub response: Response<ClientBody>,
    /// `None`: the check beside its exchange decides it.
    pub outcome: Option<Outcome>,
}

impl Context {
    /// Counts, logs and remembers the outcome of a request, and answers.
    pub(super) fn answer(
        self: &Arc<Self>,
        done: Result<Forwarded, Refusal>,
    ) -> Response<ClientBody> {
        let metrics = self.metrics();
        let mut refused = None;
        let (mut response, outcome) = match done {
            Ok(Forwarded { response, outcome }) => {
                // An exchange under a permit, or the check of an observed request, counts its
                // request when it ends.
                let later = [Outcome::Advanced, Outcome::Current, Outcome::OutcomeUnknown];
                if let Some(outcome) = outcome.filter(|outcome| !later.contains(outcome)) {
                    metrics.request(outcome);
                }
                (response, outcome)
            }
            Err(refusal) => {
                let refusal = &*refused.insert(refusal);
                let outcome = refusal.outcome();
                metrics.request(outcome);
                self.count_stale(refusal);
                let response = self.refuse(refusal);
                self.note(refusal, Some(response.status()));
                (response, Some(outcome))
            }
        };
        let status = response.status();
        if let Some(trace) = &self.trace {
            let (subject, (key, token)) = (self.subject.get(), self.key_and_token());
            let mark = refused.as_ref().and_then(|refusal| refusal.mark(subject));
            let gap = refused.as_ref().and_then(|refusal| refusal.gap(subject));
            let more = [
                ("fencepost.resource", key.map(ToString::to_string)),
                ("fencepost.token", token.map(ToString::to_string)),
                ("fencepost.mark", mark.map(|mark| mark.to_string())),
                ("fencepost.gap", gap.map(|gap| gap.to_string())),
                ("fencepost.request_id", self.text(false).request_id),
            ];
            let more = more.into_iter();
            let more = more.filter_map(|(name, value)| Some(KeyValue::new(name, value?)));
            let route = self.route.as_ref();
            let route = route.map(|route| route.settings.path.as_str());
            trace.answered(route, status, outcome.map(Outcome::as_str), more);
        }
        response.body.record(AnswerRecord {
            context: Arc::clone(self),
            _timer: metrics.duration(self.progress.began),
            logged: refused.is_none() && self.logs_answer(outcome),
            outcome,
            status,
            bytes: 0,
            whole: false,
        });
        response
    }

    /// Counts a stale token by what has found it.
    fn count_stale(&self, refusal: &Refusal) {
        let subject = self.subject.get();
        let by = match refusal.refused() {
            Some(Refused::Stale { decided_by, .. }) => *decided_by,
            Some(Refused::Spent) => DecidedBy::Store,
            _ => return,
        };
        if subject.is_some() {
            let gap = refusal.gap(subject).unwrap_or_default();
            self.metrics().stale(by, gap);
        }
    }

    /// The answer of a refusal or an unknown outcome.
    pub(super) fn refuse(&self, refusal: &Refusal) -> Response<ClientBody> {
        let mut response = refusal.respond(self.style(), self.subject.get());
        // The caller can quote the id that the log has.
        self.identify(&mut response.head.fields);
        response
    }

    /// Says if `log.access` names this answer. An unknown outcome has another line, with the reason.
    fn logs_answer(&self, outcome: Option<Outcome>) -> bool {
        let wanted = match self.log().access {
            AccessLog::All => true,
            AccessLog::Fenced => outcome != Some(Outcome::Unfenced),
            AccessLog::Off | AccessLog::Refusals => false,
        };
        wanted && outcome != Some(Outcome::OutcomeUnknown)
    }
}
