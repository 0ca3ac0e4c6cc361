//! Decides whether a whole response means that the upstream has finished with its request.
//!
//! A gateway between (nginx, Envoy, a load balancer) answers 502 or 504 when it has lost the service
//! behind it. Its response is whole, and the service may still be at work on the request. To a gRPC
//! call it says so by a `grpc-status`, in the head or in trailers, whatever the HTTP status is (nginx
//! sends 204, and no content type, where `error_page` is set up as its users do). A response that only the end of its
//! connection ends (RFC 9112, 6.3) looks whole wherever it was cut. In all these cases the client gets
//! the response as it is, and the permit ends as an unknown outcome.

use std::fmt;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, StatusCode, Version};

use super::headers::OUTCOME;
use crate::config::UnknownStatuses;
use crate::metrics::Outcome;

/// What is needed to judge the response to one request.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    pub unknown: UnknownStatuses,
    /// The request is a HEAD: no response to it has content.
    pub head: bool,
    /// The request can change something.
    pub unsafe_method: bool,
    /// The request is a gRPC call ([`is_grpc`]).
    pub grpc: bool,
}

/// Why a whole response leaves open what became of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// This status is one of `upstream.unknown_statuses`.
    Status(u16),
    /// This `grpc-status` is one of `upstream.unknown_grpc_statuses`.
    Grpc(u16),
    /// A gRPC response ended without a status that can be read.
    NoGrpcStatus,
    /// Another fencepost behind this one says so.
    Fencepost,
    /// Only the end of the connection has ended the response.
    NoLength,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(
                f,
                "The upstream answered {status}, which says that nobody knows what became of the \
                 request (upstream.unknown_statuses)"
            ),
            Self::Grpc(status) => write!(
                f,
                "The upstream answered with the gRPC status {status}, which says that nobody knows \
                 what became of the call (upstream.unknown_grpc_statuses)"
            ),
            Self::NoGrpcStatus => f.write_str(
                "The gRPC response has no status: nobody knows what became of the call \
                 (upstream.unknown_grpc_statuses)",
            ),
            Self::Fencepost => {
                f.write_str("A fencepost behind this one does not know what became of the request")
            }
            Self::NoLength => f.write_str(
                "The response has neither a length nor chunks: it ended with its connection, and \
                 may have been cut",
            ),
        }
    }
}

/// Reads the trailers of a response to a gRPC call.
#[derive(Debug)]
pub(crate) struct GrpcStatus {
    unknown: Arc<[u16]>,
    /// The head had a status, which leaves nothing open.
    in_head: bool,
    /// What has been said so far leaves this open.
    doubt: Option<Doubt>,
}

impl GrpcStatus {
    /// The trailers have come.
    pub(crate) fn read(&mut self, trailers: &HeaderMap) {
        if !self.in_head || trailers.contains_key(GRPC_STATUS) {
            self.doubt = grpc_doubt(&self.unknown, trailers);
        }
    }

    /// Why the response, which is whole, leaves the outcome open.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }
}

impl Conclusion {
    /// Why the response is not the end of its request though it is whole; `None`: it is, as far as its
    /// head tells. To be asked before hop-by-hop fields are taken off.
    pub(crate) fn doubt(&self, response: &Parts) -> Option<Doubt> {
        let (status, headers) = (response.status.as_u16(), &response.headers);
        if self.unknown.http.contains(&status) {
            return Some(Doubt::Status(status));
        }
        let outcome = headers.get_all(OUTCOME).iter();
        if outcome
            .into_iter()
            .any(|word| word == Outcome::OutcomeUnknown.as_str())
        {
            return Some(Doubt::Fencepost);
        }
        if headers.contains_key(GRPC_STATUS)
            && !self.unknown.grpc.is_empty()
            && let Some(doubt) = grpc_doubt(&self.unknown.grpc, headers)
        {
            return Some(doubt);
        }
        let bodiless = self.head
            || matches!(
                response.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        // Any Transfer-Encoding that has come so far is chunked (`wire::head`).
        let framed = response.version > Version::HTTP_11
            || headers.contains_key(CONTENT_LENGTH)
            || headers.contains_key(TRANSFER_ENCODING);
        (self.unsafe_method && !bodiless && !framed).then_some(Doubt::NoLength)
    }

    /// What is to read the response's trailers, which may tell what its head does not.
    pub(crate) fn in_trailers(&self, response: &Parts) -> Option<GrpcStatus> {
        let (status, headers) = (response.status, &response.headers);
        // A call that fails without a gRPC status is judged by its HTTP status.
        let is_grpc =
            self.grpc && status.is_success() || status == StatusCode::OK && is_grpc(headers);
        if !is_grpc || self.unknown.grpc.is_empty() {
            return None;
        }
        let in_head = headers.contains_key(GRPC_STATUS);
        Some(GrpcStatus {
            unknown: Arc::clone(&self.unknown.grpc),
            in_head,
            doubt: (!in_head).then_some(Doubt::NoGrpcStatus),
        })
    }
}

/// Whether a message is one of a gRPC call. gRPC-Web is not meant: its trailers are in the body.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let content = headers.get(CONTENT_TYPE);
    let content = content.map_or(&b""[..], http::HeaderValue::as_bytes);
    let (start, rest) = content.split_at(TYPE.len().min(content.len()));
    start.eq_ignore_ascii_case(TYPE) && matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..])
}

const GRPC_STATUS: &str = "grpc-status";

/// What the status in these fields leaves open. Of several, any one may be the gateway's.
fn grpc_doubt(unknown: &[u16], headers: &HeaderMap) -> Option<Doubt> {
    let mut doubt = Some(Doubt::NoGrpcStatus);
    for value in headers.get_all(GRPC_STATUS) {
        let status = value
            .to_str()
            .ok()
            .and_then(|text| text.trim().parse().ok());
        match status {
            Some(status) if unknown.contains(&status) => return Some(Doubt::Grpc(status)),
            Some(_) => doubt = None,
            None => return Some(Doubt::NoGrpcStatus),
        }
    }
    doubt
}

#[cfg(test)]
mod tests;
