//! The client's bytes: heads, and the bodies that the handler asks for.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;

use crate::body::{BoxError, Feed, Received, Wish, streamed};
use crate::http1::chunked::BodyError;
use crate::http1::client_framing::{ClientFraming, ClientPart, Violation};
use crate::http1::content::ContentPart;
use crate::http1::head::{Framing, HeadError, HeadLimits};
use crate::http1::request::{RequestError, RequestReader, WholeHead};
use crate::http1::take_data;
use crate::metrics::{Limit, Metrics};
use crate::server::tls::ClientIo;

/// The bytes of a head that are read at once.
const HEAD_CHUNK: usize = 4 << 10;
/// The bytes of a longer body that are read at once.
const BODY_CHUNK: usize = 32 << 10;
/// With less room the buffer grows before a read.
const MIN_ROOM: usize = 1 << 10;
/// The reads that an unwanted body may take so that its connection can be kept.
const MAX_DRAIN_READS: usize = 2;

/// The reason why a body broke off.
#[derive(Debug, thiserror::Error)]
#[error("the client closed its connection in the middle")]
struct CutShort;

/// The result of polling a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// The body's reader has something to look at.
    Progress,
    /// The client has left, and no reader waits for that.
    Gone,
}

/// The result of looking for a head.
pub(super) enum Next {
    Head(WholeHead),
    Refused(RequestError),
    /// The client speaks HTTP/2.
    Http2,
    More,
}

/// The reading side of a connection.
pub(super) struct Input {
    framing: ClientFraming,
    /// Read, and not taken.
    buf: BytesMut,
    /// The client has sent its last byte.
    eof: bool,
    /// The current body, while more of it is to come.
    feed: Option<Feed>,
    /// The client waits for `100 Continue`.
    expects: bool,
    /// Nothing more is read: a body was malformed, or is not wanted.
    closed: bool,
    metrics: Arc<Metrics>,
}

impl Input {
    pub(super) fn new(limits: HeadLimits, metrics: Arc<Metrics>) -> Self {
        Self {
            framing: ClientFraming::new(limits),
            buf: BytesMut::new(),
            eof: false,
            feed: None,
            expects: false,
            closed: false,
            metrics,
        }
    }

    /// Reads more; `false` at the end of the stream.
    pub(super) fn poll_read(
        &mut self,
        io: &mut ClientIo,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        if self.buf.capacity() - self.buf.len() < MIN_ROOM {
            let body = self.framing.is_in_body();
            self.buf.reserve(if body { BODY_CHUNK } else { HEAD_CHUNK });
        }
        let count = ready!(pin!(io.read_buf(&mut self.buf)).poll(cx))?;
        self.eof = count == 0;
        Poll::Ready(Ok(!self.eof))
    }

    /// Looks for a whole head in what has come.
    pub(super) fn next(&mut self) -> Next {
        match self.framing.next(&self.buf) {
            Ok(ClientPart::Head(head)) => Next::Head(head),
            Err(Violation::Head(error)) => Next::Refused(error),
            Ok(ClientPart::Http2(_)) => Next::Http2,
            // There is no body between two requests.
            Ok(ClientPart::None | ClientPart::Body(_)) | Err(Violation::Body(_)) => Next::More,
        }
    }

    /// The reader of the latest head.
    pub(super) fn reader(&self) -> &RequestReader {
        self.framing.reader()
    }

    /// True if only a part of a head has come. An empty line before a head does not count.
    pub(super) fn is_in_head(&self) -> bool {
        self.framing.is_in_head(&self.buf)
    }

    /// True if the unread bytes begin with `start`.
    pub(super) fn begins(&self, start: &[u8]) -> bool {
        let line = self.buf.strip_prefix(b"\r\n").unwrap_or(&self.buf);
        line.starts_with(start)
    }

    /// Takes a complete head.
    pub(super) fn take_head(&mut self, head: WholeHead) -> Bytes {
        self.buf.split_to(head.length).freeze()
    }

