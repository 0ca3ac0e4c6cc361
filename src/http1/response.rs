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

use std::fmt;
use std::ops::Range;

use super::head::{
    FieldRange, Framing, HeadError, HeadLimits, HeadLines, content_length, framing_twin, is_blank,
    is_in_value, is_name, is_tchar, trim,
};

/// The reason for refusing the head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    Head(HeadError),
    /// Not `HTTP/1.x SP 3DIGIT [SP reason]`.
    StatusLine,
    /// `Transfer-Encoding` on HTTP/1.0.
    CodingOn10,
}

impl From<HeadError> for ResponseError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(HeadError::Bytes(limit)) => {
                write!(f, "more than {limit} bytes (upstream.header_bytes)")
            }
            Self::Head(HeadError::Fields(limit)) => write!(f, "more than {limit} field lines"),
            Self::Head(error) => error.fmt(f),
            Self::StatusLine => f.write_str("the first line is not `HTTP/1.1 status reason`"),
            Self::CodingOn10 => {
                f.write_str("Transfer-Encoding on HTTP/1.0, which does not have it")
            }
        }
    }
}

impl std::error::Error for ResponseError {}

/// The parts of a head that the end of the response depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The length of the head, up to the end of its empty line.
    pub length: usize,
    pub status: u16,
    /// The reason phrase; empty if it is not printable ASCII.
    pub reason: Range<usize>,
    /// In HTTP/1.1 or later, and not 1.0.
    pub http_11: bool,
    /// The framing in the fields. Status and method decide whether there is content at all.
    pub framing: Result<Framing, ResponseError>,
    /// The upstream may take another end for its own: the connection carries nothing more.
    pub odd: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StatusLine {
    http_11: bool,
    status: u16,
    reason: Range<usize>,
}

/// Reads one head, piece by piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseReader {
    lines: HeadLines,
    start: Option<StatusLine>,
    fields: Vec<FieldRange>,
    /// Field lines, with those that are left out.
    count: usize,
    last: LastLine,
    framing: AnnouncedFraming,
    /// The position of `Content-Length` in `fields`.
    length: Option<usize>,
}

/// The line before, to which a folded line belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastLine {
    /// The status line.
    Start,
    /// The last one in `fields`.
    Kept,
    LeftOut,
    /// It frames the response.
    Framing,
}

/// The framing that the fields so far announce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AnnouncedFraming {
    length: Option<u64>,
    chunked: bool,
    fault: Option<HeadError>,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            lines: HeadLines::with_bare_lf(),
            start: None,
            fields: Vec::new(),
            count: 0,
            last: LastLine::Start,
            framing: AnnouncedFraming::default(),
            length: None,
        }
    }
}

