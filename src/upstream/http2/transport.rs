//! The transport below HTTP/2 on a connection to the upstream. h2 keeps its transport to itself, so
//! the socket is shared with the connection's owner, who asks it what has been sent. Both are in
//! the same task, except where a driver polls the connection.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::upstream::connect::{UpstreamIo, socket_of_mut};
use crate::upstream::socket::UpstreamSocket;

/// The stream of bytes below HTTP/2. Each clone is another owner of it.
#[derive(Clone)]
pub(super) struct Transport(Arc<Mutex<Stream>>);

struct Stream {
    io: UpstreamIo,
    /// The last write or flush has not finished.
    blocked: bool,
}

impl Transport {
    pub(super) fn new(io: UpstreamIo) -> Self {
        let stream = Stream { io, blocked: false };
        Self(Arc::new(Mutex::new(stream)))
    }

    /// Short sections, never across an await.
    fn lock(&self) -> MutexGuard<'_, Stream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the socket.
    pub(super) fn socket<T>(&self, run: impl FnOnce(&mut UpstreamSocket) -> T) -> T {
        run(socket_of_mut(&mut self.lock().io))
    }

    /// Whether bytes that h2 wants to send wait for the socket.
    pub(super) fn is_blocked(&self) -> bool {
        self.lock().blocked
    }

    fn write<T>(
        &self,
        write: impl FnOnce(Pin<&mut UpstreamIo>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut stream = self.lock();
        let written = write(Pin::new(&mut stream.io));
        stream.blocked = written.is_pending();
        written
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(|io| io.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(|io| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(|io| io.poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|io| io.poll_write_vectored(cx, bufs))
    }
}
