//! The stream of bytes of one client: where each request ends and the next begins.
//!
//! No byte of a head may be handed on before the whole head has passed. The bytes of a body may be
//! handed on as they come: a malformed body breaks off and never ends. After the first violation
//! nothing more passes, since the beginning of the next message is no longer certain.

use super::chunked::{BodyError, trailer_limits};
use super::content::{ContentPart, ContentReader};
use super::head::HeadLimits;
use super::request::{RequestError, RequestReader, WholeHead};

/// The first bytes of an HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The reason for reading no more of a client's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The head behind the last request.
    Head(RequestError),
    /// The body of the last request.
    Body(BodyError),
}

#[derive(Clone, Debug)]
enum ClientState {
    /// Nothing has come: it may be HTTP/2.
    Start,
    Head,
    Body(ContentReader),
    /// Behind a request to leave HTTP, until that is answered.
    Held,
    Http2,
    /// After a violation.
    Ended,
}

/// The next part of a client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPart {
    /// Nothing before more bytes have come.
    None,
    /// A whole head, which [`ClientFraming::reader`] has read.
    Head(WholeHead),
    Body(ContentPart),
    /// This many bytes of HTTP/2.
    Http2(usize),
}

/// Divides the bytes of one client into messages.
#[derive(Clone, Debug)]
pub struct ClientFraming {
    limits: HeadLimits,
    state: ClientState,
    reader: RequestReader,
    /// The reader has read a whole head.
    read: bool,
    /// The current request asks to leave HTTP.
    upgrade: bool,
}

impl ClientFraming {
    #[must_use]
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            state: ClientState::Start,
            reader: RequestReader::default(),
            read: false,
            upgrade: false,
        }
    }

    /// Takes the next part off these bytes, which begin where the last part ended.
    pub fn next(&mut self, rest: &[u8]) -> Result<ClientPart, Violation> {
        let part = self.advance(rest);
        if part.is_err() {
            self.state = ClientState::Ended;
        }
        part
    }

    fn advance(&mut self, rest: &[u8]) -> Result<ClientPart, Violation> {
        if rest.is_empty() {
            return Ok(ClientPart::None);
        }
        if matches!(self.state, ClientState::Start) {
            if rest.starts_with(PREFACE) {
                self.state = ClientState::Http2;
            } else if PREFACE.starts_with(rest) {
                return Ok(ClientPart::None);
            } else {
                self.state = ClientState::Head;
            }
        }
        match &mut self.state {
            ClientState::Head => {
                if std::mem::take(&mut self.read) {
                    self.reader.clear();
                }
                let read = self.reader.read(rest, &self.limits);
                let Some(head) = read.map_err(Violation::Head)? else {
                    return Ok(ClientPart::None);
                };
                self.read = true;
                self.upgrade = head.upgrade;
                let content = ContentReader::of_request(head.framing);
                if content.is_end() {
                    self.end_request();
                } else {
                    self.state = ClientState::Body(content);
                }
                Ok(ClientPart::Head(head))
            }
            ClientState::Body(content) => {
                let limits = trailer_limits(self.limits);
                let part = content.next(rest, &limits).map_err(Violation::Body)?;
                if content.is_end() {
                    self.end_request();
                }
                Ok(ClientPart::Body(part))
            }
            ClientState::Start | ClientState::Held | ClientState::Ended => Ok(ClientPart::None),
            ClientState::Http2 => Ok(ClientPart::Http2(rest.len())),
        }
    }

    /// The reader of the current head, or of the last one.
    #[must_use]
    pub const fn reader(&self) -> &RequestReader {
        &self.reader
    }

    fn end_request(&mut self) {
        self.state = if std::mem::take(&mut self.upgrade) {
            ClientState::Held
        } else {
            ClientState::Head
        };
    }

    /// The request to leave HTTP was refused: the next request follows.
    pub fn resume(&mut self) {
        if matches!(self.state, ClientState::Held) {
            self.state = ClientState::Head;
        }
    }

    /// True if a body has begun and not ended.
    #[must_use]
    pub const fn is_in_body(&self) -> bool {
        matches!(self.state, ClientState::Body(_))
    }

    /// True if the next byte is one of a body's content.
    #[must_use]
    pub const fn is_in_data(&self) -> bool {
        matches!(&self.state, ClientState::Body(content) if content.is_in_data())
    }

    /// True if these bytes, which were not released, are the beginning of a head. An empty line
    /// before a head is not.
    #[must_use]
    pub const fn is_in_head(&self, unreleased: &[u8]) -> bool {
        matches!(self.state, ClientState::Start | ClientState::Head)
            && !matches!(unreleased, [] | [b'\r'] | [b'\r', b'\n'])
    }
}