impl ResponseReader {
    /// Prepares for the next head, and keeps the memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self {
            fields,
            ..Self::default()
        };
    }

    /// The fields that have come. A value may have control bytes.
    #[must_use]
    pub fn fields(&self) -> &[FieldRange] {
        &self.fields
    }

    /// Reads the head from its first byte: the bytes of the last call, and new ones, which may go
    /// beyond the head. `None`: the head is not whole.
    ///
    /// # Errors
    ///
    /// The verdict does not depend on the pieces in which it comes.
    pub fn read(
        &mut self,
        bytes: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<ResponseHead>, ResponseError> {
        let head = &bytes[..bytes.len().min(limits.bytes)];
        // Refuses anything else at once, without waiting for the end of the line.
        if self.start.is_none() && !b"HTTP/1.".iter().zip(head).all(|(want, got)| want == got) {
            return Err(ResponseError::StatusLine);
        }
        loop {
            let begin = self.lines.position();
            let Some(line) = self.lines.next(head)? else {
                return if head.len() < limits.bytes {
                    Ok(None)
                } else {
                    Err(HeadError::Bytes(limits.bytes).into())
                };
            };
            let Some(start) = &self.start else {
                self.start = Some(StatusLine::parse(line)?);
                continue;
            };
            if line.is_empty() {
                let start = start.clone();
                return Ok(Some(self.whole(start)));
            }
            self.count += 1;
            if self.count > limits.fields {
                return Err(HeadError::Fields(limits.fields).into());
            }
            self.field(head, begin..begin + line.len())?;
        }
    }

    /// Takes one more line of this head.
    fn field(&mut self, head: &[u8], at: Range<usize>) -> Result<(), HeadError> {
        let line = &head[at.clone()];
        if is_blank(line[0]) {
            match (self.last, self.fields.last_mut()) {
                (LastLine::Start, _) => return Err(HeadError::Folded),
                (LastLine::Kept, Some(field)) => {
                    field.value.end = field.value.start.max(at.start + trim_end(line).len());
                }
                (LastLine::Framing, _) => self.framing.fault = Some(HeadError::Folded),
                _ => {}
            }
            return Ok(());
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let colon = colon.ok_or(HeadError::NoColon)?;
        let name = trim_end(&line[..colon]);
        let value = trim(&line[colon + 1..]);
        let blanks = line[colon + 1..].iter().take_while(|byte| is_blank(**byte));
        let from = at.start + colon + 1 + if value.is_empty() { 0 } else { blanks.count() };
        let mut range = from..from + value.len();
        self.last = LastLine::Framing;
        if is_name(name, b"content-length") {
            match self.framing.length(value) {
                Some(digits) => {
                    range.end = range.start + digits;
                    self.length = Some(self.fields.len());
                }
                None => return Ok(()),
            }
        } else if is_name(name, b"transfer-encoding") {
            self.framing.coding(value);
        } else if let Some(byte) = name.iter().find(|byte| !is_tchar(**byte)) {
            if framing_twin(name).is_some() {
                return Err(HeadError::Name(*byte));
            }
            self.last = LastLine::LeftOut;
            return Ok(());
        } else if name.is_empty() {
            self.last = LastLine::LeftOut;
            return Ok(());
        } else {
            self.last = LastLine::Kept;
        }
        self.fields.push(FieldRange {
            name: at.start..at.start + name.len(),
            value: range,
        });
        Ok(())
    }

    fn whole(&mut self, start: StatusLine) -> ResponseHead {
        let AnnouncedFraming {
            length,
            chunked,
            fault,
        } = self.framing;
        let framing = match (fault, length) {
            (Some(fault), _) => Err(fault.into()),
            (None, _) if chunked && !start.http_11 => Err(ResponseError::CodingOn10),
            (None, _) if chunked => Ok(Framing::Chunked),
            (None, Some(length)) => Ok(Framing::Length(length)),
            (None, None) => Ok(Framing::None),
        };
        let none = matches!(framing, Ok(Framing::None | Framing::Length(0)));
        // These have no content, and no length either (RFC 9110, 8.6).
        let ends = start.status < 200 || start.status == 204;
        if (ends || chunked || framing.is_err())
            && let Some(at) = self.length
        {
            self.fields.remove(at);
        }
        ResponseHead {
            length: self.lines.position(),
            status: start.status,
            reason: start.reason,
            http_11: start.http_11,
            framing,
            odd: framing.is_err() || chunked && length.is_some() || ends && !none,
        }
    }
}

impl AnnouncedFraming {
    /// Takes the value of a `Content-Length`. Returns the digits of its number, or `None` if the
    /// field is to be left out: there is one already, or it is malformed.
    fn length(&mut self, value: &[u8]) -> Option<usize> {
        let mut members = value.split(|byte| *byte == b',').map(trim);
        let first = members.next().unwrap_or_default();
        let length = match content_length(first) {
            Ok(length) if members.all(|other| content_length(other) == Ok(length)) => length,
            _ => {
                self.fault = Some(HeadError::Length);
                return None;
            }
        };
        match self.length.replace(length) {
            None => return Some(first.len()),
            Some(before) if before == length => {}
            Some(_) => self.fault = Some(HeadError::Repeated("Content-Length")),
        }
        None
    }

    fn coding(&mut self, value: &[u8]) {
        if !value.eq_ignore_ascii_case(b"chunked") {
            self.fault = Some(HeadError::Coding);
        } else if std::mem::replace(&mut self.chunked, true) {
            self.fault = Some(HeadError::Repeated("Transfer-Encoding"));
        }
    }
}

impl StatusLine {
    fn parse(line: &[u8]) -> Result<Self, ResponseError> {
        let parsed = || {
            let [minor, rest @ ..] = line.strip_prefix(b"HTTP/1.")? else {
                return None;
            };
            let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
            let digits = &rest[blanks..];
            let [a @ b'1'..=b'9', b, c, reason @ ..] = digits else {
                return None;
            };
            let fits = minor.is_ascii_digit()
                && blanks > 0
                && b.is_ascii_digit()
                && c.is_ascii_digit()
                && reason.first().is_none_or(|byte| is_blank(*byte));
            let reason = reason.get(1..).unwrap_or_default();
            let shown = reason.is_ascii() && reason.iter().all(|byte| is_in_value(*byte));
            let from = line.len() - reason.len();
            fits.then(|| Self {
                http_11: *minor != b'0',
                status: [a, b, c]
                    .iter()
                    .fold(0, |status, digit| status * 10 + u16::from(**digit - b'0')),
                reason: from..if shown { line.len() } else { from },
            })
        };
        parsed().ok_or(ResponseError::StatusLine)
    }
}

fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 200,
        fields: 4,
        target: 0,
    };

    type Read = Result<Option<(ResponseHead, Vec<FieldRange>)>, ResponseError>;

    /// The verdict, which must be the same whatever the pieces are.
    fn read(head: &[u8]) -> Read {
        let of = |reader: &mut ResponseReader, bytes: &[u8]| {
            let read = reader.read(bytes, &LIMITS)?;
            Ok(read.map(|head| (head, reader.fields().to_vec())))
        };
        let whole = of(&mut ResponseReader::default(), head);
        let mut reader = ResponseReader::default();
        for end in 0..head.len() {
            match of(&mut reader, &head[..end]) {
                Ok(None) => {}
                early => {
                    assert_eq!(early, whole, "{}", head.escape_ascii());
                    return whole;
                }
            }
        }
        assert_eq!(of(&mut reader, head), whole);
        whole
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table of heads")]
    fn what_is_read() {
        const NONE: Framing = Framing::None;
        // Status, reason, framing, whether the connection is kept, and the fields that go on.
        for (head, status, reason, framing, keeps, fields) in [
            (
                &b"HTTP/1.1 200 OK\r\n\r\nbody"[..],
                200,
                "OK",
                NONE,
                true,
                &[][..],
            ),
            (
                b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n",
                200,
                "OK",
                Framing::Length(4),
                true,
                &["Content-Length: 4"],
            ),
            (
                b"HTTP/1.1 404\r\ncontent-length:0\r\n\r\n",
                404,
                "",
                Framing::Length(0),
                true,
                &["content-length: 0"],
            ),
            (
                b"HTTP/1.1 599 \r\nA:\r\n\r\n",
                599,
                "",
                NONE,
                true,
                &["A: "],
            ),
            (b"HTTP/1.1 999 caf\xe9\tx\r\n\r\n", 999, "", NONE, true, &[]),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
                200,
                "OK",
                Framing::Chunked,
                true,
                &["Transfer-Encoding: Chunked"],
            ),
            (
                b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
                304,
                "Not Modified",
                Framing::Length(9),
                true,
                &["Content-Length: 9"],
            ),
            (
                b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
                103,
                "Early Hints",
                NONE,
                true,
                &["Link: </a>"],
            ),
            // The status line.
            (b"HTTP/1.2 200 OK\r\n\r\n", 200, "OK", NONE, true, &[]),
            (b"HTTP/1.1 \t200  OK \r\n\r\n", 200, " OK ", NONE, true, &[]),
            (b"HTTP/1.1 200\tO\0K\r\n\r\n", 200, "", NONE, true, &[]),
            // Lines.
            (
                b"HTTP/1.1 200 OK\nA: b\n\n",
                200,
                "OK",
                NONE,
                true,
                &["A: b"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nA: b\nC: d\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &["A: b", "C: d"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nA \t: b\r\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &["A: b"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nA: b\r\n \t c \r\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &["A: b\r\n \t c"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nA:\r\n c\r\n \r\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &["A: \r\n c\r\n"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &["A: \0"],
            ),
            (
                b"HTTP/1.1 200 OK\r\n: b\r\n c\r\nA(: b\r\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &[],
            ),
            // Framing.
            (
                b"HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\n",
                200,
                "OK",
                Framing::Length(4),
                true,
                &["Content-Length: 4"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 4, 04\r\ncontent-length: 4\r\n\r\n",
                200,
                "OK",
                Framing::Length(4),
                true,
                &["Content-Length: 4"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent_Length: 4\r\n\r\n",
                200,
                "OK",
                NONE,
                true,
                &["Content_Length: 4"],
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
                200,
                "OK",
                Framing::Chunked,
                false,
                &["Transfer-Encoding: chunked"],
            ),
            (
                b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
                204,
                "No",
                Framing::Length(0),
                true,
                &[],
            ),
            (
                b"HTTP/1.1 204 No\r\nContent-Length: 1\r\nA: b\r\n\r\n",
                204,
                "No",
                Framing::Length(1),
                false,
                &["A: b"],
            ),
            (
                b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
                204,
                "No",
                Framing::Chunked,
                false,
                &["Transfer-Encoding: chunked"],
            ),
            (
                b"HTTP/1.1 100 C\r\nContent-Length: 1\r\n\r\n",
                100,
                "C",
                Framing::Length(1),
                false,
                &[],
            ),
        ] {
            let case = head.escape_ascii().to_string();
            let read = read(head).unwrap_or_else(|error| panic!("{case}: {error}"));
            let (read, ranges) = read.expect("it is whole");
            assert_eq!((read.status, read.framing), (status, Ok(framing)), "{case}");
            assert_eq!(
                (&head[read.reason], read.odd),
                (reason.as_bytes(), !keeps),
                "{case}"
            );
            let text =
                |range: &Range<usize>| String::from_utf8_lossy(&head[range.clone()]).into_owned();
            let lines = ranges
                .iter()
                .map(|field| format!("{}: {}", text(&field.name), text(&field.value)));
            assert_eq!(lines.collect::<Vec<_>>(), fields, "{case}");
        }
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nA: b\r\n"), Ok(None));
    }

    #[test]
    fn what_is_refused() {
        use ResponseError::{CodingOn10, Head, StatusLine};
        for (head, error) in [
            (&b"220 mail.test ESMTP\r\n"[..], StatusLine),
            (b"\r\nHTTP/1.1 200 OK\r\n\r\n", StatusLine),
            (b"http/1.1 200 OK\r\n\r\n", StatusLine),
            (b"HTTP/2 200 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1200 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 20 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 2000 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 099 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 +20 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 200 OK\r\rA: b\r\n\r\n", Head(HeadError::BareCr)),
            (
                b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n",
                Head(HeadError::BareCr),
            ),
            (b"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", Head(HeadError::Folded)),
            (b"HTTP/1.1 200 OK\r\nA\r\n\r\n", Head(HeadError::NoColon)),
            (
                b"HTTP/1.1 200 OK\r\nContent Length: 1\r\n\r\n",
                Head(HeadError::Name(b' ')),
            ),
            (
                b"HTTP/1.1 200 OK\r\nA:\r\nB:\r\nC:\r\nD:\r\nE:\r\n\r\n",
                Head(HeadError::Fields(4)),
            ),
            (
                &[&b"HTTP/1.1 200 "[..], &[b'x'; 187]].concat(),
                Head(HeadError::Bytes(200)),
            ),
        ] {
            assert_eq!(read(head), Err(error), "{}", head.escape_ascii());
            assert!(error.to_string().len() > 10);
        }
        // Only a response with content is refused for these.
        for (fields, error) in [
            (
                "Content-Length: 1\r\nContent-Length: 2",
                Head(HeadError::Repeated("Content-Length")),
            ),
            ("Content-Length: 1, 2", Head(HeadError::Length)),
            ("Content-Length: +1", Head(HeadError::Length)),
            ("Content-Length:", Head(HeadError::Length)),
            ("Content-Length: 1\r\n 2", Head(HeadError::Folded)),
            ("Transfer-Encoding: gzip, chunked", Head(HeadError::Coding)),
            ("Transfer-Encoding: identity", Head(HeadError::Coding)),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                Head(HeadError::Repeated("Transfer-Encoding")),
            ),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            let (read, ranges) = read(head.as_bytes()).expect("no fault").expect("whole");
            assert_eq!((read.framing, read.odd), (Err(error), true), "{fields}");
            let lengths = ranges
                .iter()
                .filter(|field| head[field.name.clone()].starts_with('C'));
            assert_eq!(lengths.count(), 0, "{fields}");
        }
        let old = read(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let (old, _) = old.expect("no fault").expect("whole");
        assert_eq!(old.framing, Err(CodingOn10));
    }
}
