//! The head of a response.
//!
//! A request that is read in two ways can be smuggled. A response only has to be passed on with one
//! reading: refusing it makes a done write an unknown outcome, and bars the resource. So what is odd
//! and leaves no doubt about the end of the response is read as its RFC says, and is written
//! correctly toward the client:
//!
//! - Lines that end with LF alone (RFC 9112, 2.2). Blanks between the parts of the status line, a
//!   minor version above 1, any reason (RFC 9112, 4; RFC 9110, 2.5).
//! - White space before a colon, which is removed (RFC 9112, 5.1). Folded lines, which become one
//!   (5.2). Control bytes in a value, which become spaces when the value is read (RFC 9110, 5.5).
//! - Fields whose name is empty or has a forbidden byte. They are left out.
//! - Equal lengths, which become one (RFC 9110, 8.6), and a length beside `chunked`, which is left
//!   out (RFC 9112, 6.3).
//! - Any framing in the response to HEAD and with a 1xx, 204 or 304. They end with their head
//!   (RFC 9112, 6.3).
//!
//! The end of all others is in doubt, and they are refused: different or malformed lengths, any
//! coding except one `chunked`, a coding on HTTP/1.0, a bare CR, a line without a colon, white space
//! before the first field, and a first line that has no status.

//!
//! A connection to the upstream carries one request at a time. Bytes that come without a request
//! (before the first one, or behind a whole response) would be taken for the next response. After
//! them, as after every other fault, the connection is not used again. A response that was whole
//! before stays valid.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{StatusCode, Version};
use memchr::memchr;

use super::content::{
    CODING_ON_1_0, ContentReader, Framing, content_length, is_chunked, is_framing_twin,
};
use super::head::{
    CONTROL_BYTE, FOLDED, HeadEnd, HeadLimits, LINE_END, MessageError, NOT_A_FIELD, is_blank,
    is_in_value, is_token, length_of, trim,
};
use super::names::{CONTENT_LENGTH, TRANSFER_ENCODING};
use super::{Fields, ResponseHead};

const STATUS_LINE: MessageError =
    MessageError::Malformed("the first line is not `HTTP/1.1 status reason`");

/// The properties of a request that its response is read by.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseExpectation {
    /// HEAD: no response to it has content.
    pub head: bool,
    /// It asks to leave HTTP.
    pub upgrade: bool,
}

/// A final response, or a 101, whose head has come.
#[derive(Debug)]
pub struct ReceivedResponse {
    pub head: ResponseHead,
    /// `None`: another protocol follows.
    pub content: Option<ContentReader>,
    /// The upstream may take another end for its own: the connection carries nothing more.
    pub odd: bool,
}

/// Reads the response to one request up to the end of its head, piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct ResponseReader {
    limits: HeadLimits,
    asked: ResponseExpectation,
    end: HeadEnd,
}

impl ResponseReader {
    #[must_use]
    pub fn new(asked: ResponseExpectation, limits: HeadLimits) -> Self {
        Self {
            limits,
            asked,
            end: HeadEnd::default(),
        }
    }

    /// Takes interim responses and the final head off `buf`, which has the bytes of the last call
    /// and new ones. `None`: the head is not whole. Interim responses are not passed on. Each is
    /// discarded, so they cost only time, which the caller bounds.
    ///
    /// # Errors
    ///
    /// The verdict does not depend on the pieces in which it comes.
    pub fn read(&mut self, buf: &mut BytesMut) -> Result<Option<ReceivedResponse>, MessageError> {
        loop {
            // Refuses anything else at once, without waiting for the end of the head.
            if !b"HTTP/1.".starts_with(&buf[..buf.len().min(7)]) {
                return Err(STATUS_LINE);
            }
            let Some(length) = self.end.find(buf, &self.limits)? else {
                return Ok(None);
            };
            let lines = std::mem::take(&mut self.end).lines;
            let (head, framing, odd) = read(&buf[..length], lines)?;
            buf.advance(length);
            let content = match head.status.as_u16() {
                101 if self.asked.upgrade => None,
                101 => {
                    return Err(MessageError::Malformed(
                        "the upstream switched protocols unasked",
                    ));
                }
                100..200 => continue,
                204 | 304 => Some(ContentReader::NONE),
                _ if self.asked.head => Some(ContentReader::NONE),
                _ => Some(ContentReader::of_response(framing?)),
            };
            return Ok(Some(ReceivedResponse { head, content, odd }));
        }
    }
}

/// A head, the framing in its fields, which may be in doubt where there is no content, and
/// [`ReceivedResponse::odd`].
type Read = (ResponseHead, Result<Framing, MessageError>, bool);

