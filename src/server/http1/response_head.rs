//! The head of a response as it is written, and how its content is framed.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use http::{HeaderName, StatusCode};

use crate::http1::ResponseHead;
use crate::http1::head::content_length;
use crate::http1::names::{CONNECTION, CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING, title};
use crate::http1::title_line;
use crate::json_values::wall_clock;

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
    head: &mut ResponseHead,
    asked: ResponseConstraints,
    content: ResponseContent,
    last: Last,
    out: &mut Vec<u8>,
) -> ResponseFraming {
    let status = head.status;
    start_line(head, asked, out);
    let bodiless = asked.head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let chunks = asked.http_11 && !bodiless;
    let fields = &mut head.fields;
    fields.remove(TRANSFER_ENCODING);
    if fields.contains(CONTENT_LENGTH) && content == ResponseContent::None && !asked.head {
        // Without content, only the response to HEAD may have a length.
        fields.remove(CONTENT_LENGTH);
    }
    let mut trailers = Vec::new();
    if !chunks {
        fields.remove(TRAILER);
    }
    for value in fields.get_all(TRAILER) {
        let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        trailers.extend(names.map(HeaderName::from_bytes).filter_map(Result::ok));
    }
    let length = fields.get(CONTENT_LENGTH);
    let declared = length.and_then(|length| content_length(length).ok());
    fields.write_to(out);
    let mut framed = match (declared, content) {
        (Some(length), _) => ResponseFraming::Length(length),
        (None, ResponseContent::Unknown) if !chunks => ResponseFraming::ToEnd,
        (None, ResponseContent::Unknown) => {
            title_line(TRANSFER_ENCODING, b"chunked", out);
            ResponseFraming::Chunked(if asked.trailers { trailers } else { Vec::new() })
        }
        (None, ResponseContent::Length(length)) => {
            if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
                title_line(CONTENT_LENGTH, length.to_string().as_bytes(), out);
            }
            ResponseFraming::Length(length)
        }
        (None, ResponseContent::None) => {
            if !bodiless {
                title_line(CONTENT_LENGTH, b"0", out);
            }
            ResponseFraming::Length(0)
        }
    };
    if bodiless {
        framed = ResponseFraming::Length(0);
    }
    let to_end = framed == ResponseFraming::ToEnd;
    connection(head, asked, (last, to_end), out);
    if !head.fields.contains(DATE) {
        title(DATE, out);
        out.extend_from_slice(b": ");
        write_date(out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    framed
}

fn start_line(head: &ResponseHead, asked: ResponseConstraints, out: &mut Vec<u8>) {
    let version = if asked.http_11 {
        b"HTTP/1.1 "
    } else {
        b"HTTP/1.0 "
    };
    out.extend_from_slice(version);
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    let canonical = head.status.canonical_reason().unwrap_or("<none>");
    out.extend_from_slice(head.reason.as_deref().unwrap_or(canonical.as_bytes()));
    out.extend_from_slice(b"\r\n");
}

/// Writes `Connection`: `close` on the last response, and `keep-alive` on other responses in
/// HTTP/1.0, whose clients expect a close (RFC 9112, 9.3).
fn connection(
    head: &ResponseHead,
    asked: ResponseConstraints,
    (last, to_end): (Last, bool),
    out: &mut Vec<u8>,
) {
    let close = match last {
        Last::No => false,
        Last::Yes => asked.http_11,
        Last::Announced => true,
    };
    let keeps = last == Last::No && !asked.http_11 && !to_end;
    let switches = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if head.fields.contains(CONNECTION) {
        // The proxy's own.
    } else if close && !switches {
        title_line(CONNECTION, b"close", out);
    } else if keeps {
        title_line(CONNECTION, b"keep-alive", out);
    }
}

/// True if this field may be a trailer (RFC 9110, 6.5.1).
pub(super) fn may_trail(name: &HeaderName) -> bool {
    ![
        "authorization",
        "cache-control",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "host",
        "max-forwards",
        "set-cookie",
        "trailer",
        "transfer-encoding",
        "te",
    ]
    .contains(&name.as_str())
}

thread_local! {
    /// The second, and its text.
    static LATEST: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
}

/// Writes the time of day (RFC 9110, 6.6.1): made once a second in each thread.
fn write_date(out: &mut Vec<u8>) {
    let now = wall_clock();
    let second = now.duration_since(SystemTime::UNIX_EPOCH);
    let second = second.map_or(0, |since| since.as_secs());
    LATEST.with_borrow_mut(|latest| {
        if latest.0 != second {
            let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            *latest = (second, httpdate::fmt_http_date(whole));
        }
        out.extend_from_slice(latest.1.as_bytes());
    });
}
