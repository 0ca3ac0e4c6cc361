//! The bytes of a message that wait for the socket: heads and short pieces of content in one
//! buffer, and behind them one longer piece that is not copied.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::{HeaderName, HeaderValue};
use tokio::io::AsyncWrite;

use super::names::title;

/// A longer piece of content is not copied.
const MAX_COPIED: usize = 4 << 10;
/// The queue is full with this many bytes: they go out in one write.
const FULL: usize = 16 << 10;

/// The bytes that wait for the socket.
pub(crate) struct WriteQueue {
    buf: Vec<u8>,
    /// This much of `buf` has been written.
    written: usize,
    /// `buf` is all there will be, and stays when it is written.
    kept: bool,
    /// Goes behind `buf`.
    data: Bytes,
    /// Goes behind `data`; empty without it.
    tail: Vec<u8>,
}

impl WriteQueue {
    /// An empty queue with this buffer.
    pub(crate) const fn new(buf: Vec<u8>) -> Self {
        Self {
            buf,
            written: 0,
            kept: false,
            data: Bytes::new(),
            tail: Vec::new(),
        }
    }

    /// The buffer that the next bytes go into.
    pub(crate) const fn end(&mut self) -> &mut Vec<u8> {
        if self.data.is_empty() {
            &mut self.buf
        } else {
            &mut self.tail
        }
    }

    /// Adds a piece of content, as one chunk if the content is chunked. There must be
    /// [room](Self::has_room).
    pub(crate) fn push(&mut self, data: Bytes, chunked: bool) {
        if data.is_empty() {
            return;
        }
        if chunked {
            self.push_size(data.len());
        }
        if data.len() <= MAX_COPIED {
            self.buf.extend_from_slice(&data);
        } else {
            self.data = data;
        }
        if chunked {
            self.end().extend_from_slice(b"\r\n");
        }
    }

    fn push_size(&mut self, size: usize) {
        let digits = (usize::BITS - size.leading_zeros()).div_ceil(4);
        for digit in (0..digits).rev() {
            let digit = (size >> (digit * 4)) & 0xf;
            self.buf.push(b"0123456789abcdef"[digit]);
        }
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Adds the last chunk, and these trailers.
    pub(crate) fn push_last_chunk<'a>(
        &mut self,
        trailers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    ) {
        let end = self.end();
        end.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            title(name.as_str(), end);
            for part in [b": ", value.as_bytes(), b"\r\n"] {
                end.extend_from_slice(part);
            }
        }
        end.extend_from_slice(b"\r\n");
    }

    /// Keeps what is in the queue when it is written, so that it can be written again. Nothing else
    /// may be added.
    pub(crate) const fn keep(&mut self) {
        self.kept = true;
    }

    /// Begins again with what was kept.
    pub(crate) const fn rewind(&mut self) {
        self.written = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.written == self.buf.len() && self.data.is_empty()
    }

    /// True if another piece of content may be added. Written bytes count until the buffer is
    /// cleared, so that it has a bound.
    pub(crate) fn has_room(&self) -> bool {
        self.data.is_empty() && self.buf.len() < FULL
    }

    /// Writes a part of what there is, which must not be nothing.
    pub(crate) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let buf = &self.buf[self.written..];
        let io = Pin::new(io);
        let count = if self.data.is_empty() {
            ready!(io.poll_write(cx, buf))?
        } else {
            let [data, tail] = [IoSlice::new(&self.data), IoSlice::new(&self.tail)];
            let all = [IoSlice::new(buf), data, tail];
            let first = usize::from(buf.is_empty());
            ready!(io.poll_write_vectored(cx, &all[first..]))?
        };
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(count);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut count: usize) {
        let of_buf = count.min(self.buf.len() - self.written);
        self.written += of_buf;
        count -= of_buf;
        if self.written < self.buf.len() || self.kept {
            return;
        }
        self.buf.clear();
        self.written = 0;
        if self.data.is_empty() {
            return;
        }
        let of_data = count.min(self.data.len());
        self.data.advance(of_data);
        count -= of_data;
        if self.data.is_empty() {
            // An empty part would keep the memory that it was read into.
            self.data = Bytes::new();
            if count < self.tail.len() {
                self.written = count;
                std::mem::swap(&mut self.buf, &mut self.tail);
            } else {
                self.tail.clear();
            }
        }
    }

    /// Frees buffers with more room than this. There must be nothing in the queue.
    pub(crate) fn shrink(&mut self, most: usize) {
        for buf in [&mut self.buf, &mut self.tail] {
            if buf.capacity() > most {
                *buf = Vec::new();
            }
        }
    }
}
