//! Checks HTTP/2 heads by the rules of HTTP/1 heads.
//!
//! The h2 library resets a stream whose head has upper-case names, fields of one connection
//! (`Connection`, `Transfer-Encoding`, `TE` other than `trailers` …), a missing or repeated
//! pseudo-field, an empty `:path`, control characters, or a Content-Length that is no number or not
//! the body's (RFC 9113, 8.1.1, 8.2, 8.3). It accepts heads that are valid in HTTP/2 and become
//! another message when they are written as HTTP/1 for the upstream: a second Content-Length line,
//! names that a server takes for framing fields, user information in `:authority`. So the head is
//! written as HTTP/1 and read by the same reader, with the same limits. No rule can hold for one
//! version only.
//!
//! A `#` in `:path` is not refused: the library has cut it, and what follows it, before the proxy
//! could see it. The judged target is the one that goes upstream, since both are made of the rest.

use http::header::{COOKIE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Version};

use crate::config::LimitSettings;
use crate::wire::head::HeadLimits;
use crate::wire::request::{RequestError, RequestReader};

/// Checks a head that came over HTTP/2; what came over HTTP/1 has been read already.
pub(crate) fn check(head: &Parts, limits: &LimitSettings) -> Result<(), RequestError> {
    if head.version != Version::HTTP_2 {
        return Ok(());
    }
    if head.method == Method::CONNECT {
        // With `:protocol` or without: it names no path.
        return Err(RequestError::Connect);
    }
    let limits = HeadLimits {
        bytes: limits.header_bytes,
        fields: limits.header_count,
        target: limits.target_bytes,
    };
    match RequestReader::default().read(&as_http1(head), &limits)? {
        Some(_) => Ok(()),
        None => Err(RequestError::StartLine),
    }
}

/// The head as HTTP/1 has it, except a Host beside `:authority`: a later check, for both versions,
/// compares the two.
fn as_http1(head: &Parts) -> Vec<u8> {
    let target = head
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    let mut text = Vec::with_capacity(1024);
    let start = [head.method.as_str(), " ", target, " HTTP/1.1\r\n"];
    for part in start {
        text.extend(part.bytes());
    }
    let authority = head.uri.authority().map(|name| name.as_str().as_bytes());
    let mut line = |name: &[u8], value: &[u8]| {
        for part in [name, b": ", value, b"\r\n"] {
            text.extend(part);
        }
    };
    if let Some(authority) = authority {
        line(b"host", authority);
    }
    for (name, value) in &head.headers {
        if *name != HOST || authority.is_none() {
            line(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    text.extend(b"\r\n");
    text
}

/// Joins the pieces into which HTTP/2 lets a client split its Cookie; HTTP/1 has one line of it
/// (RFC 9113, 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if pieces.len() < 2 {
        return;
    }
    if let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        headers.insert(COOKIE, whole);
    }
}
