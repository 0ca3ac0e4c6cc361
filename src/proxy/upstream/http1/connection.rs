//! One connection to the upstream, with what has been read from it and not been taken.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::proxy::upstream::connect::UpstreamIo;
use crate::proxy::upstream::socket::ResetSwitch;
use crate::worker;

/// What is read at once at first, and at the most.
const FIRST_READ: usize = 8 << 10;
pub(super) const MOST_READ: usize = 64 << 10;

/// The connection that a fenced request goes over, for the holder that may have to reset it. `None`:
/// there is none yet, or it may carry another request by now.
#[derive(Clone, Default)]
pub(crate) struct Occupied(Arc<Mutex<Option<ResetSwitch>>>);

impl Occupied {
    fn set(&self, switch: Option<ResetSwitch>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = switch;
    }

    /// Resets the connection, if the exchange still has one.
    pub(crate) fn reset(&self) {
        // Held meanwhile: the connection cannot go back to the pool.
        let switch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(switch) = &*switch {
            switch.throw();
        }
    }
}

/// What a look at a connection that carries nothing has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleLook {
    /// Nothing has come.
    Quiet,
    /// Bytes that answer nothing.
    Bytes,
    /// It has ended, or broken.
    Ended,
}

/// A connection. Dropped while a request is out on it, it is reset if it is fenced: what the kernel
/// has not sent by then it would go on sending.
pub(super) struct Http1UpstreamConnection {
    io: UpstreamIo,
    /// What has been read and not been taken.
    pub buf: BytesMut,
    /// What is read at once: more where all room was used.
    room: usize,
    /// A request is out, or a tunnel is open.
    busy: bool,
    occupied: Option<Occupied>,
    /// The worker whose runtime waits for the socket.
    worker: usize,
}

impl Http1UpstreamConnection {
    pub(super) fn new(io: UpstreamIo) -> Self {
        Self {
            io,
            buf: BytesMut::new(),
            room: FIRST_READ,
            busy: false,
            occupied: None,
            worker: worker::index(),
        }
    }

    /// A request goes out over it.
    pub(super) fn occupy(&mut self, occupied: Option<&Occupied>) {
        if let Some(occupied) = occupied {
            occupied.set(Some(self.io.switch().clone()));
        }
        self.occupied = occupied.cloned();
        self.busy = true;
    }

    /// The request has been written whole, and its answer read whole.
    pub(super) fn release(&mut self) {
        if let Some(occupied) = self.occupied.take() {
            occupied.set(None);
        }
        self.busy = false;
    }

    /// Makes little of itself: nobody knows for how long it will be idle.
    pub(super) fn rest(&mut self) {
        if self.room > FIRST_READ {
            self.room = FIRST_READ;
            self.buf = BytesMut::new();
        }
    }

    /// Has this worker's runtime wait for the socket from now on. `false`: the connection is lost.
    pub(super) fn move_here(&mut self) -> bool {
        let here = worker::index();
        let moved = self.worker == here || self.io.move_here().is_ok();
        self.worker = here;
        moved
    }

    /// How many bytes the kernel has taken.
    pub(super) fn written(&self) -> u64 {
        self.io.written()
    }

    /// Looks at what has come, without waiting for anything.
    pub(super) fn look(&mut self) -> IdleLook {
        if !self.buf.is_empty() {
            return IdleLook::Bytes;
        }
        let mut cx = Context::from_waker(Waker::noop());
        let mut byte = [0; 1];
        let mut buf = ReadBuf::new(&mut byte);
        // What a task may still do at once says nothing of the connection.
        let look = std::pin::pin!(tokio::task::coop::unconstrained(std::future::poll_fn(
            |cx| { Pin::new(&mut self.io).poll_read(cx, &mut buf) }
        )));
        match look.poll(&mut cx) {
            Poll::Pending => IdleLook::Quiet,
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => IdleLook::Bytes,
            Poll::Ready(_) => IdleLook::Ended,
        }
    }

    /// Reads what has come; 0: the upstream has ended its side.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buf.capacity() - self.buf.len() < FIRST_READ / 2 {
            self.buf.reserve(self.room);
        }
        let before = self.buf.capacity() - self.buf.len();
        let read = std::pin::pin!(self.io.read_buf(&mut self.buf));
        let count = ready!(read.poll(cx))?;
        if count >= before && self.room < MOST_READ {
            self.room *= 2;
        }
        Poll::Ready(Ok(count))
    }

    /// Writes a part of `first`, and of `then` behind it.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        then: &[u8],
    ) -> Poll<io::Result<usize>> {
        let io = Pin::new(&mut self.io);
        let count = ready!(if then.is_empty() {
            io.poll_write(cx, first)
        } else if first.is_empty() {
            io.poll_write(cx, then)
        } else {
            io.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(then)])
        })?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(count))
    }

    /// Has all that was written reach the kernel.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.io.buffers() {
            Pin::new(&mut self.io).poll_flush(cx)
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Takes up to `most` of the bytes that have been read.
    pub(super) fn take(&mut self, most: u64) -> Bytes {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.buf.split_to(most.min(self.buf.len())).freeze()
    }
}

impl Drop for Http1UpstreamConnection {
    fn drop(&mut self) {
        if self.busy {
            self.io.switch().throw();
        } else {
            self.io.say_goodbye();
        }
    }
}

/// A connection that has left HTTP: a tunnel's. Dropped, a fenced one is reset.
pub(crate) struct Upgraded(Http1UpstreamConnection);

impl Upgraded {
    pub(super) const fn new(connection: Http1UpstreamConnection) -> Self {
        Self(connection)
    }

    /// Resets it, if it is fenced. When this returns, nothing more is sent over it.
    pub(crate) fn reset(&self) {
        self.0.io.switch().throw();
    }
}

impl AsyncRead for Upgraded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(connection) = self.get_mut();
        if connection.buf.is_empty() {
            return Pin::new(&mut connection.io).poll_read(cx, buf);
        }
        // What came with the head of the 101.
        buf.put_slice(&connection.take(buf.remaining() as u64));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0.io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0.io).poll_shutdown(cx)
    }
}
