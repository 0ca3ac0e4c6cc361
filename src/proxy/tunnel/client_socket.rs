//! A client's connection that leaves HTTP: how its socket gets from the connection's task to the
//! tunnel's.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// The socket to come, once the client has been told.
pub(crate) type PendingSocket = oneshot::Receiver<ClientSocket>;

/// Stands in the extensions of a request that may leave HTTP. The socket can be taken once.
#[derive(Clone, Debug)]
pub(crate) struct UpgradeSlot(Arc<Mutex<Option<PendingSocket>>>);

impl UpgradeSlot {
    pub(crate) fn take(&self) -> Option<PendingSocket> {
        let mut switched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        switched.take()
    }
}

/// The connection's side of it.
#[derive(Debug)]
pub(crate) struct Handover(oneshot::Sender<ClientSocket>);

/// Both sides.
pub(crate) fn handover() -> (Handover, UpgradeSlot) {
    let (tx, rx) = oneshot::channel();
    (Handover(tx), UpgradeSlot(Arc::new(Mutex::new(Some(rx)))))
}

impl Handover {
    /// Hands the socket over. `read`: what has been read of it behind the request.
    pub(crate) fn give(self, socket: Box<dyn SwitchableSocket>, read: Bytes) {
        // If the receiver is gone, the socket is closed.
        let _ = self.0.send(ClientSocket { socket, read });
    }
}

/// A client's socket, of whatever kind.
pub(crate) trait SwitchableSocket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> SwitchableSocket for S {}

/// A client's socket that has left HTTP.
pub(crate) struct ClientSocket {
    socket: Box<dyn SwitchableSocket>,
    /// To be read first.
    read: Bytes,
}

impl std::fmt::Debug for ClientSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientSocket").finish_non_exhaustive()
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read.is_empty() {
            let count = self.read.len().min(buf.remaining());
            buf.put_slice(&self.read[..count]);
            self.read.advance(count);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
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
