//! The record of a request beside its answer. It is counted once, by the last thing that became of
//! it, and logged and remembered if it was refused.

use std::time::SystemTime;

use http::Response;

use super::core::Proxy;
use super::counting::{CountAs, Forwarded, Scope};
use super::refusal::{DetailReader, Refusal, Why};
use super::reply::ClientBody;
use super::request_context::RequestContext;
use super::table::RoutingTable;
use crate::metrics::{DecidedBy, Outcome};
use crate::rejections;
use crate::routing::ResourceKey;

impl Proxy {
    /// Counts, logs and remembers what became of a request, and answers.
    pub(super) fn finish(
        &self,
        table: &RoutingTable,
        scope: &Scope,
        about: &RequestContext,
        done: Result<Forwarded, Refusal>,
    ) -> Response<ClientBody> {
        let (metrics, label) = scope.series(table);
        let refusal = match done {
            Ok(Forwarded { response, counted }) => {
                match counted {
                    CountAs::Outcome(outcome) => metrics.request(outcome),
                    CountAs::Beside => {}
                    CountAs::InDoubt(doubt) => {
                        // The answer is the upstream's; what is said of it is as for one that did not come.
                        let said = "The answer leaves open what became of the request";
                        let broken = Refusal::Broken(Why::of(said, &doubt));
                        metrics.request(broken.outcome());
                        self.note(label, about, &broken);
                    }
                }
                return response;
            }
            Err(refusal) => refusal,
        };
        let outcome = refusal.outcome();
        metrics.request(outcome);
        if outcome == Outcome::StaleToken
            && let (Some(key), token, mark) = refusal.facts(about.subject.get())
        {
            let by = match &refusal {
                Refusal::Stale { decided_by, .. } => *decided_by,
                _ => DecidedBy::Store,
            };
            let gap = token
                .zip(mark)
                .map_or(0, |(token, mark)| token.gap_to(mark));
            metrics.stale(by, gap);
            self.metrics.stale_resource(key, std::time::Instant::now());
        }
        self.note(label, about, &refusal);
        refusal.respond(about.style(table), about.subject.get())
    }

    /// Logs and remembers what a person may look for. Of refusals under overload only those that are logged are
    /// remembered: the others would push out the refusals of the fence.
    fn note(&self, label: &str, about: &RequestContext, refusal: &Refusal) {
        let outcome = refusal.outcome();
        // A request with an unknown outcome was sent: it was not refused.
        let message = match outcome {
            Outcome::OutcomeUnknown => "the outcome is unknown",
            _ => "refused",
        };
        if let Some(left_out) = self.throttles.say(outcome) {
            log(label, about, refusal, message, left_out);
        } else if outcome == Outcome::Overloaded {
            return;
        }
        let (key, token, mark) = refusal.facts(about.subject.get());
        self.rejections.push(rejections::RecentRejection {
            #[expect(
                clippy::disallowed_methods,
                reason = "for people to read; nothing rests on it"
            )]
            at: SystemTime::now(),
            route: label.into(),
            resource: key.cloned(),
            token,
            mark,
            outcome,
            peer: about.peer.to_string(),
            trace_id: about.trace_id.clone(),
        });
    }
}

/// The line of a refusal, or of a would-be one. `left_out`: how many of its like before it have none.
pub(super) fn log(
    label: &str,
    about: &RequestContext,
    refusal: &Refusal,
    message: &'static str,
    left_out: u64,
) {
    let (key, token, mark) = refusal.facts(about.subject.get());
    let behind = token.zip(mark).filter(|(token, mark)| token <= mark);
    let gap = behind.map(|(token, mark)| token.gap_to(mark));
    tracing::warn!(
        outcome = refusal.outcome().as_str(),
        route = label,
        resource = key.map(ResourceKey::as_str),
        token = token.map(|token| token.to_string()),
        mark = mark.map(|mark| mark.to_string()),
        gap = gap.map(|gap| gap.to_string()),
        client = &*about.peer,
        client_name = about.peer_name.as_deref(),
        trace_id = about.trace_id.as_deref(),
        reason = refusal.detail(DetailReader::Log),
        left_out = (left_out > 0).then_some(left_out),
        "{message}"
    );
}
