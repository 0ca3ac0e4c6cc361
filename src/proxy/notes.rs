//! [`Notes`]: what operators see of refusals and unknown outcomes, in the log and in the admin API.

use std::sync::Arc;

use http::StatusCode;

use super::refusal::{DetailReader, Refusal};
use super::request_facts::RequestFacts;
use crate::config::{AccessLog, LogSettings};
use crate::json_values::wall_clock;
use crate::metrics::Outcome;
use crate::rejections::{RecentRejection, Rejections, RequestText};
use crate::routing::ResourceKey;
use crate::throttle::Throttle;

/// The refusals and unknown outcomes that operators see: in the log and in the admin API.
pub(crate) struct Notes {
    /// Which refusals are logged.
    pub(super) throttles: RefusalThrottles,
    rejections: Arc<Rejections>,
}

/// A refusal or an unknown outcome.
#[derive(Clone, Copy)]
pub(super) struct Noted<'a> {
    pub label: &'a str,
    pub facts: &'a RequestFacts,
    pub refusal: &'a Refusal,
    pub status: StatusCode,
}

impl Notes {
    pub(super) fn new(rejections: Arc<Rejections>) -> Self {
        Self {
            throttles: RefusalThrottles::default(),
            rejections,
        }
    }

    /// Logs and remembers it. Under overload, only logged refusals are remembered: the others would
    /// displace the refusals of the fence.
    pub(super) fn note(&self, settings: &LogSettings, noted: Noted<'_>) {
        let Noted {
            label,
            facts,
            refusal,
            status,
        } = noted;
        let outcome = refusal.outcome();
        let request = facts.text(settings.query);
        let throttle = || self.throttles.say(outcome);
        let said = match settings.access {
            AccessLog::Off => None,
            _ => throttle(),
        };
        // A request with an unknown outcome was sent: it was not refused.
        let message = match outcome {
            Outcome::OutcomeUnknown => "the outcome is unknown",
            _ => "refused",
        };
        if let Some(left_out) = said {
            let line = RefusalLine {
                label,
                facts,
                refusal,
                status: Some(status),
                request: &request,
                left_out,
            };
            line.log(message);
        } else if outcome == Outcome::Overloaded {
            return;
        }
        let subject = facts.subject.get();
        self.rejections.push(RecentRejection {
            at: wall_clock(),
            route: label.into(),
            resource: subject.map(|(key, _)| key.clone()),
            token: subject.map(|(_, token)| *token),
            mark: refusal.mark(subject),
            outcome,
            peer: facts.client.to_string(),
            status: status.as_u16(),
            request,
        });
    }
}

/// The line of a refusal, or of what observe mode would have refused.
pub(super) struct RefusalLine<'a> {
    pub label: &'a str,
    pub facts: &'a RequestFacts,
    pub refusal: &'a Refusal,
    /// Of the answer. `None`: the refusal was not answered.
    pub status: Option<StatusCode>,
    pub request: &'a RequestText,
    /// How many similar lines were omitted before it.
    pub left_out: u64,
}

impl RefusalLine<'_> {
    pub(super) fn log(&self, message: &'static str) {
        let Self {
            label,
            facts,
            refusal,
            status,
            request,
            left_out,
        } = *self;
        let subject = facts.subject.get();
        let (key, token) = subject.map(|(key, token)| (key, *token)).unzip();
        let mark = refusal.mark(subject);
        let behind = token.zip(mark).filter(|(token, mark)| token <= mark);
        let gap = behind.map(|(token, mark)| token.gap_to(mark));
        tracing::warn!(
            outcome = refusal.outcome().as_str(),
            status = status.map(|status| status.as_u16()),
            method = request.method.as_deref(),
            path = request.path.as_deref(),
            route = label,
            resource = key.map(ResourceKey::as_str),
            token = token.map(|token| token.to_string()),
            mark = mark.map(|mark| mark.to_string()),
            gap = gap.map(|gap| gap.to_string()),
            client = &*facts.client,
            client_name = facts.client_name.as_deref(),
            forwarded_for = request.forwarded_for.as_deref(),
            user_agent = request.user_agent.as_deref(),
            request_id = request.request_id.as_deref(),
            trace_id = request.trace_id.as_deref(),
            reason = refusal.detail(DetailReader::Log, subject),
            left_out = (left_out > 0).then_some(left_out),
            "{message}"
        );
    }
}

/// Limits the log lines for refusals, each reason by itself: a line for each refusal of a storm would
/// cost more than the refusal, and hide the other reasons.
#[derive(Debug)]
pub(crate) struct RefusalThrottles(Vec<Throttle>);

impl Default for RefusalThrottles {
    fn default() -> Self {
        let of = |outcome: &Outcome| match outcome {
            Outcome::Overloaded => Throttle::of_many(),
            _ => Throttle::of_refusals(),
        };
        Self(Outcome::ALL.iter().map(of).collect())
    }
}

impl RefusalThrottles {
    /// `Some` if a refusal of this kind is logged, with the number of similar ones left out before
    /// it.
    pub(crate) fn say(&self, outcome: Outcome) -> Option<u64> {
        // In the order of `Outcome::ALL`.
        self.0[outcome as usize].say(tokio::time::Instant::now())
    }
}
