//! The response on its way to the client: its head, and its content as it was announced.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::io::AsyncWrite;

use super::response_head::{
    self, Last, ResponseConstraints, ResponseContent, ResponseFraming, may_trail,
};
use crate::http1::ResponseHead;
use crate::http1::WriteQueue;

/// The most memory that an idle connection keeps in each buffer.
const MAX_KEPT: usize = 2 << 10;

/// The content has ended before its `Content-Length`.
#[derive(Debug, thiserror::Error)]
#[error("the content of an answer has ended before its length")]
pub(super) struct TooShort;

/// The writing side of a connection.
pub(super) struct Output {
    queue: WriteQueue,
    framed: ResponseFraming,
    /// Written bytes may still have to be flushed.
    unflushed: bool,
}

impl Output {
    pub(super) const fn new() -> Self {
        Self {
            queue: WriteQueue::new(Vec::new()),
            framed: ResponseFraming::Length(0),
            unflushed: false,
        }
    }

    /// Tells the client to send its body (RFC 9110, 15.2.1).
    pub(super) fn go_on(&mut self) {
        let end = self.queue.end();
        end.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// Begins an answer.
    pub(super) fn head(
        &mut self,
        head: &mut ResponseHead,
        asked: ResponseConstraints,
        content: ResponseContent,
        last: Last,
    ) {
        self.framed = response_head::write(head, asked, content, last, self.queue.end());
    }

    /// True if the content of the current answer ends with the connection.
    pub(super) fn is_to_end(&self) -> bool {
        self.framed == ResponseFraming::ToEnd
    }

    /// True if the current answer takes no more content.
    pub(super) fn is_full(&self) -> bool {
        self.framed == ResponseFraming::Length(0)
    }

    /// True if more content can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Takes a frame of the content. `true`: it is the last one.
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
        if let ResponseFraming::Length(left) = &mut self.framed {
            // No more than was promised.
            data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= data.len() as u64;
        }
        let chunked = matches!(self.framed, ResponseFraming::Chunked(_));
        self.queue.push(data, chunked);
    }

    /// Ends the content. Writes the trailers that were announced and are allowed.
    pub(super) fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), TooShort> {
        match std::mem::replace(&mut self.framed, ResponseFraming::Length(0)) {
            ResponseFraming::Length(0) | ResponseFraming::ToEnd => Ok(()),
            ResponseFraming::Length(_) => Err(TooShort),
            ResponseFraming::Chunked(announced) => {
                let all = trailers.into_iter().flatten();
                let written = all.filter(|(name, _)| announced.contains(name) && may_trail(name));
                self.queue.push_last_chunk(written);
                Ok(())
            }
        }
    }

    /// Writes and flushes everything.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            ready!(self.queue.poll_write(io, cx))?;
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// The answer is over.
    pub(super) fn rest(&mut self) {
        self.queue.shrink(MAX_KEPT);
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::HeaderName;

    use super::*;
    use crate::http1::Response;

    /// A piece that is not copied.
    const LONG: usize = (4 << 10) + 1;

    fn asked(http_11: bool, trailers: bool) -> ResponseConstraints {
        ResponseConstraints {
            head: false,
            http_11,
            trailers,
        }
    }

    fn head(status: StatusCode, lines: &[(&'static str, &'static str)]) -> ResponseHead {
        let mut head = Response::new(status, ()).head;
        head.fields.append("date", "now");
        for (name, value) in lines {
            head.fields.append(name, value);
        }
        head
    }

    /// The bytes that are written for an answer with this content.
    async fn written(
        head: &ResponseHead,
        (asked, content): (ResponseConstraints, ResponseContent),
        pieces: &[usize],
        trailers: Option<HeaderMap>,
    ) -> Result<Vec<u8>, TooShort> {
        let mut output = Output::new();
        output.head(&mut head.clone(), asked, content, Last::No);
        let mut io = Vec::new();
        for length in pieces {
            output.data(vec![b'x'; *length].into());
            let flushed = std::future::poll_fn(|cx| output.poll_write(&mut io, cx)).await;
            flushed.expect("a vector takes all");
        }
        output.end(trailers.as_ref())?;
        let flushed = std::future::poll_fn(|cx| output.poll_write(&mut io, cx)).await;
        flushed.expect("a vector takes all");
        assert!(output.queue.is_empty() && output.has_room());
        Ok(io)
    }

    #[tokio::test]
    async fn content_of_unknown_length_goes_in_chunks() {
        let parts = head(StatusCode::OK, &[("trailer", "x-a, x-b"), ("x-c", "1")]);
        let mut trailers = HeaderMap::new();
        for name in ["x-a", "x-secret", "content-length"] {
            trailers.append(HeaderName::from_static(name), "1".parse().expect("a value"));
        }
        let how = (asked(true, true), ResponseContent::Unknown);
        let all = written(&parts, how, &[1, 0, 18, LONG], Some(trailers)).await;
        let expected = format!(
            "HTTP/1.1 200 OK\r\nDate: now\r\nTrailer: x-a, x-b\r\nX-C: 1\r\n\
             Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n12\r\n{}\r\n1001\r\n{}\r\n\
             0\r\nX-A: 1\r\n\r\n",
            "x".repeat(18),
            "x".repeat(LONG)
        );
        assert_eq!(all.expect("whole"), expected.as_bytes());
        // HTTP/1.0 has no chunks: the connection ends it.
        let how = (asked(false, true), ResponseContent::Unknown);
        let all = written(&parts, how, &[2], None).await.expect("whole");
        assert_eq!(all, b"HTTP/1.0 200 OK\r\nDate: now\r\nX-C: 1\r\n\r\nxx");
    }

    #[tokio::test]
    async fn content_is_as_long_as_was_said() {
        let parts = head(StatusCode::OK, &[("content-length", "3")]);
        let how = (asked(true, false), ResponseContent::Unknown);
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
        let how = (asked(true, false), ResponseContent::None);
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