    /// Begins with the body behind the head that was taken.
    pub(super) fn begin_body(&mut self, head: WholeHead) -> Received {
        let length = match head.framing {
            Framing::None | Framing::Length(0) => return Received::Whole(Bytes::new()),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
        self.expects = self.framing.reader().expects();
        if !self.expects
            && length.is_some_and(|length| self.buf.len() as u64 >= length)
            && let Ok(ClientPart::Body(ContentPart::Data(count))) = self.framing.next(&self.buf)
        {
            return Received::Whole(self.buf.split_to(count).freeze());
        }
        let (feed, body) = streamed(length);
        self.feed = Some(feed);
        if !self.expects {
            // No reader waits for it yet.
            self.decode(&Context::from_waker(Waker::noop()));
        }
        body
    }

    /// True if the whole request has come.
    pub(super) fn is_whole(&self) -> bool {
        !self.framing.is_in_body() && !self.closed
    }

    /// True if more of the body is to come, and its reader has gone.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.closed && self.feed.as_ref().is_some_and(Feed::is_dropped)
    }

    /// Reads nothing more, not even the body of a head that is refused after it was taken.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// True if nothing more is read.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// True if the client has sent, or may still send, bytes that are not read.
    pub(super) fn is_unread(&self) -> bool {
        !self.eof && (!self.is_whole() || !self.buf.is_empty())
    }

    /// True if `100 Continue` must be sent before the body. Only the first call returns `true`.
    pub(super) fn takes_expectation(&mut self) -> bool {
        std::mem::take(&mut self.expects)
    }

    /// Reads the wanted part of the body. Behind the body it notices when the client leaves.
    /// `Pending`: nothing is wanted, or nothing has come. `go_on` sends `100 Continue`.
    pub(super) fn poll_feed(
        &mut self,
        io: &mut ClientIo,
        cx: &mut Context<'_>,
        mut go_on: impl FnMut(),
    ) -> Poll<Fed> {
        loop {
            if self.closed {
                return Poll::Pending;
            }
            let Some(feed) = &self.feed else {
                // The next request waits until this one is answered.
                if !self.buf.is_empty() || self.eof {
                    return Poll::Pending;
                }
                if !matches!(ready!(self.poll_read(io, cx)), Ok(true)) {
                    return Poll::Ready(Fed::Gone);
                }
                continue;
            };
            match feed.wish(cx) {
                // An unwanted body is looked at again when the request is answered.
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

    /// Discards the rest of an unwanted body as far as it has come. If that is not all, nothing
    /// more is read.
    pub(super) fn drain(&mut self, io: &mut ClientIo, cx: &mut Context<'_>) {
        self.feed = None;
        for _ in 0..MAX_DRAIN_READS {
            while self.framing.is_in_body() {
                match self.framing.next(&self.buf) {
                    Ok(ClientPart::Body(part)) => self.buf.advance(part.length()),
                    Ok(_) => break,
                    Err(violation) => {
                        self.closed = true;
                        return self.note(violation);
                    }
                }
            }
            if !self.framing.is_in_body() {
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

    /// Hands over the part of the body that has come. `false`: none has.
    fn decode(&mut self, cx: &Context<'_>) -> bool {
        let framing = &mut self.framing;
        let (data, taken) = take_data(&mut self.buf, None, |bytes, has_data| {
            if !framing.is_in_body() || has_data && framing.is_in_data() {
                return Ok(None);
            }
            Ok(match framing.next(bytes)? {
                ClientPart::Body(part) => Some(part),
                _ => None,
            })
        });
        if let Err(violation) = taken {
            self.note(violation);
            // The data before the violation goes first.
            if let (Some(feed), Some(data)) = (&self.feed, data) {
                feed.give(Some(data), false, cx);
            }
            if let Violation::Body(error) = violation {
                self.break_off(error.into(), cx);
            }
            return true;
        }
        let ended = !self.framing.is_in_body();
        if data.is_none() && !ended {
            return false;
        }
        if let Some(feed) = &self.feed {
            feed.give(data, ended, cx);
        }
        if ended {
            self.feed = None;
        }
        true
    }

    /// The answer is over, and the next request follows.
    pub(super) fn resume(&mut self) {
        self.framing.resume();
        if self.buf.is_empty() && self.buf.capacity() > BODY_CHUNK / 2 {
            self.buf = BytesMut::new();
        }
    }

    /// Reads and discards. `false` at the end of the stream.
    pub(super) fn poll_discard(&mut self, io: &mut ClientIo, cx: &mut Context<'_>) -> Poll<bool> {
        self.buf.clear();
        let read = ready!(self.poll_read(io, cx));
        Poll::Ready(matches!(read, Ok(true)))
    }

    /// The unread bytes of a connection that is handed on.
    pub(super) fn take_rest(&mut self) -> BytesMut {
        std::mem::take(&mut self.buf)
    }
}
