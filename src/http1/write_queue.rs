//! The bytes of a message that wait for the socket: heads and short pieces of content in one
//! buffer, and among them one longer piece that is not copied.

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tokio::io::AsyncWrite;

use super::names::title;

/// A longer piece of content is not copied.
const MAX_COPIED: usize = 4 << 10;
/// The queue is full with this many bytes: they go out in one write.
const FULL: usize = 16 << 10;

/// The bytes that wait for the socket.
#[derive(Default)]
pub(crate) struct WriteQueue {
    buf: Vec<u8>,
    /// A longer piece, which goes out between the parts of `buf` before and behind `split`.
    data: Bytes,
    split: usize,
    /// This much of everything has been written.
    written: usize,
    /// The bytes stay when they are written.
    kept: bool,
}

impl WriteQueue {
    /// An empty queue with this buffer.
    pub(crate) fn new(buf: Vec<u8>) -> Self {
        Self {
            buf,
            ..Self::default()
        }
    }

    /// The buffer that the next bytes go into.
    pub(crate) const fn end(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Adds a piece of content, as one chunk if the content is chunked. There must be
    /// [room](Self::has_room).
    pub(crate) fn push(&mut self, data: Bytes, chunked: bool) {
        if data.is_empty() {
            return;
        }
        if chunked {
            let _ = write!(self.buf, "{:x}\r\n", data.len());
        }
        if data.len() <= MAX_COPIED {
            self.buf.extend_from_slice(&data);
        } else {
            self.split = self.buf.len();
            self.data = data;
        }
        if chunked {
            self.buf.extend_from_slice(b"\r\n");
        }
    }

    /// Adds the last chunk, and these trailers.
    pub(crate) fn push_last_chunk<'a>(
        &mut self,
        trailers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    ) {
        let end = &mut self.buf;
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
        self.written == self.buf.len() + self.data.len()
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
        let io = Pin::new(io);
        let count = if self.data.is_empty() {
            ready!(io.poll_write(cx, &self.buf[self.written..]))?
        } else {
            let (before, behind) = self.buf.split_at(self.split);
            let mut skipped = self.written;
            let all = [before, &self.data, behind].map(|part| {
                let written = skipped.min(part.len());
                skipped -= written;
                IoSlice::new(&part[written..])
            });
            ready!(io.poll_write_vectored(cx, &all))?
        };
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.written += count;
        if self.is_empty() && !self.kept {
            self.buf.clear();
            // An empty part would keep the memory that it was read into.
            self.data = Bytes::new();
            self.written = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Frees a buffer with more room than this. There must be nothing in the queue.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.buf.capacity() > most {
            self.buf = Vec::new();
        }
    }
}
