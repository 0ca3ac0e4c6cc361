//! What the head of an HTTP/2 request must keep to, beyond what the h2 library insists on.
//!
//! The library resets a stream whose head has upper-case names, fields of one connection (`Connection`,
//! `Transfer-Encoding`, `TE` other than `trailers` …), a missing or repeated pseudo-field, an empty `:path`,
//! control characters, or a Content-Length that is no number or not the body's (RFC 9113, 8.1.1, 8.2, 8.3). It lets
//! through what is fine as HTTP/2 and becomes another message once it is written as HTTP/1 for the upstream: a
//! second Content-Length line, names that a server takes for framing fields, bytes beyond ASCII in the target. And
//! the limits of heads are the same as for HTTP/1, where they are looked at before the head is parsed.
//!
//! A `#` in `:path` is not refused: the library has cut it, and what follows it, before anybody could see it. What
//! is judged then is what goes upstream, since both are made of what is left.

use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use super::respond::Refusal;
use crate::config::LimitSettings;
use crate::metrics::Limit;
use crate::wire::head::{Field, FramingFields};

/// Colon, space and CRLF, as the line would have them in HTTP/1.
const BESIDE: usize = 4;

/// Checks a head as it came over HTTP/2.
pub(super) fn check(head: &Parts, limits: &LimitSettings) -> Result<(), Refusal> {
    let target = head
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    if target.len() > limits.target_bytes {
        return Err(Refusal::HeadTooLarge(Limit::TargetBytes));
    }
    if !target.is_ascii() {
        let why = "The target has bytes beyond ASCII; escape them.";
        return Err(Refusal::Ambiguous(why.into()));
    }
    if head.headers.len() > limits.header_count {
        return Err(Refusal::HeadTooLarge(Limit::HeaderCount));
    }
    let authority = head.uri.authority().map_or(0, |name| name.as_str().len());
    let mut bytes = head.method.as_str().len() + target.len() + authority;
    let mut framing = FramingFields::default();
    for (name, value) in &head.headers {
        let field = Field {
            name: name.as_str().as_bytes(),
            value: value.as_bytes(),
        };
        bytes += field.name.len() + field.value.len() + BESIDE;
        framing
            .note(&field)
            .map_err(|error| Refusal::Ambiguous(format!("The head of the request has {error}.")))?;
    }
    if bytes > limits.header_bytes {
        return Err(Refusal::HeadTooLarge(Limit::HeaderBytes));
    }
    Ok(())
}

/// Joins the pieces into which HTTP/2 lets a client split its Cookie; HTTP/1 has one line of it (RFC 9113, 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
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
