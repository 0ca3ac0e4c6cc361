//! A socket of the admin port: its buffers in the kernel are bounded, and its client must read the
//! answers in time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};

use crate::metrics::{AdminRefusal, Metrics};

/// The time from the first write that finds no room until all waiting bytes are written. The server
/// writes less than 100 KiB at once, so a client that reads 7 KiB a second is fast enough.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// After this time the kernel drops what the client does not read, even if the connection is
/// closed.
const UNDELIVERED: Duration = Duration::from_secs(20);
/// How many bytes of answers and of requests the kernel holds for one connection. It counts twice
/// as many for its own bookkeeping. By default it takes megabytes of either.
const SEND_BUFFER: usize = 64 << 10;
const RECEIVE_BUFFER: usize = 32 << 10;

/// A socket that can be closed by a reset.
pub trait AdminSocket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Call this once, before the first byte.
    fn prepare(&self);
    /// Makes the close a reset: the kernel drops the bytes that it still holds.
    fn reset(&self) {}
}

impl AdminSocket for TcpStream {
    fn prepare(&self) {
        // Both fail only on a socket that is closed already. Answers are small; waiting to fill a
        // packet only delays them.
        let _ = self.set_nodelay(true);
        let _ = SockRef::from(self).set_tcp_user_timeout(Some(UNDELIVERED));
    }

    fn reset(&self) {
        let _ = self.set_zero_linger();
    }
}

impl AdminSocket for UnixStream {
    fn prepare(&self) {
        // Of a Unix socket only sent bytes count: received ones are the sender's.
        let _ = SockRef::from(self).set_send_buffer_size(SEND_BUFFER);
    }
}

/// Bounds the buffers of new connections, which inherit the listener's. Setting them later would be
/// too late for the window that the handshake announces.
pub fn bound_buffers(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)
}

/// The socket, with the clock of its writes.
pub struct Deadlined<S: AdminSocket> {
    socket: S,
    clock: Option<Pin<Box<Sleep>>>,
    /// A write found no room, and not all has been written since.
    waiting: bool,
    metrics: Arc<Metrics>,
}

impl<S: AdminSocket> Deadlined<S> {
    pub fn new(socket: S, metrics: Arc<Metrics>) -> Self {
        socket.prepare();
        Self {
            socket,
            clock: None,
            waiting: false,
            metrics,
        }
    }

    /// Makes the close a reset: the kernel drops the bytes that it still holds.
    pub fn reset(&self) {
        self.socket.reset();
    }

    /// Handles the result of a write. One that found no room starts the clock.
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let clock = self
            .clock
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        if !self.waiting {
            self.waiting = true;
            clock.as_mut().reset(Instant::now() + WRITE_TIMEOUT);
        }
        ready!(clock.as_mut().poll(cx));
        self.metrics.admin_refused(AdminRefusal::WriteTimeout);
        self.socket.reset();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AdminSocket> AsyncRead for Deadlined<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AdminSocket> AsyncWrite for Deadlined<S> {
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

    /// The server flushes once it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
        self.waiting = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
