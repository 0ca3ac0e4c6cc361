//! The record of a request beside its answer. It is counted once, by the last thing that became of
//! it, and logged and remembered if it was refused.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::{Request, Response, Version};

use super::received::Received;
use super::respond::{Reader, Refusal, Style, Subject, Why};
use super::table::Table;
use super::{ClientBody, CountAs, Done, Peer, PeerNames, Proxy, Scope, conclusion, headers};
use crate::metrics::{DecidedBy, Outcome};
use crate::rejections;
use crate::routing::ResourceKey;
use crate::throttle::Throttle;

/// What is kept of a request for its answer and its log line.
#[derive(Clone)]
pub(super) struct About {
    pub peer: Arc<str>,
    /// The names in the client's certificate.
    peer_name: Option<Arc<str>>,
    pub trace_id: Option<String>,
    /// The caller reads a refusal as a gRPC status ([`reads_grpc`]).
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

    pub(super) fn of(request: &Request<Received>, peer: &Peer) -> Self {
        Self {
            trace_id: headers::trace::trace_id(request.headers()).map(str::to_owned),
            grpc: reads_grpc(request),
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

/// Whether the caller is a gRPC library, to which a refusal is a status in a response 200. To any
/// other client that would be a success. gRPC is HTTP/2 with `te: trailers`; a content type can
/// stand on any request
/// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, Requests).
fn reads_grpc<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    conclusion::is_grpc(headers)
        && request.version() == Version::HTTP_2
        && headers::takes_trailers(headers)
}

/// Limits the lines for refusals, each reason by itself: a line for each refusal of a storm would cost more
/// than the refusal, and hide the other reasons.
#[derive(Debug)]
pub(super) struct Throttles(Vec<Throttle>);

impl Default for Throttles {
    fn default() -> Self {
        let of = |outcome: &Outcome| match outcome {
            Outcome::Overloaded => Throttle::of_many(),
            _ => Throttle::of_refusals(),
        };
        Self(Outcome::ALL.iter().map(of).collect())
    }
}

impl Throttles {
    /// Whether a refusal of this kind is logged; with how many of its like were left out before it.
    pub(super) fn say(&self, outcome: Outcome) -> Option<u64> {
        // In the order of `Outcome::ALL`.
        self.0[outcome as usize].say(tokio::time::Instant::now())
    }
}

impl Proxy {
    /// Counts, logs and remembers what became of a request, and answers.
    pub(super) fn finish(
        &self,
        table: &Table,
        scope: &Scope,
        about: &About,
        done: Result<Done, Refusal>,
    ) -> Response<ClientBody> {
        let (metrics, label) = scope.series(table);
        let refusal = match done {
            Ok(Done { response, counted }) => {
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
    fn note(&self, label: &str, about: &About, refusal: &Refusal) {
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
            outcome,
            peer: about.peer.to_string(),
            trace_id: about.trace_id.clone(),
        });
    }
}

/// The line of a refusal, or of a would-be one. `left_out`: how many of its like before it have none.
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
        client = &*about.peer,
        client_name = about.peer_name.as_deref(),
        trace_id = about.trace_id.as_deref(),
        reason = refusal.detail(Reader::Log),
        left_out = (left_out > 0).then_some(left_out),
        "{message}"
    );
}
