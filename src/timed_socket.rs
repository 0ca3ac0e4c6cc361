//! A client's socket with a timeout on writes.
//!
//! A client that sends requests and does not read would keep its connection, its buffers and its
//! request's in-flight permit. So a write that finds no room starts the [`WriteTimeout`], and
//! progress stops it. When it ends, the connection is reset: otherwise the kernel would go on
//! sending.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::either::Either;

use crate::socket::Socket;
use crate::write_timeout::WriteTimeout;

/// The part of the server that has accepted a socket. It lives as long as the socket.
pub(crate) trait SocketOwner: Send {
    /// Notes that the client took nothing of its answer for too long.
    fn timed_out(&self);
}

/// The socket and its owner.
pub(crate) struct TimedSocket {
    socket: Socket,
    /// Runs while a write waits.
    timeout: WriteTimeout,
    owner: Box<dyn SocketOwner>,
}

impl TimedSocket {
    pub(crate) fn new(socket: Socket, limit: Duration, owner: Box<dyn SocketOwner>) -> Self {
        Self {
            socket,
            timeout: WriteTimeout::new(limit),
            owner,
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
            self.timeout.progressed();
            return written;
        }
        ready!(self.timeout.poll_expired(cx));
        self.owner.timed_out();
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
