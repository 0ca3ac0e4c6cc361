//! One HTTP/2 connection to the upstream. No task of its own drives it: the exchange polls it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::SendRequest;

use crate::upstream::connect::{Connecting, UpstreamIo, chain};
use crate::upstream::pool::PooledConnection;
use crate::upstream::socket::{SocketState, UpstreamSocket};

/// The size from which trailers break the exchange. h2 does not report that they reach
/// its own limit, which is four times this one at least: it silently drops the field that does, and
/// all behind it, with them perhaps a second `grpc-status`. So only a single field as long as the
/// difference could be dropped unnoticed.
pub(super) const TRAILER_LIST: usize = 64 << 10;

/// The most bytes held of one response that its client does not read.
const WINDOW: u32 = 192 << 10;
/// The most bytes held of one body that the upstream does not take, besides the current piece.
const SEND_BUFFER: usize = 64 << 10;

/// A connection. Dropping an idle one closes its socket. A fenced one is reset by the drop in the
/// middle of an exchange: see [`UpstreamSocket`](crate::upstream::socket::UpstreamSocket).
pub(crate) struct Http2Connection {
    /// Boxed: it moves from hand to hand.
    h2: Box<h2::client::Connection<UpstreamIo, Bytes>>,
    /// Sends requests, and keeps the connection open while it is idle.
    pub(super) sender: SendRequest<Bytes>,
    socket: UpstreamSocket,
}

impl Http2Connection {
    /// Reads and writes what there is. Ready when the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        Pin::new(&mut *self.h2).poll(cx)
    }

    /// Whether the upstream allows a stream, and has not sent GOAWAY.
    fn takes_requests(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.h2.max_concurrent_send_streams() > 0
            && !matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Err(_)))
    }
}

impl PooledConnection for Http2Connection {
    /// Up to the upstream's first SETTINGS, which must allow a stream.
    async fn open(connecting: &Connecting) -> Result<Self, String> {
        let (socket, io) = connecting.open().await?;
        let settings = &connecting.settings;
        let header_list = settings.header_bytes.bytes().max(4 * TRAILER_LIST);
        let handshake = async {
            let built = h2::client::Builder::new()
                // None before its SETTINGS have come: they may allow fewer than the default.
                .initial_max_send_streams(0)
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .max_frame_size(16 << 10)
                .max_header_list_size(u32::try_from(header_list).unwrap_or(u32::MAX))
                .max_send_buffer_size(SEND_BUFFER)
                .enable_push(false)
                .handshake(io)
                .await;
            let (sender, h2) = built.map_err(|error| chain(&error))?;
            let mut connection = Self {
                h2: Box::new(h2),
                sender,
                socket,
            };
            let allowed = poll_fn(|cx| match connection.poll(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(Err("it has closed the connection".to_owned())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(chain(&error))),
                Poll::Pending if connection.h2.max_concurrent_send_streams() == 0 => Poll::Pending,
                Poll::Pending if connection.takes_requests() => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Ready(Err("it takes no requests (GOAWAY)".to_owned())),
            });
            allowed.await.map(|()| connection)
        };
        let within = settings.connect_timeout.0;
        let late = |_| {
            format!("it has not said within {within:?} that it takes HTTP/2 requests (SETTINGS)")
        };
        let handshake = tokio::time::timeout(within, handshake);
        handshake.await.map_err(late).flatten()
    }

    /// Handles the frames that have come meanwhile: SETTINGS that allow no stream, GOAWAY.
    fn is_fit(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.socket().unpolled = true;
        let open = self.poll(&mut cx).is_pending();
        self.socket().unpolled = false;
        open && self.takes_requests()
    }

    fn socket(&self) -> MutexGuard<'_, SocketState> {
        self.socket.lock()
    }
}
