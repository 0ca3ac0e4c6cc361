//! [`Context`]: the settings, the client and the facts that all phases of one request need.

use std::sync::Arc;

use http::Version;

use super::access_log::AccessClock;
use super::client::Client;
use super::headers;
use super::headers::media::is_grpc;
use super::logged_head::LoggedHead;
use super::refusal::Subject;
use super::refusal::problem::AnswerStyle;
use super::request_facts::RequestFacts;
use super::routing_table::{RoutingTable, Snapshot};
use crate::http1::RequestHead;
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

    pub(super) fn of(head: &RequestHead, snapshot: Arc<Snapshot>, client: &'a Client) -> Self {
        let mut facts = RequestFacts::unread(client);
        let parent = TraceParent::of(&head.fields);
        let mut trace = None;
        if let Some(traces) = &snapshot.traces {
            let head = TraceHead {
                began: facts.began,
                method: &head.method,
                path: head.target.path(),
                version: head.version,
                fields: &head.fields,
                client: &client.text,
            };
            trace = traces.request(parent.as_ref(), head);
        }
        facts.head = Some(LoggedHead::of(head, parent.as_ref(), trace));
        facts.clock = AccessClock::of(snapshot.table.settings.log.access);
        facts.grpc = reads_grpc(head);
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
fn reads_grpc(head: &RequestHead) -> bool {
    let fields = &head.fields;
    is_grpc(fields) && head.version == Version::HTTP_2 && headers::takes_trailers(fields)
}
