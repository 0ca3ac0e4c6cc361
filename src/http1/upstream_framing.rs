//! The response to one request: its interim responses, its head, and how its content ends.
//!
//! A connection to the upstream carries one request at a time. Bytes that come without a request
//! (before the first one, or behind a whole response) would be taken for the next response. After
//! them, as after every other fault, the connection is not used again. A response that was whole
//! before stays valid.

use std::fmt;

use super::chunked::BodyError;
use super::content::ContentReader;
use super::head::{FieldRange, HeadLimits};
use super::response::{ResponseError, ResponseHead, ResponseReader};

/// The reason for closing a connection to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFault {
    Head(ResponseError),
    Body(BodyError),
    /// A 101 without a request for it.
    Unasked,
    /// Bytes before the first request: the other side speaks first.
    Greeting,
    /// Bytes without a request.
    Extra,
}

impl fmt::Display for UpstreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the head of the response: {error}"),
            Self::Body(error) => write!(f, "the body of the response: {error}"),
            Self::Unasked => f.write_str("the upstream switched protocols unasked"),
            Self::Greeting => f.write_str("bytes before any request"),
            Self::Extra => f.write_str("bytes that answer no request"),
        }
    }
}

impl std::error::Error for UpstreamFault {}

/// The properties of a request that its response is read by.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseExpectation {
    /// HEAD: no response to it has content.
    pub head: bool,
    /// It asks to leave HTTP.
    pub upgrade: bool,
}

/// A whole head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// The length of an interim response, which is not passed on.
    Interim(usize),
    Final(ResponseHead, ContentReader),
    /// A 101, and another protocol behind it.
    Switched(ResponseHead),
}

/// Reads the response to one request up to the end of its head.
#[derive(Clone, Debug)]
pub struct UpstreamFraming {
    limits: HeadLimits,
    asked: ResponseExpectation,
    reader: ResponseReader,
}

impl UpstreamFraming {
    #[must_use]
    pub fn new(asked: ResponseExpectation, limits: HeadLimits) -> Self {
        Self {
            limits,
            asked,
            reader: ResponseReader::default(),
        }
    }

