//! A client's socket with a timeout on writes.
//!
//! A client that sends requests and does not read would keep its connection, its buffers and its
//! request's in-flight permit. So a write that finds no room starts the [`WriteTimeout`], and
//! progress stops it. When it ends, the connection is reset: otherwise the kernel would go on
//! sending.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::either::Either;

use super::connection_limit::ConnectionPermit;
use super::write_timeout::WriteTimeout;
use crate::metrics::{Limit, Metrics};
use crate::socket::Socket;

/// How many bytes may wait in the kernel before a write finds no room. By default the kernel takes
/// up to megabytes, and reports room only once a third of them has gone. A slow client that reads
/// all the time would then look like one that does not read.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// The socket, which holds the connection's permit while it is open.
pub(super) struct TimedSocket {
    socket: Socket,
    /// Runs while a write waits.
    timeout: WriteTimeout,
    metrics: Arc<Metrics>,
    _slot: ConnectionPermit,
}

impl TimedSocket {
    pub(super) fn new(
        socket: Socket,
        timeout: WriteTimeout,
        metrics: Arc<Metrics>,
        permit: ConnectionPermit,
    ) -> Self {
        if let Either::Left(tcp) = &socket {
            // Both fail only on a closed socket.
            let _ = tcp.set_nodelay(true);
            crate::socket::keep_alive(tcp);
            let _ = SockRef::from(tcp).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
        }
        Self {
            socket,
            timeout,
            metrics,
            _slot: permit,
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
        self.metrics.limit(Limit::WriteTimeout);
        tracing::debug!("a client took nothing of its answer: its connection is reset");
        if let Either::Left(tcp) = &self.socket {
            let _ = tcp.set_zero_linger();
        }
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
