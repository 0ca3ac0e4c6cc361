//! HTTP/2 connections on which malformed trailers are a stream error ([`Frames`]): below the
//! library, above TLS, towards clients and towards the upstream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::wire::frames::{Frames, Resets};

/// The bytes read at once behind those that are held back.
const PIECE: usize = 4096;

/// The bytes read from one connection, on their way to the library.
pub(crate) struct FrameFilter {
    frames: Frames,
    resets: Resets,
    /// Bytes that were not handed on yet: first `released` ones that may be, then those held back.
    held: BytesMut,
    released: usize,
}

impl FrameFilter {
    /// Of a client's connection that has begun with these bytes. `most`: what the library is told
    /// that a header list may have.
    pub(crate) fn of_client(begun: BytesMut, most: usize) -> Self {
        let mut filter = Self::new(Frames::of_client(most));
        filter.held = begun;
        filter.released = filter.frames.feed(&mut filter.held);
        filter
    }

    /// Of a connection to a server, of which nothing has been read.
    pub(crate) fn of_server(most: usize) -> Self {
        Self::new(Frames::of_server(most))
    }

    fn new(frames: Frames) -> Self {
        Self {
            frames,
            resets: Resets::default(),
            held: BytesMut::new(),
            released: 0,
        }
    }

    /// These bytes were written to the server.
    pub(crate) fn wrote(&mut self, bytes: &[u8]) {
        let frames = &mut self.frames;
        self.resets.feed(bytes, |stream| frames.reset(stream));
    }

    /// Reads what may be handed on. Mostly all may, and nothing is copied.
    pub(crate) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.released > 0 {
                let now = self.released.min(buf.remaining());
                buf.put_slice(&self.held[..now]);
                self.held.advance(now);
                self.released -= now;
                if self.held.is_empty() {
                    // An idle connection holds no memory here.
                    self.held = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            if self.frames.is_over() {
                // The library has what ends the connection.
                return Poll::Pending;
            }
            if self.held.is_empty() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut *stream).poll_read(cx, buf))?;
                let fresh = &mut buf.filled_mut()[before..];
                let end = fresh.is_empty();
                let released = self.frames.feed(fresh);
                self.held.extend_from_slice(&fresh[released..]);
                buf.set_filled(before + released);
                if end || released > 0 {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            let mut piece = [0; PIECE];
            let mut more = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut more))?;
            if more.filled().is_empty() {
                // In the middle of a frame.
                return Poll::Ready(Ok(()));
            }
            self.held.extend_from_slice(more.filled());
            self.released = self.frames.feed(&mut self.held);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    struct Filtered<S>(S, FrameFilter);

    impl<S: AsyncRead + Unpin> AsyncRead for Filtered<S> {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Self(stream, filter) = self.get_mut();
            filter.poll_read(stream, cx, buf)
        }
    }

    #[tokio::test]
    async fn what_may_not_pass_yet_is_read_on_and_comes_in_order() {
        let head = b"\0\0\x01\x01\x04\0\0\0\x01\x88";
        // :status 200 again, in trailers.
        let trailers = b"\0\0\x01\x01\x05\0\0\0\x01\x88";
        let ping = b"\0\0\x08\x06\0\0\0\0\0abcdefgh";
        let (mut far, near) = duplex(1 << 10);
        let mut near = Filtered(near, FrameFilter::of_server(1000));
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for piece in [&head[..4], &head[4..], &trailers[..9], &trailers[9..], ping] {
            sent.extend_from_slice(piece);
            far.write_all(piece).await.expect("room");
            let mut small = [0; 7];
            while let std::task::Poll::Ready(count) =
                futures_util::poll!(Box::pin(near.read(&mut small)))
            {
                got.extend_from_slice(&small[..count.expect("it passes")]);
            }
        }
        drop(far);
        near.read_to_end(&mut got).await.expect("a clean end");
        sent[head.len() + 4] = 0x04;
        assert_eq!(got, sent);
    }
}
