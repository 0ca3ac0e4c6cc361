//! The answer to one request: its interim responses, its head, and where its content ends.
//!
//! One request is out at a time on a connection to the upstream. Bytes that come when none is (before
//! the first, or behind a whole response) answer nothing, and would be taken for the answer to the
//! next: after them, as after every other fault, the connection is good for nothing more. A response
//! that was whole before stands.

use std::fmt;

use super::chunked::{BodyError, Chunks};
use super::head::{Field, Framing, HeadLimits};
use super::response::{ResponseError, ResponseHead, ResponseReader};

/// How many interim responses (1xx) one request may get. Each is thrown away, so they cost only time, which the
/// caller bounds; a `102` every few seconds over a long request is what they are for.
const MOST_INTERIM: u32 = 100;

/// What ended the trust in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    Head(ResponseError),
    Body(BodyError),
    /// More than a hundred interim responses.
    Interim,
    /// A 101 that was not asked for.
    Unasked,
    /// Bytes before anything was written: the other side speaks first, and no request has gone over.
    Greeting,
    /// Bytes that no request is out for.
    Extra,
}

impl fmt::Display for AnswerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the head of the response: {error}"),
            Self::Body(error) => write!(f, "the body of the response: {error}"),
            Self::Interim => write!(f, "more than {MOST_INTERIM} interim responses"),
            Self::Unasked => f.write_str("the upstream switched protocols unasked"),
            Self::Greeting => f.write_str("bytes before any request"),
            Self::Extra => f.write_str("bytes that answer no request"),
        }
    }
}

impl std::error::Error for AnswerFault {}

/// What has to be known of a request to read its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedRequest {
    /// HEAD: no response to it has content.
    pub head: bool,
    /// It asks to leave HTTP.
    pub upgrade: bool,
}

/// What follows the head of a final response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerContent {
    None,
    /// So many bytes, and not 0.
    Length(u64),
    Chunked(Chunks),
    /// The connection's end is the response's.
    ToEnd,
    /// Another protocol.
    Through,
}

/// A head that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// So many bytes, which tell nothing that is passed on.
    Interim(usize),
    Final(ResponseHead, AnswerContent),
}

/// Reads the answer to one request up to the end of its head.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    limits: HeadLimits,
    asked: AskedRequest,
    reader: ResponseReader,
    interim: u32,
}

impl AnswerReader {
    #[must_use]
    pub fn new(asked: AskedRequest, limits: HeadLimits) -> Self {
        Self {
            limits,
            asked,
            reader: ResponseReader::default(),
            interim: 0,
        }
    }

