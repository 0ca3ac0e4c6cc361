//! [`Context`]: the settings, the client and the facts that all phases of one request need.

use std::sync::Arc;

use super::client::Client;
use super::facts::RequestFacts;
use super::refusal::Subject;
use super::refusal::problem::AnswerStyle;
use super::routing_table::{RoutingTable, Snapshot};
use crate::http1::RequestHead;
use crate::traces::RequestTrace;

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
    /// `head`: `None` if it could not be read.
    pub(super) fn of(
        head: Option<&RequestHead>,
        snapshot: Arc<Snapshot>,
        client: &'a Client,
    ) -> Self {
        let access = snapshot.table.settings.log.access;
        let facts = RequestFacts::of(head, client, snapshot.traces.as_ref(), access);
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
        self.facts.trace.as_deref()
    }

    /// Sets the resource and the token of the request.
    pub(super) fn is_about(&self, subject: Subject) {
        let _ = self.facts.subject.set(subject);
    }

    pub(super) fn style(&self) -> AnswerStyle<'_> {
        self.table().style(self.facts.grpc)
    }
}
