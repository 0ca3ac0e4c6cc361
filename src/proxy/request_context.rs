//! The facts about a request that its answer and its log line need.

use std::sync::{Arc, OnceLock};

use http::{Request, Version};

use super::peer::{Peer, PeerNames};
use super::received::Received;
use super::refusal::Subject;
use super::respond::AnswerStyle;
use super::table::RoutingTable;
use super::{conclusion, headers};

/// The facts about a request that its answer and its log line need.
#[derive(Clone)]
pub(super) struct RequestContext {
    pub peer: Arc<str>,
    /// The names in the client's certificate.
    pub peer_name: Option<Arc<str>>,
    pub trace_id: Option<String>,
    /// The caller reads a refusal as a gRPC status ([`reads_grpc`]).
    pub grpc: bool,
    /// Set once the key is derived, so that whatever ends the request can be found by it.
    pub subject: OnceLock<Subject>,
}

impl RequestContext {
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

    pub(super) fn style(&self, table: &RoutingTable) -> AnswerStyle {
        AnswerStyle {
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
