//! The client's bytes: heads, and the bodies that somebody wants to have read.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::metrics::{Limit, Metrics};
use crate::proxy::{BoxError, Feed, Received, Wish, streamed};
use crate::wire::chunked::{BodyError, ChunkedPart};
use crate::wire::follow::{Follow, FollowStep, Violation};
use crate::wire::head::{Framing, HeadError, HeadLimits, fields};
use crate::wire::request::{RequestError, RequestHead, RequestReader};

/// How much is read at once while a head is waited for.
const PIECE: usize = 4 << 10;
/// The same of a longer body.
const BODY_PIECE: usize = 32 << 10;
/// The least room for which a read is worth its system call.
const LEAST: usize = 1 << 10;
/// How often more of a body that nobody wants is read, so that its connection can be kept.
const DRAINS: usize = 2;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
#[error("the client closed its connection in the middle")]
struct CutShort;

/// How a look at a body has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// The body's reader has something to look at.
    Progress,
    /// The client has left, and nobody is to be told.
    Gone,
}

/// What comes next, when a head is waited for.
pub(super) enum Next {
    Head(RequestHead),
    Refused(RequestError),
    /// The client speaks HTTP/2.
    Http2,
    More,
}

/// The reading side of a connection.
pub(super) struct Input {
    follow: Follow,
    /// Read, and not taken.
    buf: BytesMut,
    /// The client has sent its last byte.
    eof: bool,
    /// What has come of a trailer section.
    trailer: Vec<u8>,
    /// The body at hand, while more of it is to come.
    feed: Option<Feed>,
    /// The client waits for `100 Continue`.
    expects: bool,
    /// A body was malformed or is of no interest: nothing more is read.
    closed: bool,
    metrics: Arc<Metrics>,
}

impl Input {
    pub(super) fn new(limits: HeadLimits, metrics: Arc<Metrics>) -> Self {
        Self {
            follow: Follow::new(limits),
            buf: BytesMut::new(),
            eof: false,
            trailer: Vec::new(),
            feed: None,
            expects: false,
            closed: false,
            metrics,
        }
    }

