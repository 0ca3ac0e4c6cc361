//! A client's connection that leaves HTTP: how its socket gets from the connection's task to the
//! tunnel's.

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::oneshot;

/// The socket to come, once the client has been told.
pub(crate) type PendingSocket = oneshot::Receiver<ClientSocket>;

/// Stands in the extensions of a request that may leave HTTP. The socket can be taken once.
#[derive(Clone)]
pub(crate) struct UpgradeSlot(Arc<Mutex<Option<PendingSocket>>>);

impl UpgradeSlot {
    pub(crate) fn take(&self) -> Option<PendingSocket> {
        let mut switched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        switched.take()
    }
}

/// The connection's side of it.
pub(crate) struct Handover(oneshot::Sender<ClientSocket>);

/// Both sides.
pub(crate) fn handover() -> (Handover, UpgradeSlot) {
    let (tx, rx) = oneshot::channel();
    (Handover(tx), UpgradeSlot(Arc::new(Mutex::new(Some(rx)))))
}

impl Handover {
    /// Hands the socket over. `read`: what has been read of it behind the request.
    pub(crate) fn give(
        self,
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        read: Bytes,
    ) {
        let (reader, writer) = tokio::io::split(socket);
        let socket = tokio::io::join(Cursor::new(read).chain(reader), writer);
        // If the receiver is gone, the socket is closed.
        let _ = self.0.send(Box::new(socket));
    }
}

/// A client's socket, of whatever kind, that has left HTTP.
pub(crate) type ClientSocket = Box<dyn DuplexStream>;

pub(crate) trait DuplexStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> DuplexStream for S {}
