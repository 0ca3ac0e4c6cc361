//! One connection of a client: where each request ends and the next begins, and up to where its bytes
//! may be handed on.
//!
//! No byte of a head may be handed on before the whole head has passed; the bytes of a body may as they
//! come, since a body that turns out to be malformed breaks off and never ends. After the first
//! violation nothing more passes: where the next message would begin is no longer certain.

use super::chunked::{BodyError, ChunkedPart, Chunks, trailer_limits};
use super::head::{Framing, HeadLimits};
use super::request::{RequestError, RequestHead, RequestReader};

/// What an HTTP/2 connection begins with (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What ended the trust in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The head of the request with this number, counted from 1.
    Head(u64, RequestError),
    /// The body of the last request whose head has passed.
    Body(BodyError),
}

#[derive(Clone, Debug)]
enum FollowState {
    /// Nothing has come: it may be HTTP/2.
    Start,
    Head,
    /// So many bytes of a body are left.
    Length(u64),
    Chunked(Chunks),
    /// Behind a request to leave HTTP, until that is answered.
    Held,
    /// HTTP/2.
    Http2,
    /// Not HTTP any more.
    Through,
    /// After a violation.
    Ended,
}

/// What comes next on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// More has to come first.
    More,
    /// A whole head, which [`Follow::reader`] has read.
    Head(RequestHead),
    /// So many bytes of a body.
    Body(ChunkedPart),
    /// So many bytes of another protocol.
    Through(usize),
}

/// Follows a connection.
#[derive(Clone, Debug)]
pub struct Follow {
    limits: HeadLimits,
    state: FollowState,
    reader: RequestReader,
    /// The reader has read a whole head.
    read: bool,
    heads: u64,
    /// The request at hand asks to leave HTTP.
    upgrade: bool,
}

impl Follow {
    #[must_use]
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            state: FollowState::Start,
            reader: RequestReader::default(),
            read: false,
            heads: 0,
            upgrade: false,
        }
    }

    /// Takes what has come: what the last call did not release, and what was added. Returns how many of
    /// these bytes may be handed on, which holds beside a violation too.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Result<(), Violation>) {
        let mut released = 0;
        loop {
            let rest = &bytes[released..];
            if rest.is_empty() {
                return (released, Ok(()));
            }
            match self.step(rest) {
                Ok(FollowStep::More) => return (released, Ok(())),
                Ok(FollowStep::Head(head)) => released += head.length,
                Ok(FollowStep::Body(part)) => released += part.length(),
                Ok(FollowStep::Through(taken)) => released += taken,
                Err(violation) => return (released, Err(violation)),
            }
        }
    }

    /// Looks at what has not been taken yet, from its first byte. What it returns has been taken,
    /// [`FollowStep::More`] excepted.
    pub fn step(&mut self, rest: &[u8]) -> Result<FollowStep, Violation> {
        let step = self.advance(rest);
        if step.is_err() {
            self.state = FollowState::Ended;
        }
        step
    }

    fn advance(&mut self, rest: &[u8]) -> Result<FollowStep, Violation> {
        if rest.is_empty() {
            return Ok(FollowStep::More);
        }
        if matches!(self.state, FollowState::Start) {
            if rest.starts_with(PREFACE) {
                self.state = FollowState::Http2;
            } else if PREFACE.starts_with(rest) {
                return Ok(FollowStep::More);
            } else {
                self.state = FollowState::Head;
            }
        }
        match &mut self.state {
            FollowState::Head => {
                if std::mem::take(&mut self.read) {
                    self.reader.clear();
                }
                let read = self.reader.read(rest, &self.limits);
                let Some(head) = read.map_err(|error| Violation::Head(self.heads + 1, error))?
                else {
                    return Ok(FollowStep::More);
                };
                self.read = true;
                self.heads += 1;
                self.upgrade = head.upgrade;
                match head.framing {
                    Framing::None | Framing::Length(0) => self.between(),
                    Framing::Length(length) => self.state = FollowState::Length(length),
                    Framing::Chunked => self.state = FollowState::Chunked(Chunks::default()),
                }
                Ok(FollowStep::Head(head))
            }
            FollowState::Length(left) => {
                let taken = (rest.len() as u64).min(*left);
                *left -= taken;
                if *left == 0 {
                    self.between();
                }
                let taken = usize::try_from(taken).unwrap_or(rest.len());
                Ok(FollowStep::Body(ChunkedPart::Data(taken)))
            }
            FollowState::Chunked(chunks) => {
                let limits = trailer_limits(self.limits);
                let part = chunks.next(rest, &limits).map_err(Violation::Body)?;
                if chunks.is_end() {
                    self.between();
                }
                Ok(FollowStep::Body(part))
            }
            FollowState::Start | FollowState::Held | FollowState::Ended => Ok(FollowStep::More),
            FollowState::Http2 | FollowState::Through => Ok(FollowStep::Through(rest.len())),
        }
    }

    /// The reader of the head at hand, or of the latest one.
    #[must_use]
    pub const fn reader(&self) -> &RequestReader {
        &self.reader
    }

    fn between(&mut self) {
        self.state = if std::mem::take(&mut self.upgrade) {
            FollowState::Held
        } else {
            FollowState::Head
        };
    }

    /// How many heads have passed.
    #[must_use]
    pub const fn heads(&self) -> u64 {
        self.heads
    }

    /// A request to leave HTTP has passed: nothing behind it does before [`Self::resume`] or
    /// [`Self::pass_through`].
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.state, FollowState::Held)
    }

    /// It was refused: what follows is the next request.
    pub fn resume(&mut self) {
        if self.is_held() {
            self.state = FollowState::Head;
        }
    }

    /// It was granted: what follows is not HTTP/1.
    pub fn pass_through(&mut self) {
        self.state = FollowState::Through;
    }

    /// Whether everything passes.
    #[must_use]
    pub const fn is_through(&self) -> bool {
        matches!(self.state, FollowState::Http2 | FollowState::Through)
    }

    /// Whether the connection has begun as HTTP/2.
    #[must_use]
    pub const fn is_http2(&self) -> bool {
        matches!(self.state, FollowState::Http2)
    }

    /// Whether a body has begun and not ended.
    #[must_use]
    pub const fn is_in_body(&self) -> bool {
        matches!(self.state, FollowState::Length(_) | FollowState::Chunked(_))
    }

    /// Whether the next byte is one of a body's content.
    #[must_use]
    pub fn is_in_data(&self) -> bool {
        match &self.state {
            FollowState::Length(_) => true,
            FollowState::Chunked(chunks) => chunks.is_in_data(),
            _ => false,
        }
    }

    /// Whether these bytes, which were not released, are the beginning of a head. An empty line before
    /// one is not.
    #[must_use]
    pub const fn is_in_head(&self, unreleased: &[u8]) -> bool {
        matches!(self.state, FollowState::Start | FollowState::Head)
            && !matches!(unreleased, [] | [b'\r'] | [b'\r', b'\n'])
    }

    /// Gives up on the head at hand.
    pub fn give_up(&mut self, error: RequestError) -> Violation {
        self.state = FollowState::Ended;
        Violation::Head(self.heads + 1, error)
    }
}
