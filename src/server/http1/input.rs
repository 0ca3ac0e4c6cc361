//! The client's bytes: heads, and the bodies that the handler asks for.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, Version};
use tokio::io::AsyncReadExt as _;

use super::output::Output;
use crate::body::{BoxError, Feed, Received, Wish, streamed};
use crate::http1::chunked::BodyError;
use crate::http1::client_framing::{ClientFraming, ClientPart, Violation};
use crate::http1::content::ContentPart;
use crate::http1::head::{Framing, HeadError, HeadLimits};
use crate::http1::request::{RequestError, RequestReader, WholeHead};
use crate::http1::{Fields, RequestHead, Target, take_data};
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

/// The end of the wait for a head.
pub(super) enum HeadOutcome {
    Request(WholeHead),
    Refused(RequestError),
    /// The client speaks HTTP/2.
    Http2,
    /// No more requests come.
    End,
    /// The socket is broken.
    Broken,
}

/// What is read next.
enum Reading {
    /// A head: the request before it is whole.
    Head,
    /// More of the current body.
    Body(Feed),
    /// Nothing: a head was refused, or a body was malformed, broke off, or is not wanted.
    Nothing,
}

/// The reading side of a connection.
pub(super) struct Input {
    framing: ClientFraming,
    /// Read, and not taken.
    buf: BytesMut,
    reading: Reading,
    /// The client waits for `100 Continue`, which goes when its body is wanted.
    expects: bool,
    metrics: Arc<Metrics>,
}

impl Input {
    pub(super) fn new(limits: HeadLimits, metrics: Arc<Metrics>) -> Self {
        Self {
            framing: ClientFraming::new(limits),
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
            let body = self.framing.is_in_body();
            self.buf.reserve(if body { BODY_CHUNK } else { HEAD_CHUNK });
        }
        let count = ready!(pin!(io.read_buf(&mut self.buf)).poll(cx))?;
        Poll::Ready(Ok(count > 0))
    }

    /// Looks for a whole head in what has come.
    pub(super) fn next(&mut self) -> Option<HeadOutcome> {
        match self.framing.next(&self.buf) {
            Ok(ClientPart::Head(head)) => Some(HeadOutcome::Request(head)),
            Err(Violation::Head(error)) => Some(HeadOutcome::Refused(error)),
            Ok(ClientPart::Http2(_)) => Some(HeadOutcome::Http2),
            // There is no body between two requests.
            Ok(ClientPart::None | ClientPart::Body(_)) | Err(Violation::Body(_)) => None,
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

    /// True if a request to HEAD comes next, be it malformed.
    pub(super) fn asks_for_head(&self) -> bool {
        let line = self.buf.strip_prefix(b"\r\n").unwrap_or(&self.buf);
        line.starts_with(b"HEAD ")
    }

    /// Takes a complete head. Nothing is parsed twice: its parts are where the reader has found
    /// them.
    pub(super) fn take_head(&mut self, head: WholeHead) -> Result<RequestHead, RequestError> {
        let bytes = self.buf.split_to(head.length).freeze();
        request_head(self.reader(), bytes)
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
        self.reading = Reading::Body(feed);
        if !self.expects {
            // No reader waits for it yet.
            self.decode(&Context::from_waker(Waker::noop()));
        }
        body
    }

    /// True if the whole request has come.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.reading, Reading::Head)
    }

    /// Reads nothing more, not even the body of a head that is refused after it was taken.
    pub(super) fn close(&mut self) {
        self.reading = Reading::Nothing;
    }

    /// True if the client has sent, or may still send, bytes that are not read.
    pub(super) fn is_unread(&self) -> bool {
        !self.is_whole() || !self.buf.is_empty()
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
                        output.go_on();
                    }
                    if self.decode(cx) {
                        return Poll::Ready(true);
                    }
                    if !matches!(ready!(self.poll_read(io, cx)), Ok(true)) {
                        self.break_off(CutShort.into(), cx);
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
            if !self.framing.is_in_body() {
                self.reading = Reading::Head;
                return;
            }
            // Nothing waits for what is still to come.
            let read = self.poll_read(io, &mut Context::from_waker(Waker::noop()));
            if !matches!(read, Poll::Ready(Ok(true))) {
                return;
            }
        }
    }