/// Reads a whole head.
fn read(head: &[u8], lines: usize) -> Result<Read, MessageError> {
    let (end, next) = line(head, 0)?;
    let (version, status, reason) = status_line(&head[..end])?;
    if head.get(next).copied().is_some_and(is_blank) {
        return Err(FOLDED);
    }
    let usual = status.canonical_reason().map(str::as_bytes);
    let reason = (usual != Some(reason)).then(|| Bytes::copy_from_slice(reason));
    let (mut fields, doubt) = read_fields(head, next, lines)?;
    let length = length(&fields);
    let framing = match (doubt, length, is_chunked(&fields)) {
        (true, ..) => Err(CONTROL_BYTE),
        (_, Err(error), _) | (_, _, Err(error)) => Err(error),
        (_, _, Ok(true)) if version == Version::HTTP_10 => Err(CODING_ON_1_0),
        (_, _, Ok(true)) => Ok(Framing::Chunked),
        (_, Ok(Some(length)), _) => Ok(Framing::Length(length)),
        (_, Ok(None), _) => Ok(Framing::None),
    };
    // These have no content, and no length either (RFC 9110, 8.6).
    let ends = status.is_informational() || status == StatusCode::NO_CONTENT;
    let odd = match framing {
        Err(_) => true,
        Ok(Framing::Chunked) => ends || length != Ok(None),
        Ok(Framing::Length(length)) => ends && length > 0,
        Ok(Framing::None) => false,
    };
    match framing {
        Ok(Framing::Length(length)) if !ends => {
            // Equal lengths become one.
            if lengths(&fields).nth(1).is_some() {
                fields.insert(CONTENT_LENGTH, length.to_string());
            }
        }
        _ => fields.remove(CONTENT_LENGTH),
    }
    let head = ResponseHead {
        status,
        version,
        reason,
        fields,
    };
    Ok((head, framing, odd))
}

/// The end of the line that begins here, and the beginning of the next one. It may end with LF
/// alone, and may be continued.
fn line(head: &[u8], begin: usize) -> Result<(usize, usize), MessageError> {
    let next = begin + memchr(b'\n', &head[begin..]).ok_or(LINE_END)? + 1;
    let line = &head[begin..next - 1];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match memchr(b'\r', line) {
        Some(_) => Err(LINE_END),
        None => Ok((begin + line.len(), next)),
    }
}

/// Reads the fields from `at` on. `true`: a field that frames the content has a forbidden byte.
fn read_fields(head: &[u8], mut at: usize, lines: usize) -> Result<(Fields, bool), MessageError> {
    let mut fields = Fields::of(head, lines);
    let mut doubt = false;
    loop {
        let begin = at;
        let mut end;
        (end, at) = line(head, begin)?;
        if end == begin {
            return Ok((fields, doubt));
        }
        let colon = length_of(&head[begin..end], |byte| byte != b':');
        if begin + colon == end {
            return Err(NOT_A_FIELD);
        }
        while head.get(at).copied().is_some_and(is_blank) {
            (end, at) = line(head, at)?;
        }
        let name = begin..begin + trim(&head[begin..begin + colon]).len();
        let behind = &head[begin + colon + 1..end];
        let start = begin + colon + 1 + length_of(behind, is_blank);
        let (spelled, value) = (&head[name.clone()], trim(behind));
        if !is_token(spelled) {
            if is_framing_twin(spelled) {
                return Err(NOT_A_FIELD);
            }
        } else if value.iter().all(|byte| is_in_value(*byte)) {
            fields.push(name, start..start + value.len());
        } else {
            let frames = |known: &str| known.as_bytes().eq_ignore_ascii_case(spelled);
            doubt |= frames(CONTENT_LENGTH) || frames(TRANSFER_ENCODING);
            let shown = |byte: u8| is_in_value(byte) && !is_blank(byte);
            let value = &value[length_of(value, |byte| !shown(byte))..];
            let end = value.iter().rposition(|byte| shown(*byte));
            fields.append_as(spelled, &value[..end.map_or(0, |last| last + 1)]);
        }
    }
}

/// The lengths of all lines, as written.
fn lengths(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let lines = fields.get_all(CONTENT_LENGTH);
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(trim)
}

/// The lengths of all lines, which must be one.
fn length(fields: &Fields) -> Result<Option<u64>, MessageError> {
    let mut lengths = lengths(fields).map(content_length);
    let Some(first) = lengths.next().transpose()? else {
        return Ok(None);
    };
    if lengths.all(|other| other == Ok(first)) {
        Ok(Some(first))
    } else {
        Err(MessageError::Malformed(
            "lines of Content-Length that differ",
        ))
    }
}

/// Version, status and reason phrase. The phrase is empty if it is not printable ASCII.
fn status_line(line: &[u8]) -> Result<(Version, StatusCode, &[u8]), MessageError> {
    let parsed = || {
        let [minor @ b'0'..=b'9', rest @ ..] = line.strip_prefix(b"HTTP/1.")? else {
            return None;
        };
        let blanks = length_of(rest, is_blank);
        let (status, reason) = rest[blanks..].split_at_checked(3)?;
        let apart = blanks > 0 && reason.first().is_none_or(|byte| is_blank(*byte));
        let status = StatusCode::from_bytes(status).ok().filter(|_| apart)?;
        let reason = reason.get(1..).unwrap_or_default();
        let shown = reason.is_ascii() && reason.iter().all(|byte| is_in_value(*byte));
        let version = if *minor == b'0' {
            Version::HTTP_10
        } else {
            Version::HTTP_11
        };
        Some((version, status, if shown { reason } else { &[] }))
    };
    parsed().ok_or(STATUS_LINE)
}
