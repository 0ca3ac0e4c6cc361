//! Heads: the request's as it is written, the response's as it is read.

use bytes::Bytes;
use http::{Method, StatusCode, Version};

use crate::http1::head::{FieldRange, HeadLimits};
use crate::http1::names::{CONTENT_LENGTH, TRANSFER_ENCODING};
use crate::http1::response;
use crate::http1::{Fields, title_line};
use crate::http1::{RequestHead, ResponseHead};

const MAX_FIELDS: usize = 10_000;

/// The limits of a response's head. `bytes`: `upstream.header_bytes`.
pub(super) const fn response_limits(bytes: usize) -> HeadLimits {
    HeadLimits {
        bytes,
        fields: MAX_FIELDS,
        target: 0,
    }
}

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// This many bytes are to come.
    Length(u64),
    Chunked,
}

/// Writes the head of a request. `ended`: it has no body; `exact`: the length of its body, where it
/// is known.
///
/// An empty POST says so (RFC 9110, 8.6: a sender should), since some servers answer 411 otherwise.
pub(super) fn write(
    head: &RequestHead,
    ended: bool,
    exact: Option<u64>,
    out: &mut Vec<u8>,
) -> RequestFraming {
    for part in [
        head.method.as_str(),
        " ",
        head.target.as_str(),
        " HTTP/1.1\r\n",
    ] {
        out.extend_from_slice(part.as_bytes());
    }
    head.fields.write_to(out);
    let announced = head.fields.get_str(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.parse().ok());
    let sends = matches!(head.method, Method::POST | Method::PUT | Method::PATCH);
    let framing = match (announced, exact) {
        (Some(length), _) => RequestFraming::Length(length),
        (None, _) if ended && !sends => RequestFraming::Length(0),
        (None, exact) if ended || exact.is_some() => {
            let length = exact.filter(|_| !ended).unwrap_or_default();
            title_line(CONTENT_LENGTH, length.to_string().as_bytes(), out);
            RequestFraming::Length(length)
        }
        (None, _) => {
            title_line(TRANSFER_ENCODING, b"chunked", out);
            RequestFraming::Chunked
        }
    };
    out.extend_from_slice(b"\r\n");
    framing
}

/// The response with this head.
pub(super) fn response(
    head: &response::ResponseHead,
    bytes: Bytes,
    places: &[FieldRange],
) -> Option<ResponseHead> {
    let status = StatusCode::from_u16(head.status).ok()?;
    let reason = bytes.slice(head.reason.clone());
    let usual = status.canonical_reason().map(str::as_bytes);
    Some(ResponseHead {
        status,
        version: if head.http_11 {
            Version::HTTP_11
        } else {
            Version::HTTP_10
        },
        reason: (usual != Some(&reason)).then_some(reason),
        fields: Fields::repaired(bytes, places),
    })
}
