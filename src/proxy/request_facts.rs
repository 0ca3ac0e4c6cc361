//! [`RequestFacts`]: what the answer and the log line of a request need to know about it.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::access_log::AccessClock;
use super::client::{Client, ClientNames};
use super::logged_head::LoggedHead;
use super::refusal::Subject;
use crate::rejections::RequestText;
use crate::traces::RequestTrace;

/// The facts about a request that its answer and its log line need. Shared with what outlives its
/// handler.
pub(super) struct RequestFacts {
    pub client: Arc<str>,
    /// The names in the client's certificate.
    pub client_name: Option<Arc<str>>,
    /// `None`: the head could not be read.
    pub head: Option<LoggedHead>,
    /// `None`: no answered request is logged.
    pub clock: Option<AccessClock>,
    /// The caller reads a refusal as a gRPC status.
    pub grpc: bool,
    /// When its head had arrived.
    pub began: Instant,
    /// Set once the key is derived, so that any refusal of the request can be found by it.
    pub subject: OnceLock<Subject>,
}

impl RequestFacts {
    pub(super) fn unread(client: &Client) -> Self {
        Self {
            client: Arc::clone(&client.text),
            client_name: client.names().and_then(ClientNames::text),
            head: None,
            clock: None,
            grpc: false,
            began: Instant::now(),
            subject: OnceLock::new(),
        }
    }

    /// `None`: it is not traced.
    pub(super) fn trace(&self) -> Option<&Arc<RequestTrace>> {
        self.head.as_ref()?.trace.as_ref()
    }

    /// The request in words. `query`: with its query.
    pub(super) fn text(&self, query: bool) -> RequestText {
        let head = self.head.as_ref();
        head.map_or_else(RequestText::default, |head| head.text(query))
    }
}
