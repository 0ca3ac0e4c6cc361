//! The bytes of a message that wait for the socket: heads and short pieces of content in one
//! buffer, and among them one longer piece that is not copied.

use std::io::{self, IoSlice, Write as _};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::AsyncWrite;

use super::content::Framing;
use super::title_line;

/// A longer piece of content is not copied.
const MAX_COPIED: usize = 4 << 10;
/// The queue is full with this many bytes: they go out in one write.
const FULL: usize = 16 << 10;

/// The bytes that wait for the socket.
#[derive(Default)]
pub(crate) struct WriteQueue {
    /// That of the content that is still to come.
    pub framing: Framing,
    buf: Vec<u8>,
    /// A longer piece, which goes out between the parts of `buf` before and behind `split`.
    data: Bytes,
    split: usize,
    /// This much of everything has been written.
    written: usize,
}

impl WriteQueue {
    /// The buffer that the next bytes go into.
    pub(crate) const fn end(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Adds a piece of content, as one chunk if the content is chunked. There must be
    /// [room](Self::has_room). `false`: it is longer than announced, and its end is left out.
    pub(crate) fn push(&mut self, mut data: Bytes) -> bool {
        let mut fits = true;
        if let Framing::Length(left) = &mut self.framing {
            fits = data.len() as u64 <= *left;
            data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= data.len() as u64;
        }
        if data.is_empty() {
            return fits;
        }
        let chunked = self.framing == Framing::Chunked;
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
        fits
    }

    /// Ends the content; if it is chunked, with these trailers. `false`: it is shorter than
    /// announced.
    pub(crate) fn push_end(&mut self, trailers: Option<&HeaderMap>) -> bool {
        let framing = mem::replace(&mut self.framing, Framing::Length(0));
        if framing == Framing::Chunked {
            self.buf.extend_from_slice(b"0\r\n");
            for (name, value) in trailers.into_iter().flatten() {
                title_line(name.as_str(), value.as_bytes(), &mut self.buf);
            }
            self.buf.extend_from_slice(b"\r\n");
        }
        !matches!(framing, Framing::Length(1..))
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
        if self.is_empty() {
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
