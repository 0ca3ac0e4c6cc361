//! The lines about requests: refusals and unknown outcomes, which operators also see in the admin
//! API ([`Notes`]), and answered requests (`log.access`).

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::facts::RequestFacts;
use super::refusal::Refusal;
use crate::config::{AccessLog, LogSettings};
use crate::json_values::wall_clock;
use crate::metrics::Outcome;
use crate::rejections::{RecentRejection, Rejections, RequestText};
use crate::routing::ResourceKey;
use crate::throttle::Throttle;

/// The refusals and unknown outcomes that operators see: in the log and in the admin API.
pub(crate) struct Notes {
    /// Limits the log lines, each outcome by itself: a line for each refusal of a storm would cost
    /// more than the refusal, and hide the other reasons. In the order of [`Outcome::ALL`].
    throttles: Vec<Throttle>,
    rejections: Arc<Rejections>,
}

/// A refusal or an unknown outcome; in observe mode what would have been one.
#[derive(Clone, Copy)]
pub(super) struct Noted<'a> {
    /// The route's.
    pub label: &'a str,
    pub facts: &'a RequestFacts,
    pub refusal: &'a Refusal,
    /// Of the answer. `None`: the refusal was not answered.
    pub status: Option<StatusCode>,
}

impl Notes {
    pub(super) fn new(rejections: Arc<Rejections>) -> Self {
        let throttle = |outcome: &Outcome| match outcome {
            Outcome::Overloaded => Throttle::of_many(),
            _ => Throttle::of_refusals(),
        };
        Self {
            throttles: Outcome::ALL.iter().map(throttle).collect(),
            rejections,
        }
    }

    /// `Some` if a line about this outcome is logged, with the number of similar ones that were left
    /// out before it.
    pub(super) fn say(&self, outcome: Outcome) -> Option<u64> {
        self.throttles[outcome as usize].say(Instant::now())
    }

    /// Logs and remembers it. Under overload, only logged refusals are remembered: the others would
    /// displace the refusals of the fence.
    pub(super) fn note(&self, settings: &LogSettings, noted: Noted<'_>) {
        let outcome = noted.refusal.outcome();
        let request = noted.facts.text(settings.query);
        // A request with an unknown outcome was sent: it was not refused.
        let message = match outcome {
            Outcome::OutcomeUnknown => "the outcome is unknown",
            _ => "refused",
        };
        let logged = settings.access != AccessLog::Off;
        if let Some(left_out) = logged.then(|| self.say(outcome)).flatten() {
            noted.log(&request, left_out, message);
        } else if outcome == Outcome::Overloaded {
            return;
        }
        let subject = noted.facts.subject.get();
        self.rejections.push(RecentRejection {
            at: wall_clock(),
            route: noted.label.into(),
            resource: subject.map(|(key, _)| key.clone()),
            token: subject.map(|(_, token)| *token),
            mark: noted.refusal.mark(subject),
            outcome,
            peer: noted.facts.client.to_string(),
            status: noted.status.map_or(0, |status| status.as_u16()),
            request,
        });
    }
}

impl Noted<'_> {
    /// `left_out`: how many similar lines were left out before this one.
    pub(super) fn log(&self, request: &RequestText, left_out: u64, message: &'static str) {
        let (facts, refusal) = (self.facts, self.refusal);
        let subject = facts.subject.get();
        let (key, token) = subject.map(|(key, token)| (key, token)).unzip();
        tracing::warn!(
            outcome = refusal.outcome().as_str(),
            status = self.status.map(|status| status.as_u16()),
            method = request.method.as_deref(),
            path = request.path.as_deref(),
            route = self.label,
            resource = key.map(ResourceKey::as_str),
            token = token.map(ToString::to_string),
            mark = refusal.mark(subject).map(|mark| mark.to_string()),
            gap = refusal.gap(subject).map(|gap| gap.to_string()),
            client = &*facts.client,
            client_name = facts.client_name.as_deref(),
            forwarded_for = request.forwarded_for.as_deref(),
            user_agent = request.user_agent.as_deref(),
            request_id = request.request_id.as_deref(),
            trace_id = request.trace_id.as_deref(),
            reason = refusal.detail(subject, true).to_string(),
            left_out = (left_out > 0).then_some(left_out),
            "{message}"
        );
    }
}

/// The line of an answered request. It is written when this is dropped: the client has taken the
/// answer, or has left.
pub(crate) struct AccessRecord {
    pub(super) facts: Arc<RequestFacts>,
    /// The route's label.
    pub(super) label: String,
    /// `None` if the check beside the exchange decides it.
    pub(super) outcome: Option<Outcome>,
    pub(super) status: StatusCode,
    /// The path is shown with its query.
    pub(super) query: bool,
    /// Of the response's body, as far as the client has taken it.
    pub(super) bytes: u64,
    /// The client has taken all of it.
    pub(super) whole: bool,
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        let facts = &*self.facts;
        let request = facts.text(self.query);
        let (key, token) = facts.subject.get().map(|(key, token)| (key, token)).unzip();
        let millis = |span: Duration| (span.as_secs_f64() * 1e6).round() / 1e3;
        tracing::info!(
            outcome = self.outcome.map(Outcome::as_str),
            status = self.status.as_u16(),
            method = request.method.as_deref(),
            path = request.path.as_deref(),
            route = self.label,
            resource = key.map(ResourceKey::as_str),
            token = token.map(ToString::to_string),
            client = &*facts.client,
            forwarded_for = request.forwarded_for.as_deref(),
            user_agent = request.user_agent.as_deref(),
            request_id = request.request_id.as_deref(),
            trace_id = request.trace_id.as_deref(),
            bytes = self.bytes,
            whole = self.whole,
            duration_ms = millis(facts.began.elapsed()),
            upstream_ms = facts.upstream.get().copied().map(millis),
            "answered"
        );
    }
}
