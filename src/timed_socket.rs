//! A client's socket with a timeout on writes.
//!
//! A client that sends requests and does not read would keep its connection, its buffers and its
//! request's in-flight permit. So the timeout runs while a write finds no room. When it ends, the
//! connection is reset: otherwise the kernel would go on sending.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::either::Either;

use crate::deadline_timer::DeadlineTimer;
use crate::socket::Socket;

/// The socket and its timeout.
pub(crate) struct TimedSocket {
    socket: Socket,
    limit: Duration,
    /// Since when a write finds no room.
    full_since: Option<Instant>,
    timer: DeadlineTimer,
    /// Is called when the client has taken nothing for too long. Lives as long as the socket, so it
    /// also keeps what the open socket counts for.
    on_timeout: Box<dyn Fn() + Send>,
}

impl TimedSocket {
    pub(crate) fn new(
        socket: Socket,
        limit: Duration,
        on_timeout: impl Fn() + Send + 'static,
    ) -> Self {
        Self {
            socket,
            limit,
            full_since: None,
            timer: DeadlineTimer::default(),
            on_timeout: Box::new(on_timeout),
        }
    }

    /// Makes the close a reset: the kernel drops the bytes that it still holds.
    pub(crate) fn reset(&self) {
        if let Either::Left(tcp) = &self.socket {
            // Fails only on a closed socket.
            let _ = tcp.set_zero_linger();
        }
    }

    /// Starts or stops the timeout by the result of a write.
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.full_since = None;
            return written;
        }
        let since = *self.full_since.get_or_insert_with(Instant::now);
        ready!(self.timer.poll(cx, since + self.limit));
        (self.on_timeout)();
        self.reset();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for TimedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.timed(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.timed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
