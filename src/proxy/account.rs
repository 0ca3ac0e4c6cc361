//! What is said of a request besides its answer: counted once, by the last thing that became of it; logged and
//! remembered where it was refused.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::{Request, Response};
use hyper::body::Incoming;

use super::respond::{Refusal, Style, Subject};
use super::table::Table;
use super::{ClientBody, Done, Peer, PeerNames, Proxy, headers};
use crate::fence::ResourceKey;
use crate::metrics::{DecidedBy, Outcome, RouteMetrics};
use crate::rejections;

/// What is kept of a request for its answer and its log line.
#[derive(Clone)]
pub(super) struct About {
    pub peer: Arc<str>,
    /// The names in the client's certificate.
    peer_name: Option<Arc<str>>,
    pub trace_id: Option<String>,
    pub grpc: bool,
    /// Set once the key is derived, so that whatever ends the request can be found by it.
    pub subject: OnceLock<Subject>,
}

impl About {
    /// Of a request whose head was not taken.
    pub(super) fn unread(peer: &Peer) -> Self {
        Self {
            peer: Arc::clone(&peer.text),
            peer_name: peer.names().and_then(PeerNames::text),
            trace_id: None,
            grpc: false,
            subject: OnceLock::new(),
        }
    }

    pub(super) fn of(request: &Request<Incoming>, peer: &Peer) -> Self {
        let headers = request.headers();
        let content_type = headers.get(http::header::CONTENT_TYPE);
        Self {
            trace_id: headers::trace::trace_id(headers).map(str::to_owned),
            grpc: content_type
                .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")),
            ..Self::unread(peer)
        }
    }

    pub(super) fn style(&self, table: &Table) -> Style {
        Style {
            stale_status: table.stale_status,
            disclose: table.disclose,
            grpc: self.grpc,
        }
    }
}

impl Proxy {
    /// Counts, logs and remembers what became of a request, and answers.
    pub(super) fn finish(
        &self,
        table: &Table,
        metrics: &RouteMetrics,
        label: &str,
        about: &About,
        done: Result<Done, Refusal>,
    ) -> Response<ClientBody> {
        let refusal = match done {
            Ok(Done { response, outcome }) => {
                match outcome {
                    Ok(outcome) => metrics.request(outcome),
                    Err(doubt) => {
                        // The answer is the upstream's; what is said of it is as for one that did not come.
                        let broken = Refusal::Broken(doubt.to_string());
                        metrics.request(broken.outcome());
                        self.note(label, about, &broken, "the outcome is unknown", 0);
                    }
                }
                return response;
            }
            Err(refusal) => refusal,
        };
        let outcome = refusal.outcome();
        metrics.request(outcome);
        if outcome == Outcome::Stale
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
        // What is shed is counted, and said now and then: whoever looks for a refusal of the fence's finds it.
        let left_out = match outcome {
            Outcome::Overloaded => self.shed.say(tokio::time::Instant::now()),
            _ => Some(0),
        };
        let Some(left_out) = left_out else {
            return refusal.respond(about.style(table), about.subject.get());
        };
        self.note(label, about, &refusal, "refused", left_out);
        refusal.respond(about.style(table), about.subject.get())
    }

    /// Logs and remembers what a person may look for.
    fn note(
        &self,
        label: &str,
        about: &About,
        refusal: &Refusal,
        message: &'static str,
        left_out: u64,
    ) {
        log(label, about, refusal, message, left_out);
        let (key, token, mark) = refusal.facts(about.subject.get());
        self.rejections.push(rejections::Refusal {
            #[expect(
                clippy::disallowed_methods,
                reason = "for people to read; nothing rests on it"
            )]
            at: SystemTime::now(),
            route: label.into(),
            resource: key.cloned(),
            token,
            mark,
            outcome: refusal.outcome(),
            peer: about.peer.to_string(),
            trace_id: about.trace_id.clone(),
        });
    }
}

/// One line per refusal, or would-be refusal. `left_out`: how many of its like were not said before it.
pub(super) fn log(
    label: &str,
    about: &About,
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
        peer = &*about.peer,
        peer_name = about.peer_name.as_deref(),
        trace_id = about.trace_id.as_deref(),
        reason = refusal.detail(true),
        left_out = (left_out > 0).then_some(left_out),
        "{message}"
    );
}
