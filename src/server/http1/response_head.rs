//! The head of a response as it is written, and how its content is framed.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, DATE, HOST, HeaderName, MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
};
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use hyper::ext::ReasonPhrase;

use super::date;
use crate::http1::fields;
use crate::wire::head::content_length;
use crate::wire::spelling::Spelling;

/// The properties of a request that its response depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseConstraints {
    /// HEAD: the response has no content.
    pub head: bool,
    pub http_11: bool,
    pub trailers: bool,
}

/// The fate of the connection behind a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    No,
    Yes,
    /// Yes, with `Connection: close` in HTTP/1.0 too.
    Announced,
}

/// The framing of content.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseFraming {
    /// This many bytes are left.
    Length(u64),
    /// With these trailers.
    Chunked(Vec<HeaderName>),
    /// To the end of the connection.
    ToEnd,
}

/// The amount of content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseContent {
    None,
    Length(u64),
    Unknown,
}

/// Writes the head of a response.
pub(super) fn write(
    parts: &Parts,
    asked: ResponseConstraints,
    content: ResponseContent,
    last: Last,
    out: &mut Vec<u8>,
) -> ResponseFraming {
    let status = parts.status;
    start_line(parts, asked, out);
    let none = Spelling::default();
    let spelling = parts.extensions.get().unwrap_or(&none);
    let bodiless = asked.head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let chunks = asked.http_11 && !bodiless;
    let mut length = None;
    let mut trailers = Vec::new();
    for name in parts.headers.keys() {
        let lines = || parts.headers.get_all(name).iter();
        match *name {
            TRANSFER_ENCODING | CONNECTION => continue,
            CONTENT_LENGTH => {
                // Without content, only the response to HEAD may have a length.
                let shown = content != ResponseContent::None || asked.head;
                length = lines().next().filter(|_| shown);
                let Some(length) = length else { continue };
                fields::write(spelling, name, length.as_bytes(), out);
                continue;
            }
            TRAILER => {
                if !chunks {
                    continue;
                }
                for value in lines() {
                    let names = value.as_bytes().split(|byte| *byte == b',');
                    let names = names.map(<[u8]>::trim_ascii).map(HeaderName::from_bytes);
                    trailers.extend(names.filter_map(Result::ok));
                }
                joined(spelling, &parts.headers, name, out);
                continue;
            }
            _ => {}
        }
        for (nth, value) in lines().enumerate() {
            fields::write_nth(spelling, (name, nth), value.as_bytes(), out);
        }
    }
    let declared = length.and_then(|length| content_length(length.as_bytes()).ok());
    let mut framed = match (declared, content) {
        (Some(length), _) => ResponseFraming::Length(length),
        (None, ResponseContent::Unknown) if !chunks => ResponseFraming::ToEnd,
        (None, ResponseContent::Unknown) => {
            fields::write(spelling, &TRANSFER_ENCODING, b"chunked", out);
            ResponseFraming::Chunked(if asked.trailers { trailers } else { Vec::new() })
        }
        (None, ResponseContent::Length(length)) => {
            if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
                let digits = length.to_string();
                fields::write(spelling, &CONTENT_LENGTH, digits.as_bytes(), out);
            }
            ResponseFraming::Length(length)
        }
        (None, ResponseContent::None) => {
            if !bodiless {
                fields::write(spelling, &CONTENT_LENGTH, b"0", out);
            }
            ResponseFraming::Length(0)
        }
    };
    if bodiless {
        framed = ResponseFraming::Length(0);
    }
    let to_end = framed == ResponseFraming::ToEnd;
    connection(parts, asked, (last, to_end), spelling, out);
    if !parts.headers.contains_key(DATE) {
        spelling.write(DATE.as_str(), out);
        out.extend_from_slice(b": ");
        date::write(out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    framed
}

fn start_line(parts: &Parts, asked: ResponseConstraints, out: &mut Vec<u8>) {
    let version = if asked.http_11 {
        b"HTTP/1.1 "
    } else {
        b"HTTP/1.0 "
    };
    out.extend_from_slice(version);
    out.extend_from_slice(parts.status.as_str().as_bytes());
    out.push(b' ');
    let canonical = parts.status.canonical_reason().unwrap_or("<none>");
    let own = parts.extensions.get::<ReasonPhrase>();
    out.extend_from_slice(own.map_or(canonical.as_bytes(), ReasonPhrase::as_bytes));
    out.extend_from_slice(b"\r\n");
}

/// Writes `Connection`: `close` on the last response, and `keep-alive` on other responses in
/// HTTP/1.0, whose clients expect a close (RFC 9112, 9.3).
fn connection(
    parts: &Parts,
    asked: ResponseConstraints,
    (last, to_end): (Last, bool),
    spelling: &Spelling,
    out: &mut Vec<u8>,
) {
    let close = match last {
        Last::No => false,
        Last::Yes => asked.http_11,
        Last::Announced => true,
    };
    let keeps = last == Last::No && !asked.http_11 && !to_end;
    let switches = parts.status == StatusCode::SWITCHING_PROTOCOLS;
    if parts.headers.contains_key(CONNECTION) {
        joined(spelling, &parts.headers, &CONNECTION, out);
    } else if close && !switches {
        fields::write(spelling, &CONNECTION, b"close", out);
    } else if keeps {
        fields::write(spelling, &CONNECTION, b"keep-alive", out);
    }
}

/// Writes a field that is a list, on one line.
fn joined(spelling: &Spelling, headers: &HeaderMap, name: &HeaderName, out: &mut Vec<u8>) {
    let lines: Vec<&[u8]> = headers
        .get_all(name)
        .iter()
        .map(http::HeaderValue::as_bytes)
        .collect();
    fields::write(spelling, name, &lines.join(&b", "[..]), out);
}

/// True if this field may be a trailer (RFC 9110, 6.5.1).
pub(super) fn may_trail(name: &HeaderName) -> bool {
    ![
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        HOST,
        MAX_FORWARDS,
        SET_COOKIE,
        TRAILER,
        TRANSFER_ENCODING,
        TE,
    ]
    .contains(name)
}