    /// Looks at what has come since the latest whole head, the same each time but for what has been
    /// added. `each` gets every field once. `None`: more has to come.
    ///
    /// # Errors
    ///
    /// The verdict does not depend on the pieces in which it comes.
    pub fn read<'a>(
        &mut self,
        bytes: &'a [u8],
        each: impl FnMut(&Field<'a>),
    ) -> Result<Option<Head>, AnswerFault> {
        let read = self.reader.read_fields(bytes, &self.limits, each);
        let Some(head) = read.map_err(AnswerFault::Head)? else {
            return Ok(None);
        };
        self.reader = ResponseReader::default();
        match head.status {
            101 if self.asked.upgrade => Ok(Some(Head::Final(head, AnswerContent::Through))),
            101 => Err(AnswerFault::Unasked),
            100..200 => {
                self.interim += 1;
                if self.interim > MOST_INTERIM {
                    return Err(AnswerFault::Interim);
                }
                Ok(Some(Head::Interim(head.length)))
            }
            status => {
                let bodiless = self.asked.head || matches!(status, 204 | 304);
                let content = match head.framing {
                    _ if bodiless => AnswerContent::None,
                    Framing::Length(0) => AnswerContent::None,
                    Framing::Length(length) => AnswerContent::Length(length),
                    Framing::Chunked => AnswerContent::Chunked(Chunks::default()),
                    Framing::None => AnswerContent::ToEnd,
                };
                Ok(Some(Head::Final(head, content)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1000,
        fields: 10,
        target: 0,
    };
    const GET: AskedRequest = AskedRequest {
        head: false,
        upgrade: false,
    };
    const HEAD: AskedRequest = AskedRequest { head: true, ..GET };
    const OPEN: AskedRequest = AskedRequest {
        upgrade: true,
        ..GET
    };

    /// The final head's status, what follows, the bytes up to there, and the names of all fields; the
    /// same whatever the pieces are.
    type Told = Result<Option<(u16, AnswerContent, usize, Vec<Vec<u8>>)>, AnswerFault>;

    fn read(asked: AskedRequest, bytes: &[u8], piece: usize) -> Told {
        let mut reader = AnswerReader::new(asked, LIMITS);
        let (mut at, mut names) = (0, Vec::new());
        let mut end = piece.min(bytes.len());
        loop {
            let head = reader.read(&bytes[at..end], |field| names.push(field.name.to_vec()))?;
            match head {
                Some(Head::Interim(length)) => at += length,
                Some(Head::Final(head, content)) => {
                    return Ok(Some((head.status, content, at + head.length, names)));
                }
                None if end == bytes.len() => return Ok(None),
                None => end = (end + piece).min(bytes.len()),
            }
        }
    }

    fn answer(asked: AskedRequest, bytes: &[u8]) -> Told {
        let told = read(asked, bytes, bytes.len());
        for piece in [1, 2, 3, 7] {
            assert_eq!(read(asked, bytes, piece), told, "{}", bytes.escape_ascii());
        }
        told
    }

    fn content(asked: AskedRequest, head: &str) -> (AnswerContent, usize) {
        let bytes = format!("{head}more");
        let told = answer(asked, bytes.as_bytes()).expect("no fault");
        let (_, content, length, _) = told.expect("whole");
        (content, length)
    }

    #[test]
    fn what_follows_a_head() {
        for (head, follows) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
                AnswerContent::Length(2),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                AnswerContent::None,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                AnswerContent::Chunked(Chunks::default()),
            ),
            ("HTTP/1.0 200 OK\r\n\r\n", AnswerContent::ToEnd),
            ("HTTP/1.1 204 No Content\r\n\r\n", AnswerContent::None),
            (
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
                AnswerContent::None,
            ),
        ] {
            assert_eq!(content(GET, head), (follows, head.len()), "{head}");
            assert_eq!(
                content(HEAD, head),
                (AnswerContent::None, head.len()),
                "{head}"
            );
        }
    }

    #[test]
    fn every_field_is_told_once() {
        let bytes = b"HTTP/1.1 103 E\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n";
        let told = answer(GET, bytes).expect("no fault").expect("whole");
        assert_eq!(told.3, [&b"Link"[..], b"A", b"C"]);
        assert_eq!(told.2, bytes.len());
        assert_eq!(answer(GET, &bytes[..bytes.len() - 1]), Ok(None));
    }

    #[test]
    fn interim_responses_pass_in_bounds() {
        const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let interim = &b"HTTP/1.1 102 Processing\r\n\r\n"[..];
        let many = [&interim.repeat(100), OK].concat();
        assert!(matches!(answer(GET, &many), Ok(Some((200, ..)))));
        let more = interim.repeat(101);
        assert_eq!(answer(GET, &more), Err(AnswerFault::Interim));
    }

    #[test]
    fn a_switch_passes_where_it_was_asked_for() {
        let switch = "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n";
        assert_eq!(
            content(OPEN, switch),
            (AnswerContent::Through, switch.len())
        );
        assert_eq!(answer(GET, switch.as_bytes()), Err(AnswerFault::Unasked));
        let refused = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(content(OPEN, refused).0, AnswerContent::Length(2));
    }

    #[test]
    fn a_malformed_head_is_a_fault() {
        let told = answer(GET, b"220 mail.test ESMTP\r\n");
        assert_eq!(told, Err(AnswerFault::Head(ResponseError::StatusLine)));
    }
}
