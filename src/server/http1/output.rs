//! The bytes for the client: heads and small pieces in one buffer, and behind them one longer piece
//! that is not copied.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use http::response::Parts;
use http_body::Frame;
use tokio::io::AsyncWrite;

use super::answer::{self, AnsweredRequest, FramedAnswer, Last, WrittenContent};

/// Longer data is not copied.
const SMALL: usize = 4 << 10;
/// So much is written at once, at least, if it is here.
const FULL: usize = 16 << 10;
/// What an idle connection may keep of its buffer.
const KEPT: usize = 2 << 10;

/// The content of an answer has ended before its length.
#[derive(Debug, thiserror::Error)]
#[error("the content of an answer has ended before its length")]
pub(super) struct TooShort;

/// The writing side of a connection.
pub(super) struct Output {
    buf: Vec<u8>,
    /// So much of it has been written.
    written: usize,
    /// Behind `buf`.
    data: Bytes,
    /// Behind `data`.
    tail: &'static [u8],
    framed: FramedAnswer,
    /// Something was written and may not have left this process.
    unflushed: bool,
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            buf: Vec::new(),
            written: 0,
            data: Bytes::new(),
            tail: &[],
            framed: FramedAnswer::Length(0),
            unflushed: false,
        }
    }

    /// Tells the client to send its body (RFC 9110, 15.2.1).
    pub(super) fn go_on(&mut self) {
        self.buf.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// Begins an answer.
    pub(super) fn head(
        &mut self,
        parts: &Parts,
        asked: AnsweredRequest,
        content: WrittenContent,
        last: Last,
    ) {
        self.framed = answer::write(parts, asked, content, last, &mut self.buf);
    }

    /// The content of the answer at hand only ends with the connection.
    pub(super) fn is_to_end(&self) -> bool {
        self.framed == FramedAnswer::ToEnd
    }

    /// The answer at hand takes no more content.
    pub(super) fn is_full(&self) -> bool {
        self.framed == FramedAnswer::Length(0)
    }

    /// Whether more can be taken before something has been written.
    pub(super) fn has_room(&self) -> bool {
        self.data.is_empty() && self.tail.is_empty() && self.buf.len() - self.written < FULL
    }

    /// Takes a frame of the content; `true`: it is the last one.
    pub(super) fn frame(&mut self, frame: Frame<Bytes>) -> Result<bool, TooShort> {
        match frame.into_data() {
            Ok(data) => {
                self.data(data);
                Ok(false)
            }
            Err(frame) => {
                self.end(frame.trailers_ref())?;
                Ok(true)
            }
        }
    }

    fn data(&mut self, mut data: Bytes) {
        let chunked = match &mut self.framed {
            FramedAnswer::Length(left) => {
                // No more than was promised.
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                false
            }
            FramedAnswer::Chunked(_) => true,
            FramedAnswer::ToEnd => false,
        };
        if data.is_empty() {
            return;
        }
        if chunked {
            self.size(data.len());
        }
        if data.len() <= SMALL {
            self.buf.extend_from_slice(&data);
            if chunked {
                self.buf.extend_from_slice(b"\r\n");
            }
        } else {
            self.data = data;
            if chunked {
                self.tail = b"\r\n";
            }
        }
    }

    fn size(&mut self, size: usize) {
        let digits = (usize::BITS - size.leading_zeros()).div_ceil(4);
        for digit in (0..digits).rev() {
            let digit = (size >> (digit * 4)) & 0xf;
            self.buf.push(b"0123456789abcdef"[digit]);
        }
        self.buf.extend_from_slice(b"\r\n");
    }

    /// The content is whole.
    pub(super) fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), TooShort> {
        match std::mem::replace(&mut self.framed, FramedAnswer::Length(0)) {
            FramedAnswer::Length(0) | FramedAnswer::ToEnd => Ok(()),
            FramedAnswer::Length(_) => Err(TooShort),
            FramedAnswer::Chunked(announced) => {
                if self.data.is_empty() {
                    answer::write_trailers(&announced, trailers, &mut self.buf);
                } else if announced.is_empty() || trailers.is_none() {
                    self.tail = b"\r\n0\r\n\r\n";
                } else {
                    // Seldom: the piece before is copied after all.
                    let data = std::mem::take(&mut self.data);
                    self.tail = &[];
                    self.buf.extend_from_slice(&data);
                    self.buf.extend_from_slice(b"\r\n");
                    answer::write_trailers(&announced, trailers, &mut self.buf);
                }
                Ok(())
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buf.len() == self.written && self.data.is_empty() && self.tail.is_empty()
    }

    /// Writes all that there is, and has it leave.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let head = &self.buf[self.written..];
            let count = if self.data.is_empty() && self.tail.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(cx, head))?
            } else {
                let parts = [
                    IoSlice::new(head),
                    IoSlice::new(&self.data),
                    IoSlice::new(self.tail),
                ];
                let parts = if head.is_empty() {
                    &parts[1..]
                } else {
                    &parts[..]
                };
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, parts))?
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            self.advance(count);
        }
        if self.unflushed {
            ready!(Pin::new(&mut *io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut count: usize) {
        let head = count.min(self.buf.len() - self.written);
        self.written += head;
        count -= head;
        if self.written == self.buf.len() {
            self.buf.clear();
            self.written = 0;
        }
        let data = count.min(self.data.len());
        self.data.advance(data);
        count -= data;
        if self.data.is_empty() {
            // Nothing behind it holds on to what it was read into.
            self.data = Bytes::new();
        }
        self.tail = &self.tail[count..];
    }

    /// The answer is over.
    pub(super) fn rest(&mut self) {
        if self.buf.capacity() > KEPT {
            self.buf = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;
    use http::{Response, StatusCode};

    use super::*;

    fn asked(http_11: bool, trailers: bool) -> AnsweredRequest {
        AnsweredRequest {
            head: false,
            http_11,
            trailers,
        }
    }

    fn head(status: StatusCode, lines: &[(&'static str, &'static str)]) -> Parts {
        let mut response = Response::builder().status(status).header("date", "now");
        for (name, value) in lines {
            response = response.header(*name, *value);
        }
        response.body(()).expect("a response").into_parts().0
    }

    /// What is written of an answer with this content.
    async fn written(
        parts: &Parts,
        (asked, content): (AnsweredRequest, WrittenContent),
        pieces: &[usize],
        trailers: Option<HeaderMap>,
    ) -> Result<Vec<u8>, TooShort> {
        let mut output = Output::new();
        output.head(parts, asked, content, Last::No);
        let mut io = Vec::new();
        for length in pieces {
            output.data(vec![b'x'; *length].into());
            let flushed = std::future::poll_fn(|cx| output.poll_write(&mut io, cx)).await;
            flushed.expect("a vector takes all");
        }
        output.end(trailers.as_ref())?;
        let flushed = std::future::poll_fn(|cx| output.poll_write(&mut io, cx)).await;
        flushed.expect("a vector takes all");
        assert!(output.is_empty() && output.has_room());
        Ok(io)
    }

    #[tokio::test]
    async fn content_of_unknown_length_goes_in_chunks() {
        let parts = head(StatusCode::OK, &[("trailer", "x-a, x-b"), ("x-c", "1")]);
        let mut trailers = HeaderMap::new();
        for name in ["x-a", "x-secret", "content-length"] {
            trailers.append(HeaderName::from_static(name), "1".parse().expect("a value"));
        }
        let how = (asked(true, true), WrittenContent::Unknown);
        let all = written(&parts, how, &[1, 0, 18, SMALL + 1], Some(trailers)).await;
        let expected = format!(
            "HTTP/1.1 200 OK\r\nDate: now\r\nTrailer: x-a, x-b\r\nX-C: 1\r\n\
             Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n12\r\n{}\r\n1001\r\n{}\r\n\
             0\r\nX-A: 1\r\n\r\n",
            "x".repeat(18),
            "x".repeat(SMALL + 1)
        );
        assert_eq!(all.expect("whole"), expected.as_bytes());
        // HTTP/1.0 has no chunks: the connection ends it.
        let how = (asked(false, true), WrittenContent::Unknown);
        let all = written(&parts, how, &[2], None).await.expect("whole");
        assert_eq!(all, b"HTTP/1.0 200 OK\r\nDate: now\r\nX-C: 1\r\n\r\nxx");
    }

    #[tokio::test]
    async fn content_is_as_long_as_was_said() {
        let parts = head(StatusCode::OK, &[("content-length", "3")]);
        let how = (asked(true, false), WrittenContent::Unknown);
        let all = written(&parts, how, &[2, 5], None).await.expect("whole");
        assert_eq!(
            all,
            b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 3\r\n\r\nxxx"
        );
        written(&parts, how, &[2], None)
            .await
            .expect_err("too short");
    }

    #[tokio::test]
    async fn some_answers_have_no_content() {
        let how = (asked(true, false), WrittenContent::None);
        let parts = head(StatusCode::NOT_MODIFIED, &[("content-length", "9")]);
        let all = written(&parts, how, &[], None).await.expect("whole");
        assert_eq!(all, b"HTTP/1.1 304 Not Modified\r\nDate: now\r\n\r\n");
        let parts = head(StatusCode::OK, &[]);
        let all = written(&parts, how, &[], None).await.expect("whole");
        assert_eq!(
            all,
            b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 0\r\n\r\n"
        );
    }
}
