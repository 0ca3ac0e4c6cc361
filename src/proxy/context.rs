//! [`Context`]: the settings, the client and the facts that all phases of one request need.

use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{Request, Version};

use super::access_log::AccessClock;
use super::body::Received;
use super::client::Client;
use super::headers;
use super::headers::media::is_grpc;
use super::logged_head::LoggedHead;
use super::refusal::Subject;
use super::refusal::problem::AnswerStyle;
use super::request_facts::RequestFacts;
use super::routing_table::{RoutingTable, Snapshot};
use crate::traces::{RequestTrace, TraceHead, TraceParent};

/// The context of one request, for all its phases.
pub(super) struct Context<'a> {
    /// The settings that hold for this request to its end.
    pub snapshot: Arc<Snapshot>,
    pub client: &'a Client,
    /// Its peer is one of `trusted_proxies`, or came over a Unix socket.
    pub by_proxy: bool,
    pub facts: Arc<RequestFacts>,
}

impl<'a> Context<'a> {
    /// The context of a request whose head was refused.
    pub(super) fn unread(snapshot: Arc<Snapshot>, client: &'a Client) -> Self {
        Self {
            snapshot,
            client,
            by_proxy: false,
            facts: Arc::new(RequestFacts::unread(client)),
        }
    }

    pub(super) fn of(
        request: &Request<Received>,
        snapshot: Arc<Snapshot>,
        client: &'a Client,
    ) -> Self {
        let mut facts = RequestFacts::unread(client);
        let parent = TraceParent::of(request.headers());
        let mut trace = None;
        if let Some(traces) = &snapshot.traces {
            let head = TraceHead {
                began: facts.began,
                method: request.method(),
                path: request.uri().path_and_query().map(PathAndQuery::path),
                version: request.version(),
                headers: request.headers(),
                client: &client.text,
            };
            trace = traces.request(parent.as_ref(), head);
        }
        let head = LoggedHead::of(request, parent.as_ref(), trace);
        facts.head = Some(head);
        facts.clock = AccessClock::of(snapshot.table.settings.log.access);
        facts.grpc = reads_grpc(request);
        Self {
            snapshot,
            client,
            by_proxy: false,
            facts: Arc::new(facts),
        }
    }

    pub(super) fn table(&self) -> &RoutingTable {
        &self.snapshot.table
    }

    pub(super) fn trace(&self) -> Option<&RequestTrace> {
        self.facts.trace().map(Arc::as_ref)
    }

    /// Sets the resource and the token of the request.
    pub(super) fn is_about(&self, subject: Subject) {
        let _ = self.facts.subject.set(subject);
    }

    pub(super) fn style(&self) -> AnswerStyle<'_> {
        self.table().style(&self.facts)
    }
}

/// Whether the caller is a gRPC library, which reads a refusal as a gRPC status in a 200 response.
/// Any other client would take that for a success. gRPC is HTTP/2 with `te: trailers`; a content
/// type can stand on any request (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>,
/// Requests).
fn reads_grpc<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    is_grpc(headers) && request.version() == Version::HTTP_2 && headers::takes_trailers(headers)
}
