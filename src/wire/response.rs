//! The head of a response.
//!
//! Responses are read as strictly as requests. Three things are accepted because old servers send
//! them and they have one reading:
//!
//! - A status line without a reason phrase, or without the space before it. RFC 9112, 4 says that a
//!   client ignores the phrase.
//! - An unregistered status code.
//! - `Content-Length: 0` with a 204.
//!
//! Some servers may send these, and they are refused:
//!
//! - A bare LF. A client that can get one reflected in a header could write headers, or whole
//!   responses, of its own.
//! - Two lengths, even equal ones, and any coding except one `chunked`. The proxy would have to
//!   choose for its client how the body ends.
//! - A body announced with a 1xx or 204, which have none (RFC 9110, 8.6; RFC 9112, 6.1). The bytes
//!   that follow may be the body, or the next response.

use std::fmt;

use super::head::{FieldLines, FieldRange, Framing, HeadError, HeadLimits, HeadLines, is_in_value};

/// Why the head of a response is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    Head(HeadError),
    /// Not `HTTP/1.x SP 3DIGIT [SP reason]`.
    StatusLine,
    /// `Transfer-Encoding` on HTTP/1.0.
    CodingOn10,
    /// A body announced with this status, which has none.
    BodyWith(u16),
}

impl From<HeadError> for ResponseError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // These limits are not configurable.
            Self::Head(HeadError::Bytes(limit)) => write!(f, "more than {limit} bytes"),
            Self::Head(HeadError::Fields(limit)) => write!(f, "more than {limit} field lines"),
            Self::Head(error) => error.fmt(f),
            Self::StatusLine => f.write_str("the first line is not `HTTP/1.1 status reason`"),
            Self::CodingOn10 => {
                f.write_str("Transfer-Encoding on HTTP/1.0, which does not have it")
            }
            Self::BodyWith(status) => write!(f, "a body with status {status}, which has none"),
        }
    }
}

impl std::error::Error for ResponseError {}

/// The parts of a head that the end of the response depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The length of the head, up to the end of its empty line.
    pub length: usize,
    pub status: u16,
    /// In HTTP/1.1, and not 1.0.
    pub http_11: bool,
    /// The framing in the fields. Status and method decide whether there is content at all.
    pub framing: Framing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StatusLine {
    http_11: bool,
    status: u16,
}

/// Reads one head, piece by piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseReader {
    lines: HeadLines,
    start: Option<StatusLine>,
    fields: FieldLines,
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

    /// The fields that have come.
    #[must_use]
    pub fn fields(&self) -> &[FieldRange] {
        &self.fields.ranges
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
            let Some(start) = self.start else {
                self.start = Some(StatusLine::parse(line)?);
                continue;
            };
            if line.is_empty() {
                return self.whole(start).map(Some);
            }
            self.fields.add(line, begin, limits)?;
        }
    }

    fn whole(&self, start: StatusLine) -> Result<ResponseHead, ResponseError> {
        let framing = self.fields.framing.framing()?;
        if framing == Framing::Chunked && !start.http_11 {
            return Err(ResponseError::CodingOn10);
        }
        let bodiless = start.status < 200 || start.status == 204;
        if bodiless && !matches!(framing, Framing::None | Framing::Length(0)) {
            return Err(ResponseError::BodyWith(start.status));
        }
        Ok(ResponseHead {
            length: self.lines.position(),
            status: start.status,
            http_11: start.http_11,
            framing,
        })
    }
}

