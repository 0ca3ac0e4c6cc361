//! A client's socket that has to take what is written to it.
//!
//! A client that asks and does not read would hold its connection, its buffers and its request's place for
//! as long as it likes. So every write that finds no room is the beginning of a [`Patience`], and
//! every byte taken its end; when it runs out the connection is reset (otherwise the kernel would go
//! on offering the bytes).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::patience::Patience;
use super::slots::ConnectionSlot;
use crate::metrics::Metrics;

/// How many bytes may wait in the kernel before a write finds no room. Left alone it takes up to
/// megabytes, and says that there is room again only once a third of them has gone: a slow client that
/// reads all the time would look like one that does not.
const UNSENT: u32 = 128 << 10;

/// A socket that can be closed by a reset.
pub(super) trait DeadlineSocket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// To be called once, before the first byte.
    fn prepare(&self) {}
    /// The close to come is a reset.
    fn reset(&self) {}
}

impl DeadlineSocket for TcpStream {
    fn prepare(&self) {
        // Either fails only on a socket that is gone already.
        let _ = self.set_nodelay(true);
        crate::proxy::keep_alive(self);
        let _ = SockRef::from(self).set_tcp_notsent_lowat(UNSENT);
    }

    fn reset(&self) {
        let _ = self.set_zero_linger();
    }
}

impl DeadlineSocket for UnixStream {}

/// The socket, with the clock of its writes. It holds the connection's place for as long as it is open.
pub(super) struct Timed<S> {
    socket: S,
    /// Running while a write waits.
    patience: Patience,
    metrics: Arc<Metrics>,
    _slot: ConnectionSlot,
}

impl<S: DeadlineSocket> Timed<S> {
    pub(super) fn new(
        socket: S,
        patience: Patience,
        metrics: Arc<Metrics>,
        slot: ConnectionSlot,
    ) -> Self {
        socket.prepare();
        Self {
            socket,
            patience,
            metrics,
            _slot: slot,
        }
    }

    /// What a write has come to.
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.patience.taken();
            return written;
        }
        let limit = ready!(self.patience.wait(cx));
        self.metrics.limit(limit);
        tracing::debug!(
            limit = limit.as_str(),
            "a client took nothing of its answer: its connection is reset"
        );
        self.socket.reset();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: DeadlineSocket> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: DeadlineSocket> AsyncWrite for Timed<S> {
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