    /// Takes the next data of the body that has come.
    fn take(&mut self) -> Result<Option<Bytes>, BodyError> {
        let framing = &mut self.framing;
        let (data, taken) = take_data(&mut self.buf, None, |bytes, has_data| {
            if !framing.is_in_body() || has_data && framing.is_in_data() {
                return Ok(None);
            }
            match framing.next(bytes) {
                Ok(ClientPart::Body(part)) => Ok(Some(part)),
                Err(Violation::Body(error)) => Err(error),
                _ => Ok(None),
            }
        });
        taken.map(|()| data).inspect_err(|error| {
            tracing::debug!(%error, "the body of a request is malformed");
            match error {
                BodyError::Trailer(HeadError::Bytes(_)) => self.metrics.limit(Limit::HeaderBytes),
                BodyError::Trailer(HeadError::Fields(_)) => self.metrics.limit(Limit::HeaderCount),
                _ => {}
            }
        })
    }

    /// Hands over the part of the body that has come. `false`: none has.
    fn decode(&mut self, cx: &Context<'_>) -> bool {
        let taken = self.take();
        let ended = !self.framing.is_in_body();
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
        self.framing.resume();
        if self.buf.is_empty() && self.buf.capacity() > BODY_CHUNK / 2 {
            self.buf = BytesMut::new();
        }
    }

    /// Reads and discards up to the end of the stream.
    pub(super) async fn discard(&mut self, io: &mut ClientIo) {
        loop {
            self.buf.clear();
            let read = std::future::poll_fn(|cx| self.poll_read(io, cx)).await;
            if !matches!(read, Ok(true)) {
                return;
            }
        }
    }

    /// The unread bytes of a connection that is handed on.
    pub(super) fn take_rest(&mut self) -> BytesMut {
        std::mem::take(&mut self.buf)
    }
}

/// The request with this `head`, which the reader has read.
fn request_head(reader: &RequestReader, head: Bytes) -> Result<RequestHead, RequestError> {
    let start = reader.start().ok_or(RequestError::StartLine)?;
    let method =
        Method::from_bytes(&head[start.method.clone()]).map_err(|_| RequestError::StartLine)?;
    let mut target = start.target.clone();
    let authority = start.authority.clone();
    if let Some(authority) = &authority {
        target.start = authority.end;
    }
    let authority = authority.map(|range| head.slice(range));
    let version = if start.http_11 {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    let target = Target::new(head.slice(target), authority);
    let fields = Fields::of(head, reader.fields());
    Ok(RequestHead::new(method, target, version, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1000,
        fields: 10,
        target: 100,
    };

    fn read(head: &'static [u8]) -> RequestHead {
        let mut reader = RequestReader::default();
        let whole = reader.read(head, &LIMITS).expect("it passes");
        assert_eq!(whole.expect("it is whole").length, head.len());
        request_head(&reader, Bytes::from_static(head)).expect("a request")
    }

    #[test]
    fn a_request_is_what_was_sent() {
        let head = read(
            b"\r\nPUT /a//b?x=%2f&y HTTP/1.1\r\nhost:app.test:80\r\nX-A: \t 1 2 \t\r\nx-a:\r\nSOAPAction: \xe9\r\n\r\n",
        );
        assert_eq!(head.method, Method::PUT);
        assert_eq!(head.target.as_str(), "/a//b?x=%2f&y");
        assert_eq!(head.version, Version::HTTP_11);
        let lines: Vec<_> = head.fields.iter().collect();
        let expected: [(&[u8], &[u8]); 4] = [
            (b"host", b"app.test:80"),
            (b"X-A", b"1 2"),
            (b"x-a", b""),
            (b"SOAPAction", b"\xe9"),
        ];
        assert_eq!(lines, expected);
        let mut out = Vec::new();
        head.fields.write_to(&mut out);
        assert_eq!(
            out,
            b"host: app.test:80\r\nX-A: 1 2\r\nx-a: \r\nSOAPAction: \xe9\r\n"
        );
    }

    #[test]
    fn a_target_may_have_an_authority() {
        let head = read(b"OPTIONS * HTTP/1.0\r\nHost: a\r\nUser-Agent: b\r\n\r\n");
        assert_eq!(head.target.as_str(), "*");
        assert_eq!(head.version, Version::HTTP_10);
        let head = read(b"GET http://a:1/x?y HTTP/1.1\r\nHost: a:1\r\n\r\n");
        assert_eq!(head.target.as_str(), "/x?y");
        assert_eq!(head.target.authority(), Some(&b"a:1"[..]));
        let head = read(b"GET http://a?y HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(head.target.as_str(), "/?y");
    }
}
