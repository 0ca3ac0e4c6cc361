//! The lines about requests: refusals and unknown outcomes, which operators also see in the admin
//! API ([`Notes`](super::notes::Notes)), and answered requests (`log.access`).

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::context::Context;
use super::refusal::Refusal;
use crate::config::AccessLog;
use crate::json_values::wall_clock;
use crate::metrics::{Outcome, ResponseTimer};
use crate::rejections::Rejection;
use crate::routing::ResourceKey;

impl Context {
    /// Logs and remembers a refusal or an unknown outcome. Under overload, only logged refusals are
    /// remembered: the others would displace the refusals of the fence.
    /// `status`: of the answer; `None` in observe mode, where nothing was refused and nothing is
    /// remembered.
    pub(super) fn note(&self, refusal: &Refusal, status: Option<StatusCode>) {
        let outcome = refusal.outcome();
        let (throttled, message) = match outcome {
            _ if status.is_none() => (outcome.observed(), "would have been refused"),
            // A request with an unknown outcome was sent: it was not refused.
            Outcome::OutcomeUnknown => (outcome, "the outcome is unknown"),
            _ => (outcome, "refused"),
        };
        let notes = &self.snapshot.notes;
        let logged = self.log().access != AccessLog::Off;
        // The number of similar lines that were left out before this one.
        let left_out = logged.then(|| notes.say(throttled)).flatten();
        if left_out.is_none() && (status.is_none() || outcome == Outcome::Overloaded) {
            return;
        }
        let request = self.text(self.log().query);
        let subject = self.subject.get();
        let (key, token) = self.key_and_token();
        if let Some(left_out) = left_out {
            tracing::warn!(
                outcome = outcome.as_str(),
                status = status.map(|status| status.as_u16()),
                method = request.method.as_deref(),
                path = request.path.as_deref(),
                route = self.label(),
                resource = key.map(ResourceKey::as_str),
                token = token.map(ToString::to_string),
                mark = refusal.mark(subject).map(|mark| mark.to_string()),
                gap = refusal.gap(subject).map(|gap| gap.to_string()),
                client = &*self.client.text,
                client_name = self.client.name(),
                forwarded_for = request.forwarded_for.as_deref(),
                user_agent = request.user_agent.as_deref(),
                request_id = request.request_id.as_deref(),
                trace_id = request.trace_id.as_deref(),
                reason = refusal.detail(subject, true).to_string(),
                left_out = (left_out > 0).then_some(left_out),
                "{message}"
            );
        }
        if let Some(status) = status {
            let now = wall_clock();
            notes.rejections.push(Rejection {
                at: now,
                route: self.label().to_owned(),
                resource: key.cloned(),
                token: token.copied(),
                mark: refusal.mark(subject),
                gap: refusal.gap(subject).map(|gap| gap.to_string()),
                outcome,
                status: status.as_u16(),
                client: self.client.text.to_string(),
                request,
                times: 1,
                first_at: now,
            });
        }
    }
}

/// The record of an answer. When this is dropped, the client has taken the answer, or has left: then
/// the request has its duration, its line, and the end of its span.
pub(crate) struct AnswerRecord {
    pub(super) context: Arc<Context>,
    pub(super) _timer: ResponseTimer,
    /// It gets a line.
    pub(super) logged: bool,
    /// `None` if the check beside the exchange decides it.
    pub(super) outcome: Option<Outcome>,
    pub(super) status: StatusCode,
    /// Of the response's body, as far as the client has taken it.
    pub(super) bytes: u64,
    /// The client has taken all of it.
    pub(super) whole: bool,
}

impl Drop for AnswerRecord {
    fn drop(&mut self) {
        if !self.logged {
            return;
        }
        let context = &*self.context;
        let request = context.text(context.log().query);
        let (key, token) = context.key_and_token();
        let millis = |span: Duration| (span.as_secs_f64() * 1e6).round() / 1e3;
        tracing::info!(
            outcome = self.outcome.map(Outcome::as_str),
            status = self.status.as_u16(),
            method = request.method.as_deref(),
            path = request.path.as_deref(),
            route = context.label(),
            resource = key.map(ResourceKey::as_str),
            token = token.map(ToString::to_string),
            client = &*context.client.text,
            forwarded_for = request.forwarded_for.as_deref(),
            user_agent = request.user_agent.as_deref(),
            request_id = request.request_id.as_deref(),
            trace_id = request.trace_id.as_deref(),
            bytes = self.bytes,
            whole = self.whole,
            duration_ms = millis(context.progress.began.elapsed()),
            upstream_ms = context.upstream.get().copied().map(millis),
            "answered"
        );
    }
}
