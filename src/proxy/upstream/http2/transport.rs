//! The transport below HTTP/2 on a connection to the upstream. It records which streams have been
//! opened and whether everything was written. Dropping it with streams in use resets the
//! connection.
//!
//! A HEADERS frame opens its stream. h2 may silently keep one back, if the upstream has lowered its
//! limit since the stream was reserved. So the frames' heads are read as they are written (RFC
//! 9113, 4.1). Client streams are numbered in the order in which they are opened (5.1.1).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::SharedConnection;
use crate::proxy::upstream::connect::UpstreamIo;

/// The length of the preface (RFC 9113, 3.4), which precedes the first frame.
const PREFACE: usize = 24;
const HEADERS: u8 = 1;

/// The stream of bytes below HTTP/2.
pub(super) struct Transport {
    stream: UpstreamIo,
    connection: Arc<SharedConnection>,
    heads: FrameHeads,
}

impl Transport {
    pub(super) fn new(stream: UpstreamIo, connection: Arc<SharedConnection>) -> Self {
        Self {
            stream,
            connection,
            heads: FrameHeads::default(),
        }
    }

    /// Records the streams that a write of these bytes may open.
    fn before<'a>(&self, bufs: impl IntoIterator<Item = &'a [u8]>) {
        let mut ahead = self.heads;
        for buf in bufs {
            ahead.feed(buf);
        }
        let opened = &self.connection.opened().possibly;
        opened.fetch_max(ahead.opened, Ordering::AcqRel);
    }

    /// Records that this many of the bytes have been written.
    fn after<'a>(&mut self, bufs: impl IntoIterator<Item = &'a [u8]>, mut written: usize) {
        for buf in bufs {
            let now = written.min(buf.len());
            self.heads.feed(&buf[..now]);
            written -= now;
        }
        let opened = &self.connection.opened().surely;
        opened.store(self.heads.opened, Ordering::Release);
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        // Otherwise the kernel would go on sending what it has taken.
        if self.connection.in_use() {
            let _ = self.connection.reset();
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.connection.hear();
        }
        read
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.before([buf]);
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.connection.opened().tried(&written);
        let written = ready!(written)?;
        this.after([buf], written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.connection.opened().tried(&flushed);
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.before(bufs.iter().map(|buf| &**buf));
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.connection.opened().tried(&written);
        let written = ready!(written)?;
        this.after(bufs.iter().map(|buf| &**buf), written);
        Poll::Ready(Ok(written))
    }
}

/// Reads the heads of the frames that are written.
#[derive(Clone, Copy, Debug)]
struct FrameHeads {
    /// This many bytes belong to no head.
    skip: usize,
    head: [u8; 9],
    /// How much of it has come.
    have: usize,
    /// The newest stream with HEADERS. Its trailers have the same number.
    opened: u32,
}

impl Default for FrameHeads {
    fn default() -> Self {
        Self {
            skip: PREFACE,
            head: [0; 9],
            have: 0,
            opened: 0,
        }
    }
}

impl FrameHeads {
    fn feed(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = bytes.len().min(self.head.len() - self.have);
            self.head[self.have..][..taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == self.head.len() {
                self.have = 0;
                let [a, b, c, kind, _, stream @ ..] = self.head;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                if kind == HEADERS {
                    let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
                    self.opened = self.opened.max(stream);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_opened_by_the_head_of_its_headers() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // SETTINGS with a payload that looks like HEADERS, HEADERS of 1, an empty DATA, HEADERS of
        // 3, trailers of 1.
        bytes.extend(b"\0\0\x09\x04\0\0\0\0\0\0\0\0\x01\x05\0\0\0\x07");
        bytes.extend(b"\0\0\x02\x01\x04\0\0\0\x01ab");
        bytes.extend(b"\0\0\0\0\x01\0\0\0\x01");
        bytes.extend(b"\0\0\0\x01\x05\0\0\0\x03");
        bytes.extend(b"\0\0\0\x01\x05\0\0\0\x01");
        let mut whole = FrameHeads::default();
        whole.feed(&bytes);
        assert_eq!(whole.opened, 3);
        let mut piecewise = FrameHeads::default();
        let mut opened = Vec::new();
        for byte in &bytes {
            piecewise.feed(&[*byte]);
            opened.push(piecewise.opened);
        }
        // With the last byte of the head, and not before.
        let at = |stream| {
            opened
                .iter()
                .position(|seen| *seen == stream)
                .expect("opened")
        };
        assert_eq!(at(1), 24 + 18 + 8);
        assert_eq!(at(3), 24 + 18 + 11 + 9 + 8);
        assert_eq!((piecewise.skip, piecewise.have), (0, 0));
    }
}
