//! The head of an answer, and how its content is framed.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, DATE, HOST, HeaderName, MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
};
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use hyper::ext::ReasonPhrase;

use super::date;
use crate::wire::head::content_length;
use crate::wire::spelling::Spelling;

/// What the client has asked for, as far as its answer depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredRequest {
    /// With HEAD: no answer has content.
    pub head: bool,
    pub http_11: bool,
    pub trailers: bool,
}

/// Whether an answer is the connection's last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    No,
    Yes,
    /// And the client is told, whatever its version.
    Said,
}

/// How content is framed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FramedAnswer {
    /// So many bytes are left.
    Length(u64),
    /// With these trailers.
    Chunked(Vec<HeaderName>),
    /// To the end of the connection.
    ToEnd,
}

/// How much content an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenContent {
    None,
    Length(u64),
    Unknown,
}

/// Writes the head of an answer.
pub(super) fn write(
    parts: &Parts,
    asked: AnsweredRequest,
    content: WrittenContent,
    last: Last,
    out: &mut Vec<u8>,
) -> FramedAnswer {
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
                // Of no content it says what there would be, and only in answer to HEAD.
                let shown = content != WrittenContent::None || asked.head;
                length = lines().next().filter(|_| shown);
                let Some(length) = length else { continue };
                line(spelling, name, length.as_bytes(), out);
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
            spelling.write_line(name.as_str(), nth, out);
            end_line(value.as_bytes(), out);
        }
    }
    let declared = length.and_then(|length| content_length(length.as_bytes()).ok());
    let mut framed = match (declared, content) {
        (Some(length), _) => FramedAnswer::Length(length),
        (None, WrittenContent::Unknown) if !chunks => FramedAnswer::ToEnd,
        (None, WrittenContent::Unknown) => {
            line(spelling, &TRANSFER_ENCODING, b"chunked", out);
            FramedAnswer::Chunked(if asked.trailers { trailers } else { Vec::new() })
        }
        (None, WrittenContent::Length(length)) => {
            if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
                line(
                    spelling,
                    &CONTENT_LENGTH,
                    length.to_string().as_bytes(),
                    out,
                );
            }
            FramedAnswer::Length(length)
        }
        (None, WrittenContent::None) => {
            if !bodiless {
                line(spelling, &CONTENT_LENGTH, b"0", out);
            }
            FramedAnswer::Length(0)
        }
    };
    if bodiless {
        framed = FramedAnswer::Length(0);
    }
    let to_end = framed == FramedAnswer::ToEnd;
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

fn start_line(parts: &Parts, asked: AnsweredRequest, out: &mut Vec<u8>) {
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

/// What `Connection` says: `close` on the last answer, and `keep-alive` on another in HTTP/1.0, where the
/// client would not know (RFC 9112, 9.3).
fn connection(
    parts: &Parts,
    asked: AnsweredRequest,
    (last, to_end): (Last, bool),
    spelling: &Spelling,
    out: &mut Vec<u8>,
) {
    let close = match last {
        Last::No => false,
        Last::Yes => asked.http_11,
        Last::Said => true,
    };
    let keeps = last == Last::No && !asked.http_11 && !to_end;
    let switches = parts.status == StatusCode::SWITCHING_PROTOCOLS;
    if parts.headers.contains_key(CONNECTION) {
        joined(spelling, &parts.headers, &CONNECTION, out);
    } else if close && !switches {
        line(spelling, &CONNECTION, b"close", out);
    } else if keeps {
        line(spelling, &CONNECTION, b"keep-alive", out);
    }
}

fn line(spelling: &Spelling, name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    spelling.write(name.as_str(), out);
    end_line(value, out);
}

fn end_line(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a field that is a list, on one line.
fn joined(spelling: &Spelling, headers: &HeaderMap, name: &HeaderName, out: &mut Vec<u8>) {
    let lines: Vec<&[u8]> = headers
        .get_all(name)
        .iter()
        .map(http::HeaderValue::as_bytes)
        .collect();
    line(spelling, name, &lines.join(&b", "[..]), out);
}

/// Writes the end of chunked content: the trailers that were announced and may be some.
pub(super) fn write_trailers(
    announced: &[HeaderName],
    trailers: Option<&HeaderMap>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"0\r\n");
    let none = Spelling::default();
    for (name, value) in trailers.into_iter().flatten() {
        if announced.contains(name) && may_trail(name) {
            line(&none, name, value.as_bytes(), out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn may_trail(name: &HeaderName) -> bool {
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