impl StatusLine {
    fn parse(line: &[u8]) -> Result<Self, ResponseError> {
        let rest = line.strip_prefix(b"HTTP/1.");
        let Some([minor @ (b'0' | b'1'), b' ', a, b, c, reason @ ..]) = rest else {
            return Err(ResponseError::StatusLine);
        };
        let digits = [a, b, c];
        let reason_fits = reason.is_empty() || reason[0] == b' ';
        if !digits.iter().all(|digit| digit.is_ascii_digit())
            || *digits[0] == b'0'
            || !reason_fits
            || !reason.iter().all(|byte| is_in_value(*byte))
        {
            return Err(ResponseError::StatusLine);
        }
        let status = digits
            .iter()
            .fold(0, |status, digit| status * 10 + u16::from(**digit - b'0'));
        Ok(Self {
            http_11: *minor == b'1',
            status,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 200,
        fields: 4,
        target: 0,
    };

    /// The verdict, which must be the same whatever the pieces are.
    fn read(head: &[u8]) -> Result<Option<ResponseHead>, ResponseError> {
        let whole = ResponseReader::default().read(head, &LIMITS);
        let mut reader = ResponseReader::default();
        for end in 0..head.len() {
            match reader.read(&head[..end], &LIMITS) {
                Ok(None) => {}
                early => {
                    assert_eq!(early, whole, "{}", head.escape_ascii());
                    return whole;
                }
            }
        }
        assert_eq!(reader.read(head, &LIMITS), whole);
        whole
    }

    #[test]
    fn what_is_read() {
        for (head, status, framing) in [
            (&b"HTTP/1.1 200 OK\r\n\r\nbody"[..], 200, Framing::None),
            (
                b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n",
                200,
                Framing::Length(4),
            ),
            (
                b"HTTP/1.1 404\r\ncontent-length:0\r\n\r\n",
                404,
                Framing::Length(0),
            ),
            (b"HTTP/1.1 599 \r\nA:\r\n\r\n", 599, Framing::None),
            (b"HTTP/1.1 999 caf\xe9\tx\r\n\r\n", 999, Framing::None),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
                200,
                Framing::Chunked,
            ),
            (
                b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
                204,
                Framing::Length(0),
            ),
            (
                b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
                304,
                Framing::Length(9),
            ),
            (
                b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
                103,
                Framing::None,
            ),
        ] {
            let read = read(head).expect("it passes").expect("it is whole");
            assert_eq!((read.status, read.framing), (status, framing));
            assert!(head[..read.length].ends_with(b"\r\n\r\n"));
        }
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nA: b\r\n"), Ok(None));
    }

    #[test]
    fn what_is_refused() {
        use ResponseError::{BodyWith, CodingOn10, Head, StatusLine};
        for (head, error) in [
            (&b"220 mail.test ESMTP\r\n"[..], StatusLine),
            (b"\r\nHTTP/1.1 200 OK\r\n\r\n", StatusLine),
            (b"http/1.1 200 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.2 200 OK\r\n\r\n", StatusLine),
            (b"HTTP/2 200 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1  200 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1\t200 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 20 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 2000 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 099 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 +20 OK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 200\tOK\r\n\r\n", StatusLine),
            (b"HTTP/1.1 200 O\0K\r\n\r\n", StatusLine),
            (b"HTTP/1.1 200 OK\n\r\n", Head(HeadError::BareLf)),
            (b"HTTP/1.1 200 OK\r\rA: b\r\n\r\n", Head(HeadError::BareCr)),
            (b"HTTP/1.1 200 OK\r\nA: b\n\r\n", Head(HeadError::BareLf)),
            (
                b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n",
                Head(HeadError::BareCr),
            ),
            (
                b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
                Head(HeadError::Folded),
            ),
            (b"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", Head(HeadError::Folded)),
            (
                b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
                Head(HeadError::SpaceBeforeColon),
            ),
            (b"HTTP/1.1 200 OK\r\nA\r\n\r\n", Head(HeadError::NoColon)),
            (
                b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
                Head(HeadError::Value(0)),
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
                Head(HeadError::Repeated("Content-Length")),
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
                Head(HeadError::Length),
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                Head(HeadError::TwoFramings),
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                Head(HeadError::Coding),
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
                Head(HeadError::Coding),
            ),
            (
                b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                CodingOn10,
            ),
            (
                b"HTTP/1.1 204 No\r\nContent-Length: 1\r\n\r\n",
                BodyWith(204),
            ),
            (
                b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
                BodyWith(204),
            ),
            (
                b"HTTP/1.1 100 C\r\nContent-Length: 1\r\n\r\n",
                BodyWith(100),
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
    }
}
