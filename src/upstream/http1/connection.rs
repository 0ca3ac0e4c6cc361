//! One connection to the upstream, with the bytes that were read and not yet taken.

use std::io;
use std::pin::Pin;
use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::http1::MessageError;
use crate::socket::rewound;
use crate::upstream::connect::{Connecting, UpstreamIo};
use crate::upstream::pool::PooledConnection;
use crate::upstream::socket::{SocketState, UpstreamSocket};

/// How much is read at once: at most, and at least.
const MAX_READ: usize = 16 << 10;
const MIN_READ: usize = 4 << 10;

/// How often a new connection is looked at whose TLS record has not come whole, and the pause.
const PART_LOOKS: u32 = 100;
const PART_PAUSE: Duration = Duration::from_millis(5);

/// The state of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleLook {
    /// Nothing has come.
    Quiet,
    /// A part of a TLS record has come, which may become bytes.
    Part,
    /// Bytes have come that answer no request.
    Bytes,
    /// It has ended, or broken.
    Ended,
}

/// Bytes without a request, behind an answer or before any request.
pub(super) const EXTRA: MessageError = MessageError::Malformed("bytes that answer no request");

/// Notes why a connection is given up.
pub(super) fn given_up(fault: MessageError) -> String {
    tracing::warn!(%fault, "a connection to the upstream is given up");
    fault.to_string()
}

/// A connection. Dropping a fenced one in the middle of an exchange resets it: see
/// [`UpstreamSocket`](crate::upstream::socket::UpstreamSocket). There is no `close_notify`: it would
/// flush what TLS keeps of a request.
pub(crate) struct Http1UpstreamConnection {
    pub io: UpstreamIo,
    socket: UpstreamSocket,
    /// Bytes that were read and not yet taken.
    pub buf: BytesMut,
}

impl Http1UpstreamConnection {
    pub(super) fn new((socket, io): (UpstreamSocket, UpstreamIo)) -> Self {
        Self {
            io,
            socket,
            buf: BytesMut::new(),
        }
    }

    /// Looks at what has come, without waiting. It asks the kernel: the runtime knows of bytes and
    /// of an end only once it has polled the socket, and it may be busy, or another worker's. What
    /// has come of TLS goes through TLS: tickets (RFC 8446, 4.6.1) are no bytes of an answer. A part
    /// of a record may become some.
    pub(super) fn look(&mut self) -> IdleLook {
        if !self.buf.is_empty() {
            return IdleLook::Bytes;
        }
        let mut byte = [0; 1];
        let mut buf = ReadBuf::new(&mut byte);
        let mut cx = Context::from_waker(Waker::noop());
        self.socket().unpolled = true;
        let read = Pin::new(&mut self.io).poll_read(&mut cx, &mut buf);
        self.socket().unpolled = false;
        match read {
            Poll::Pending => match &self.socket().records {
                Some(records) if records.is_inside() => IdleLook::Part,
                _ => IdleLook::Quiet,
            },
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => IdleLook::Bytes,
            Poll::Ready(_) => IdleLook::Ended,
        }
    }

    /// The bytes behind the head of a 101, beginning with those that were read together with it.
    pub(crate) fn tunnel(&mut self) -> impl AsyncRead + AsyncWrite + Unpin {
        rewound(&mut self.io, self.buf.split())
    }

    /// Reads what has come; 0: the upstream has ended its side.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buf.capacity() - self.buf.len() < MIN_READ {
            self.buf.reserve(MAX_READ);
        }
        std::pin::pin!(self.io.read_buf(&mut self.buf)).poll(cx)
    }
}

impl PooledConnection for Http1UpstreamConnection {
    async fn open(connecting: &Connecting) -> Result<Self, String> {
        let mut connection = Self::new(connecting.open().await?);
        let mut pauses = 0..PART_LOOKS;
        loop {
            match connection.look() {
                IdleLook::Quiet => return Ok(connection),
                // The rest of a ticket is on its way.
                IdleLook::Part if pauses.next().is_some() => tokio::time::sleep(PART_PAUSE).await,
                IdleLook::Bytes | IdleLook::Part => return Err(given_up(EXTRA)),
                IdleLook::Ended => return Err("it has closed the connection".to_owned()),
            }
        }
    }

    fn is_fit(&mut self) -> bool {
        let look = self.look();
        if look == IdleLook::Bytes {
            given_up(EXTRA);
        }
        look == IdleLook::Quiet
    }

    fn socket(&self) -> MutexGuard<'_, SocketState> {
        self.socket.lock()
    }
}