    /// Reads more; `false` at the end of the stream.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        if self.buf.capacity() - self.buf.len() < LEAST {
            let body = self.follow.is_in_body();
            self.buf.reserve(if body { BODY_PIECE } else { PIECE });
        }
        let count = ready!(pin!(io.read_buf(&mut self.buf)).poll(cx))?;
        self.eof = count == 0;
        Poll::Ready(Ok(!self.eof))
    }

    /// Looks for a whole head in what has come.
    pub(super) fn next(&mut self) -> Next {
        match self.follow.step(&self.buf) {
            Ok(FollowStep::Head(head)) => Next::Head(head),
            Err(Violation::Head(_, error)) => Next::Refused(error),
            Ok(FollowStep::Through(_)) => Next::Http2,
            // No body is at hand.
            Ok(FollowStep::More | FollowStep::Body(_)) | Err(Violation::Body(_)) => Next::More,
        }
    }

    /// The reader of the latest head.
    pub(super) fn reader(&self) -> &RequestReader {
        self.follow.reader()
    }

    /// A part of a head has come, and not the whole of it. An empty line before one is none.
    pub(super) fn is_in_head(&self) -> bool {
        self.follow.is_in_head(&self.buf)
    }

    /// Whether what has come, and is not taken, begins like that.
    pub(super) fn begins(&self, start: &[u8]) -> bool {
        let line = self.buf.strip_prefix(b"\r\n").unwrap_or(&self.buf);
        line.starts_with(start)
    }

    /// Takes a head that is whole.
    pub(super) fn take_head(&mut self, head: RequestHead) -> Bytes {
        self.buf.split_to(head.length).freeze()
    }

    /// Begins with the body behind the head that was taken.
    pub(super) fn begin_body(&mut self, head: RequestHead) -> Received {
        let length = match head.framing {
            Framing::None | Framing::Length(0) => return Received::Whole(Bytes::new()),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
        self.expects = self.follow.reader().expects();
        if !self.expects
            && length.is_some_and(|length| self.buf.len() as u64 >= length)
            && let Ok(FollowStep::Body(ChunkedPart::Data(count))) = self.follow.step(&self.buf)
        {
            return Received::Whole(self.buf.split_to(count).freeze());
        }
        let (feed, body) = streamed(length);
        self.feed = Some(feed);
        if !self.expects {
            // Nobody waits for it yet.
            self.decode(&Context::from_waker(Waker::noop()));
        }
        body
    }

    /// Whether the request has come to the end of its body, read or not.
    pub(super) fn is_whole(&self) -> bool {
        !self.follow.is_in_body() && !self.closed
    }

    /// Nobody wants the rest of the body, of which more is to come.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.closed && self.feed.as_ref().is_some_and(Feed::is_dropped)
    }

    /// Nothing more is read: not even the body of a head that was taken, where it is refused after all.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Nothing more is read.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Something has come that was not taken, or may be on its way.
    pub(super) fn is_unread(&self) -> bool {
        !self.eof && (!self.is_whole() || !self.buf.is_empty())
    }

    /// `100 Continue` is to be sent now: the body is wanted for the first time.
    pub(super) fn takes_expectation(&mut self) -> bool {
        std::mem::take(&mut self.expects)
    }

    /// Reads what is wanted of the body, and behind that looks whether the client has left.
    /// `Pending`: nothing is wanted, or nothing has come. `go_on` tells the client to send its body.
    pub(super) fn poll_feed<S: AsyncRead + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
        mut go_on: impl FnMut(),
    ) -> Poll<Fed> {
        loop {
            if self.closed {
                return Poll::Pending;
            }
            let Some(feed) = &self.feed else {
                // What comes behind a request waits until that is answered.
                if !self.buf.is_empty() || self.eof {
                    return Poll::Pending;
                }
                if !matches!(ready!(self.poll_read(io, cx)), Ok(true)) {
                    return Poll::Ready(Fed::Gone);
                }
                continue;
            };
            match feed.wish(cx) {
                // One that nobody wants is looked at again when the request is answered.
                Wish::Nothing | Wish::Dropped => return Poll::Pending,
                Wish::More => {}
            }
            if self.takes_expectation() {
                go_on();
            }
            if self.decode(cx) {
                return Poll::Ready(Fed::Progress);
            }
            if !matches!(ready!(self.poll_read(io, cx)), Ok(true)) {
                self.break_off(CutShort.into(), cx);
                return Poll::Ready(Fed::Progress);
            }
        }
    }

    /// Takes the rest of a body that nobody wants, as far as it is here. If that is not all, nothing
    /// more is read.
    pub(super) fn drain<S: AsyncRead + Unpin>(&mut self, io: &mut S, cx: &mut Context<'_>) {
        self.feed = None;
        for _ in 0..DRAINS {
            while self.follow.is_in_body() {
                match self.follow.step(&self.buf) {
                    Ok(FollowStep::Body(part)) => self.buf.advance(part.length()),
                    Ok(_) => break,
                    Err(violation) => {
                        self.closed = true;
                        return self.note(violation);
                    }
                }
            }
            if !self.follow.is_in_body() {
                self.trailer.clear();
                return;
            }
            if !matches!(self.poll_read(io, cx), Poll::Ready(Ok(true))) {
                break;
            }
        }
        self.closed = true;
    }

    fn note(&self, violation: Violation) {
        if let Violation::Body(error) = violation {
            tracing::debug!(%error, "the body of a request is malformed");
            match error {
                BodyError::Trailer(HeadError::Bytes(_)) => self.metrics.limit(Limit::HeaderBytes),
                BodyError::Trailer(HeadError::Fields(_)) => self.metrics.limit(Limit::HeaderCount),
                _ => {}
            }
        }
    }

    fn break_off(&mut self, error: BoxError, cx: &Context<'_>) {
        self.closed = true;
        if let Some(feed) = self.feed.take() {
            feed.fail(error, cx);
        }
    }

    /// Hands over what has come of the body; `false`: nothing.
    fn decode(&mut self, cx: &Context<'_>) -> bool {
        let mut data = None;
        while self.follow.is_in_body() && !(data.is_some() && self.follow.is_in_data()) {
            match self.follow.step(&self.buf) {
                Ok(FollowStep::Body(ChunkedPart::Data(count))) => {
                    data = Some(self.buf.split_to(count).freeze());
                }
                Ok(FollowStep::Body(ChunkedPart::Framing(count))) => self.buf.advance(count),
                Ok(FollowStep::Body(ChunkedPart::Trailer(count))) => {
                    self.trailer.extend_from_slice(&self.buf[..count]);
                    self.buf.advance(count);
                }
                Ok(_) => break,
                Err(violation) => {
                    self.note(violation);
                    // What came before goes first.
                    if let (Some(feed), Some(data)) = (&self.feed, data) {
                        feed.give(Some(data), None, false, cx);
                    }
                    if let Violation::Body(error) = violation {
                        self.break_off(error.into(), cx);
                    }
                    return true;
                }
            }
        }
        let ended = !self.follow.is_in_body();
        if data.is_none() && !ended {
            return false;
        }
        let trailers = if ended && self.trailer.len() > EMPTY.len() {
            read_trailers(&self.trailer)
        } else {
            None
        };
        if let Some(feed) = &self.feed {
            feed.give(data, trailers, ended, cx);
        }
        if ended {
            self.feed = None;
            self.trailer = Vec::new();
        }
        true
    }

    /// The answer is over: what follows is the next request.
    pub(super) fn resume(&mut self) {
        self.follow.resume();
        if self.buf.is_empty() && self.buf.capacity() > BODY_PIECE / 2 {
            self.buf = BytesMut::new();
        }
    }

    /// Reads what nobody wants; `false` at the end.
    pub(super) fn poll_discard<S: AsyncRead + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        self.buf.clear();
        let read = ready!(self.poll_read(io, cx));
        Poll::Ready(matches!(read, Ok(true)))
    }

    /// What was read and not taken, when the connection is handed on.
    pub(super) fn take_rest(&mut self) -> BytesMut {
        std::mem::take(&mut self.buf)
    }
}

/// A trailer section without a field.
const EMPTY: &[u8] = b"\r\n";

/// The fields of a trailer section that has passed.
fn read_trailers(section: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for field in fields(section) {
        let field = field.ok()?;
        let name = HeaderName::from_bytes(field.name).ok()?;
        let value = HeaderValue::from_bytes(field.value).ok()?;
        trailers.try_append(name, value).ok()?;
    }
    (!trailers.is_empty()).then_some(trailers)
}
