//! Heads: the request's as it is written, the response's as it is read.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, Response, StatusCode, Uri, Version, request};
use hyper::ext::ReasonPhrase;

use crate::http1::fields;
use crate::proxy::buffer_pool;
use crate::wire::head::{FieldRange, HeadLimits};
use crate::wire::response::ResponseHead;
use crate::wire::spelling::Spelling;

/// The most field lines of a response's head, and of its trailers.
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
pub(super) fn write(
    head: &request::Parts,
    ended: bool,
    exact: Option<u64>,
    out: &mut Vec<u8>,
) -> RequestFraming {
    start(&head.method, &head.uri, out);
    let default = Spelling::default();
    let spelling = head.extensions.get().unwrap_or(&default);
    let all = head.headers.iter();
    // All lines of a name come one behind the other.
    let (mut before, mut nth) = (None, 0);
    for (name, value) in all.filter(|(name, _)| *name != TRANSFER_ENCODING) {
        nth = if before == Some(name) { nth + 1 } else { 0 };
        before = Some(name);
        fields::write_nth(spelling, (name, nth), value.as_bytes(), out);
    }
    let announced = head.headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    let framing = match (announced, exact) {
        (Some(length), _) => RequestFraming::Length(length),
        (None, _) if ended => RequestFraming::Length(0),
        (None, Some(length)) => {
            let digits = length.to_string();
            fields::write(spelling, &CONTENT_LENGTH, digits.as_bytes(), out);
            RequestFraming::Length(length)
        }
        (None, None) => {
            fields::write(spelling, &TRANSFER_ENCODING, b"chunked", out);
            RequestFraming::Chunked
        }
    };
    out.extend_from_slice(b"\r\n");
    framing
}

fn start(method: &Method, uri: &Uri, out: &mut Vec<u8>) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Room for the fields that are added on the way to the client.
const OURS: usize = 4;

/// The response whose head these bytes are, with these fields. `None`: the `http` crate does not
/// take them.
pub(super) fn response(
    head: &ResponseHead,
    bytes: &Bytes,
    ranges: &[FieldRange],
) -> Option<Response<()>> {
    let mut headers = buffer_pool::map();
    let spelling = fields::read(bytes, ranges, &mut headers, OURS).ok()?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    *response.version_mut() = if head.http_11 {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    *response.headers_mut() = headers;
    if !spelling.is_empty() {
        response.extensions_mut().insert(spelling);
    }
    let reason = &bytes[head.reason.clone()];
    let usual = response.status().canonical_reason();
    if usual.map(str::as_bytes) != Some(reason) {
        let reason = ReasonPhrase::try_from(bytes.slice_ref(reason)).ok()?;
        response.extensions_mut().insert(reason);
    }
    Some(response)
}