    /// Reads the bytes since the last interim response: those of the last call, and new ones.
    /// `None`: the head is not whole.
    ///
    /// # Errors
    ///
    /// The verdict does not depend on the pieces in which it comes.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<Head>, UpstreamFault> {
        let read = self.reader.read(bytes, &self.limits);
        let Some(head) = read.map_err(UpstreamFault::Head)? else {
            return Ok(None);
        };
        match head.status {
            101 if self.asked.upgrade => Ok(Some(Head::Switched(head))),
            101 => Err(UpstreamFault::Unasked),
            100..200 => {
                // Each is discarded, so they cost only time, which the caller bounds.
                self.reader.clear();
                Ok(Some(Head::Interim(head.length)))
            }
            status => {
                let bodiless = self.asked.head || matches!(status, 204 | 304);
                let content = if bodiless {
                    ContentReader::NONE
                } else {
                    ContentReader::of_response(head.framing.map_err(UpstreamFault::Head)?)
                };
                Ok(Some(Head::Final(head, content)))
            }
        }
    }

    /// The fields of the final head.
    #[must_use]
    pub fn fields(&self) -> &[FieldRange] {
        self.reader.fields()
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::Framing;
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1000,
        fields: 10,
        target: 0,
    };
    const GET: ResponseExpectation = ResponseExpectation {
        head: false,
        upgrade: false,
    };
    const HEAD: ResponseExpectation = ResponseExpectation { head: true, ..GET };
    const OPEN: ResponseExpectation = ResponseExpectation {
        upgrade: true,
        ..GET
    };

    /// The final head's status, its content (`None`: another protocol), the bytes up to there, and
    /// the names of its fields; the same whatever the pieces are.
    type Told = Result<Option<(u16, Option<ContentReader>, usize, Vec<Vec<u8>>)>, UpstreamFault>;

    fn read(asked: ResponseExpectation, bytes: &[u8], piece: usize) -> Told {
        let mut reader = UpstreamFraming::new(asked, LIMITS);
        let mut at = 0;
        let mut end = piece.min(bytes.len());
        loop {
            let (head, content) = match reader.read(&bytes[at..end])? {
                Some(Head::Interim(length)) => {
                    at += length;
                    continue;
                }
                Some(Head::Final(head, content)) => (head, Some(content)),
                Some(Head::Switched(head)) => (head, None),
                None if end == bytes.len() => return Ok(None),
                None => {
                    end = (end + piece).min(bytes.len());
                    continue;
                }
            };
            let fields = reader.fields().iter();
            let names = fields.map(|field| bytes[at..][field.name.clone()].to_vec());
            return Ok(Some((
                head.status,
                content,
                at + head.length,
                names.collect(),
            )));
        }
    }

    fn answer(asked: ResponseExpectation, bytes: &[u8]) -> Told {
        let told = read(asked, bytes, bytes.len());
        for piece in [1, 2, 3, 7] {
            assert_eq!(read(asked, bytes, piece), told, "{}", bytes.escape_ascii());
        }
        told
    }

    fn content(asked: ResponseExpectation, head: &str) -> (Option<ContentReader>, usize) {
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
                ContentReader::Length(2),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                ContentReader::NONE,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                ContentReader::of_response(Framing::Chunked),
            ),
            ("HTTP/1.0 200 OK\r\n\r\n", ContentReader::ToEnd),
            ("HTTP/1.1 204 No Content\r\n\r\n", ContentReader::NONE),
            (
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
                ContentReader::NONE,
            ),
        ] {
            assert_eq!(content(GET, head), (Some(follows), head.len()), "{head}");
            assert_eq!(
                content(HEAD, head),
                (Some(ContentReader::NONE), head.len()),
                "{head}"
            );
        }
    }

    #[test]
    fn the_fields_are_those_of_the_final_head() {
        let bytes = b"HTTP/1.1 103 E\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n";
        let told = answer(GET, bytes).expect("no fault").expect("whole");
        assert_eq!(told.3, [&b"A"[..], b"C"]);
        assert_eq!(told.2, bytes.len());
        assert_eq!(answer(GET, &bytes[..bytes.len() - 1]), Ok(None));
    }

    #[test]
    fn interim_responses_pass() {
        const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let interim = &b"HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n"[..];
        let many = [&interim.repeat(1000), OK].concat();
        assert!(matches!(answer(GET, &many), Ok(Some((200, ..)))));
    }

    #[test]
    fn framing_is_in_doubt_only_where_there_is_content() {
        for fields in [
            "Content-Length: x",
            "Content-Length: 1\r\nContent-Length: 2",
            "Transfer-Encoding: gzip",
        ] {
            let head = |status| format!("HTTP/1.1 {status} X\r\n{fields}\r\n\r\n");
            let refused = answer(GET, head(200).as_bytes());
            assert!(matches!(refused, Err(UpstreamFault::Head(_))), "{fields}");
            let none = Some(ContentReader::NONE);
            for (asked, status) in [(GET, 204), (GET, 304), (HEAD, 200)] {
                assert_eq!(content(asked, &head(status)).0, none, "{status} {fields}");
            }
        }
    }

    #[test]
    fn a_switch_passes_where_it_was_asked_for() {
        let switch = "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n";
        assert_eq!(content(OPEN, switch), (None, switch.len()));
        assert_eq!(answer(GET, switch.as_bytes()), Err(UpstreamFault::Unasked));
        let refused = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(content(OPEN, refused).0, Some(ContentReader::Length(2)));
    }

    #[test]
    fn a_malformed_head_is_a_fault() {
        let told = answer(GET, b"220 mail.test ESMTP\r\n");
        assert_eq!(told, Err(UpstreamFault::Head(ResponseError::StatusLine)));
    }
}
