//! The client's bytes: heads, and the bodies that the handler asks for.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;

use super::output::Output;
use crate::body::{BoxError, Feed, Received, Wish, streamed};
use crate::http1::MessageError;
use crate::http1::content::{ContentReader, Framing};
use crate::http1::head::HeadLimits;
use crate::http1::request::{NextHead, RequestReader};
use crate::metrics::Metrics;
use crate::proxy::count_limit;
use crate::server::connection_state::ClientIo;

/// The bytes of a head that are read at once.
const HEAD_CHUNK: usize = 4 << 10;
/// The bytes of a longer body that are read at once.
const BODY_CHUNK: usize = 32 << 10;
/// With less room the buffer grows before a read.
const MIN_ROOM: usize = 1 << 10;
/// The reads that an unwanted body may take so that its connection can be kept.
const MAX_DRAIN_READS: usize = 2;

/// The reason why a body broke off.
const CUT_SHORT: &str = "the client closed its connection in the middle";

/// What is read next.
pub(super) enum Reading {
    /// A head: the request before it is whole.
    Head,
    /// More of the current body.
    Body(Feed),
    /// Nothing: a head was refused, or a body was malformed, broke off, or is not wanted.
    Nothing,
}

/// The reading side of a connection.
pub(super) struct Input {
    limits: HeadLimits,
    heads: RequestReader,
    /// The content of the current request. Between two requests it has ended.
    content: ContentReader,
    /// Read, and not taken.
    pub buf: BytesMut,
    pub reading: Reading,
    /// The client waits for `100 Continue`, which goes when its body is wanted.
    expects: bool,
    metrics: Arc<Metrics>,
}

impl Input {
    pub(super) fn new(limits: HeadLimits, metrics: Arc<Metrics>) -> Self {
        Self {
            limits,
            heads: RequestReader::default(),
            content: ContentReader::NONE,
            buf: BytesMut::new(),
            reading: Reading::Head,
            expects: false,
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
            let head = self.content.is_end();
            self.buf.reserve(if head { HEAD_CHUNK } else { BODY_CHUNK });
        }
        let count = ready!(pin!(io.read_buf(&mut self.buf)).poll(cx))?;
        Poll::Ready(Ok(count > 0))
    }

    /// Looks for a whole head in what has come.
    pub(super) fn next(&mut self) -> Result<NextHead, MessageError> {
        self.heads.read(&mut self.buf, &self.limits)
    }

    /// True if only a part of a head has come. An empty line before a head does not count.
    pub(super) fn is_in_head(&self) -> bool {
        !matches!(self.buf[..], [] | [b'\r'] | [b'\r', b'\n'])
    }

    /// Begins with the body behind the head that was taken.
    pub(super) fn begin_body(&mut self, framing: Framing, expects: bool) -> Received {
        let length = match framing {
            Framing::None | Framing::Length(0) => return Received::Whole(Bytes::new()),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
        self.content = ContentReader::of_request(framing);
        self.expects = expects;
        if !expects
            && length.is_some_and(|length| self.buf.len() as u64 >= length)
            && let Ok(Some(data)) = self.content.take(&mut self.buf, &self.limits)
        {
            return Received::Whole(data);
        }
        let (feed, body) = streamed(length);
        self.reading = Reading::Body(feed);
        if !expects {
            // No reader waits for it yet.
            self.decode(&Context::from_waker(Waker::noop()));
        }
        body
    }

    /// True if the whole request has come.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.reading, Reading::Head)
    }

    /// Reads the wanted part of the body. Behind the body it notices when the client leaves.
    /// `true`: the body's reader has something to look at. `false`: the client has left, and no
    /// reader waits for that. `Pending`: nothing is wanted, or nothing has come.
    pub(super) fn poll_feed(
        &mut self,
        io: &mut ClientIo,
        output: &mut Output,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        loop {
            match &self.reading {
                Reading::Nothing => return Poll::Pending,
                Reading::Head => {
                    // The next request waits until this one is answered.
                    if !self.buf.is_empty() {
                        return Poll::Pending;
                    }
                    if !matches!(ready!(self.poll_read(io, cx)), Ok(true)) {
                        return Poll::Ready(false);
                    }
                }
                Reading::Body(feed) => {
                    // An unwanted body is looked at again when the request is answered.
                    if feed.wish(cx) != Wish::More {
                        return Poll::Pending;
                    }
                    if std::mem::take(&mut self.expects) {
                        // RFC 9110, 15.2.1.
                        let end = output.queue.end();
                        end.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                    }
                    if self.decode(cx) {
                        return Poll::Ready(true);
                    }
                    if !matches!(ready!(self.poll_read(io, cx)), Ok(true)) {
                        self.break_off(CUT_SHORT.into(), cx);
                        return Poll::Ready(true);
                    }
                }
            }
        }
    }

    /// The answer begins: no `100 Continue` is sent any more. If nobody reads the rest of the body,
    /// it is discarded as far as it has come. If that is not all, nothing more is read.
    pub(super) fn begin_answer(&mut self, io: &mut ClientIo) {
        self.expects = false;
        if !matches!(&self.reading, Reading::Body(feed) if feed.is_dropped()) {
            return;
        }
        self.reading = Reading::Nothing;
        for _ in 0..MAX_DRAIN_READS {
            while let Some(taken) = self.take().transpose() {
                if taken.is_err() {
                    return;
                }
            }
            if self.content.is_end() {
                self.reading = Reading::Head;
                return;
            }
            // Nothing waits for what is still to come.
            let mut cx = Context::from_waker(Waker::noop());
            if !matches!(self.poll_read(io, &mut cx), Poll::Ready(Ok(true))) {
                return;
            }
        }
    }

    /// Takes the next data of the body that has come.
    fn take(&mut self) -> Result<Option<Bytes>, MessageError> {
        let taken = self.content.take(&mut self.buf, &self.limits);
        taken.inspect_err(|error| {
            tracing::debug!(%error, "the body of a request is malformed");
            count_limit(&self.metrics, *error);
        })
    }

    /// Hands over the part of the body that has come. `false`: none has.
    fn decode(&mut self, cx: &Context<'_>) -> bool {
        let taken = self.take();
        let ended = self.content.is_end();
        match taken {
            Err(error) => self.break_off(error.into(), cx),
            Ok(None) if !ended => return false,
            Ok(data) => {
                if let Reading::Body(feed) = &self.reading {
                    feed.give(data, ended, cx);
                }
                if ended {
                    self.reading = Reading::Head;
                }
            }
        }
        true
    }

    fn break_off(&mut self, error: BoxError, cx: &Context<'_>) {
        if let Reading::Body(feed) = std::mem::replace(&mut self.reading, Reading::Nothing) {
            feed.fail(error, cx);
        }
    }

    /// The answer is over, and the next request follows.
    pub(super) fn resume(&mut self) {
        if self.buf.is_empty() && self.buf.capacity() > BODY_CHUNK / 2 {
            self.buf = BytesMut::new();
        }
    }
}
