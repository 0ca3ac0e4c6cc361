//! Whether a whole response says that the upstream is done with its request.
//!
//! A gateway between (nginx, Envoy, a load balancer) answers 502 or 504 when it has lost the service
//! behind it. Its response is whole, and the service may still be at work on the request. A response
//! that only the end of its connection ends (RFC 9112, 6.3) looks whole wherever it was cut. In both
//! cases the client gets the response as it is, and the permit ends as an unknown outcome.

use std::fmt;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::response::Parts;
use http::{StatusCode, Version};

/// What is needed to judge the response to one request.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    /// Statuses of a gateway that does not know what became of the request.
    pub unknown_statuses: Arc<[u16]>,
    /// The request is a HEAD: no response to it has content.
    pub head: bool,
    /// The request can change something.
    pub unsafe_method: bool,
}

/// Why a whole response leaves open what became of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// This status is one of `upstream.unknown_statuses`.
    Status(u16),
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
            Self::NoLength => f.write_str(
                "The response has neither a length nor chunks: it ended with its connection, and \
                 may have been cut",
            ),
        }
    }
}

impl Conclusion {
    /// Why the response is not the end of its request though it is whole; `None`: it is. To be asked
    /// before hop-by-hop fields are taken off.
    pub(crate) fn doubt(&self, response: &Parts) -> Option<Doubt> {
        let status = response.status.as_u16();
        if self.unknown_statuses.contains(&status) {
            return Some(Doubt::Status(status));
        }
        let bodiless = self.head
            || matches!(
                response.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        // Any Transfer-Encoding that has come so far is chunked (`wire::head`).
        let framed = response.version > Version::HTTP_11
            || response.headers.contains_key(CONTENT_LENGTH)
            || response.headers.contains_key(TRANSFER_ENCODING);
        (self.unsafe_method && !bodiless && !framed).then_some(Doubt::NoLength)
    }
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn response(status: u16, version: Version, header: Option<(&str, &str)>) -> Parts {
        let mut response = Response::builder().status(status).version(version);
        if let Some((name, value)) = header {
            response = response.header(name, value);
        }
        response.body(()).expect("a response").into_parts().0
    }

    #[test]
    fn what_leaves_the_outcome_open() {
        let of = |unsafe_method, head| Conclusion {
            unknown_statuses: Arc::new([502, 504]),
            head,
            unsafe_method,
        };
        let (put, get, head) = (of(true, false), of(false, false), of(true, true));
        let sized = Some(("content-length", "0"));
        let chunked = Some(("transfer-encoding", "chunked"));
        for (conclusion, status, version, header, expected) in [
            (&put, 200, Version::HTTP_11, sized, None),
            (&put, 200, Version::HTTP_11, chunked, None),
            (&put, 200, Version::HTTP_11, None, Some(Doubt::NoLength)),
            (&put, 500, Version::HTTP_10, None, Some(Doubt::NoLength)),
            (&put, 204, Version::HTTP_11, None, None),
            (&put, 304, Version::HTTP_11, None, None),
            (&put, 200, Version::HTTP_2, None, None),
            (&get, 200, Version::HTTP_11, None, None),
            (&head, 200, Version::HTTP_11, None, None),
            (&put, 502, Version::HTTP_11, sized, Some(Doubt::Status(502))),
            (&put, 504, Version::HTTP_2, None, Some(Doubt::Status(504))),
            (&get, 504, Version::HTTP_11, sized, Some(Doubt::Status(504))),
            (&put, 503, Version::HTTP_11, sized, None),
        ] {
            let response = response(status, version, header);
            assert_eq!(conclusion.doubt(&response), expected, "{status} {header:?}");
        }
    }
}
