//! Decides whether a whole response means that the upstream has finished with its request.
//!
//! A gateway before the upstream (nginx, Envoy, a load balancer) answers 502 or 504 when it has
//! lost the upstream. Its response is whole, and the upstream may still be working on the request.
//! To a gRPC call it says so by a `grpc-status`, in the head or in trailers, whatever the HTTP
//! status is. (nginx sends 204 without a content type if `error_page` is set up in the usual way.)
//! A response that only the end of its connection ends (RFC 9112, 6.3) looks whole wherever it was
//! cut. In all these cases the client gets the response as it is, and the permit ends as an unknown
//! outcome.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode, Version};

use crate::config::UnknownStatuses;
use crate::http1::ResponseHead;
use crate::http1::names::{CONTENT_LENGTH, TRANSFER_ENCODING};
use crate::metrics::Outcome;
use crate::proxy::headers::{OUTCOME, is_grpc};

/// The properties of a request by which its response is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The request is a HEAD: no response to it has content.
    pub head: bool,
    /// The request can change something, by its method or by what its route says of reads.
    pub writes: bool,
    /// The request is a gRPC call ([`is_grpc`]).
    pub grpc: bool,
}

/// Why the outcome of a request is unknown although its response is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Doubt {
    /// This status is one of `upstream.unknown_statuses`.
    #[error(
        "The upstream answered {0}, which says that nobody knows what became of the request \
         (upstream.unknown_statuses)"
    )]
    Status(u16),
    /// This `grpc-status` is one of `upstream.unknown_grpc_statuses`.
    #[error(
        "The upstream answered with the gRPC status {0}, which says that nobody knows what became of \
         the call (upstream.unknown_grpc_statuses)"
    )]
    Grpc(u16),
    /// A gRPC response ended without a status that can be read.
    #[error(
        "The gRPC response has no status: nobody knows what became of the call \
         (upstream.unknown_grpc_statuses)"
    )]
    NoGrpcStatus,
    /// Another fencepost behind this one says so.
    #[error("A fencepost behind this one does not know what became of the request")]
    Fencepost,
    /// Only the end of the connection has ended the response.
    #[error(
        "The response has neither a length nor chunks: it ended with its connection, and may have \
         been cut"
    )]
    NoLength,
    /// It is an early answer, and a part of what was sent of the request lay in the kernel until the
    /// connection was reset.
    #[error(
        "The upstream answered before it had taken the request, and did not take what had been sent \
         of it in time"
    )]
    NotTaken,
}

/// The judgement of one response, as far as it has come: it decides if the permit of a fenced request
/// settles. By default nothing depends on the response.
#[derive(Debug, Default)]
pub(crate) struct Conclusion {
    /// The doubt that the head leaves.
    pub head: Option<Doubt>,
    /// The doubt that the trailers of a gRPC response leave, or that there are none yet.
    trailers: Option<Doubt>,
    /// The gRPC statuses by which trailers are judged. `None`: they have no say.
    unknown: Option<Arc<[u16]>>,
}

impl Conclusion {
    /// Judges a response by its head. Call this before hop-by-hop fields are removed.
    pub(crate) fn of(asked: Asked, unknown: &UnknownStatuses, response: &ResponseHead) -> Self {
        let (status, fields) = (response.status, &response.fields);
        // A call that fails without a gRPC status is judged by its HTTP status.
        let is_grpc =
            asked.grpc && status.is_success() || status == StatusCode::OK && is_grpc(fields);
        let judged = is_grpc && !unknown.grpc.is_empty();
        // The status is to come, unless the head has it.
        let to_come = judged && !fields.contains(GRPC_STATUS);
        Self {
            head: asked.doubt(unknown, response),
            trailers: to_come.then_some(Doubt::NoGrpcStatus),
            unknown: judged.then(|| Arc::clone(&unknown.grpc)),
        }
    }

    /// Why the outcome is unknown although the response is whole. `None`: there is no doubt.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        self.head.or(self.trailers)
    }

    /// The trailers have come, and none of them is removed yet.
    pub(super) fn read(&mut self, trailers: &HeaderMap) {
        if let Some(unknown) = &self.unknown
            && trailers.contains_key(GRPC_STATUS)
        {
            let lines = trailers.get_all(GRPC_STATUS).iter();
            self.trailers = grpc_doubt(unknown, lines.map(HeaderValue::as_bytes));
        }
    }
}

impl Asked {
    /// The doubt that the head of a response leaves.
    fn doubt(self, unknown: &UnknownStatuses, response: &ResponseHead) -> Option<Doubt> {
        let (status, fields) = (response.status.as_u16(), &response.fields);
        if unknown.http.contains(&status) {
            return Some(Doubt::Status(status));
        }
        let mut outcome = fields.get_all(OUTCOME);
        if outcome.any(|word| word == Outcome::OutcomeUnknown.as_str().as_bytes()) {
            return Some(Doubt::Fencepost);
        }
        if fields.contains(GRPC_STATUS)
            && !unknown.grpc.is_empty()
            && let Some(doubt) = grpc_doubt(&unknown.grpc, fields.get_all(GRPC_STATUS))
        {
            return Some(doubt);
        }
        let bodiless = self.head || matches!(status, 204 | 304);
        // `http1::head` lets no Transfer-Encoding but chunked through.
        let framed = response.version > Version::HTTP_11
            || fields.contains(CONTENT_LENGTH)
            || fields.contains(TRANSFER_ENCODING);
        (self.writes && !bodiless && !framed).then_some(Doubt::NoLength)
    }
}

const GRPC_STATUS: &str = "grpc-status";

/// The doubt that the status in these fields leaves. If there are several, any one may be the
/// gateway's.
fn grpc_doubt<'a>(unknown: &[u16], lines: impl Iterator<Item = &'a [u8]>) -> Option<Doubt> {
    let mut doubt = Some(Doubt::NoGrpcStatus);
    for line in lines {
        let text = std::str::from_utf8(line).ok();
        let status = text.and_then(|text| text.trim().parse().ok());
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
