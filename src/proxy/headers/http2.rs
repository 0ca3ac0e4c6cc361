//! HTTP/2 requests, read by the rules of HTTP/1: the upstream may speak that, and a request must not
//! mean something else to it.

use bytes::Bytes;
use http::Version;

use crate::config::LimitSettings;
use crate::http1::names::{COOKIE, HOST};
use crate::http1::request::Request;
use crate::http1::{Fields, MessageError, RequestHead, title_line};

/// The head of a request. It is rendered as HTTP/1 and read as such.
///
/// # Errors
///
/// It breaks a rule that HTTP/1 and HTTP/2 have in common.
pub(crate) fn read<B>(
    request: &http::Request<B>,
    limits: &LimitSettings,
) -> Result<RequestHead, MessageError> {
    let lines = request.headers().len() + 1;
    let mut head = Request::read(&as_http1(request), lines, &limits.head())?.head;
    let authority = request.uri().authority();
    let authority = authority.map(|name| Bytes::copy_from_slice(name.as_str().as_bytes()));
    head.target.authority = authority;
    head.version = Version::HTTP_2;
    Ok(head)
}

/// The head as HTTP/1, as a person would write it. Its `:authority` is its Host, unless it has one.
fn as_http1<B>(request: &http::Request<B>) -> Vec<u8> {
    let target = request.uri().path_and_query();
    let target = target.map_or("", |target| target.as_str());
    let mut text = Vec::with_capacity(1024);
    for part in [request.method().as_str(), " ", target, " HTTP/1.1\r\n"] {
        text.extend_from_slice(part.as_bytes());
    }
    if let Some(authority) = request.uri().authority()
        && !request.headers().contains_key(HOST)
    {
        title_line(HOST, authority.as_str().as_bytes(), &mut text);
    }
    for (name, value) in request.headers() {
        title_line(name.as_str(), value.as_bytes(), &mut text);
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// Joins the pieces of `Cookie`, which HTTP/1 has on one line (RFC 9113, 8.2.3).
pub(crate) fn join_cookies(fields: &mut Fields) {
    let pieces: Vec<&[u8]> = fields.get_all(COOKIE).collect();
    if pieces.len() > 1 {
        let whole = pieces.join(&b"; "[..]);
        fields.insert(COOKIE, whole);
    }
}
