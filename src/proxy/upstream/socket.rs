//! Sockets to the upstream, and how one is reset in the middle of a fenced request.
//!
//! An unknown outcome settles from the moment at which nothing more can arrive. Dropping a
//! request's future is not enough for that: the kernel goes on sending what it has taken, long
//! after an ordinary close. An upstream that was out of reach for longer than `barrier.settle`
//! would get the old request beside the new one. So three things hold for the sockets of fenced
//! requests:
//!
//! - Each write checks the lease first.
//! - [`ResetSwitch::throw`] resets the connection before it returns. The kernel drops what it held,
//!   and no write is under way or follows.
//! - The close of a socket is a reset, unless its owner comes to an orderly end without an exchange
//!   under way. So a process that is killed resets too (`SO_LINGER` 0). For one that is stopped or
//!   cut off, the kernel itself gives up what it cannot deliver (`TCP_USER_TIMEOUT`, RFC 5482).
//!
//! A Unix socket has no such buffer: a byte that was written has arrived in the receiver's queue.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::either::Either;

use crate::fencing::lease::Lease;
use crate::metrics::InFlightGuard;
use crate::socket::{self, Socket};

/// How many unsent bytes of fenced requests the kernel may hold. Without a bound it takes
/// megabytes, and delivers them to a slow upstream even after the proxy has ended: each byte that
/// the upstream takes starts the user timeout again.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// How many keep-alive probes go out before the user timeout of a silent connection.
const PROBES: u32 = 4;

/// The kind of the error of a write under a lease that has lapsed.
pub(super) const LAPSED: io::ErrorKind = io::ErrorKind::PermissionDenied;

/// The lease that a fenced socket checks before every write.
#[derive(Clone)]
pub(super) struct LeaseGuard {
    lease: Arc<Lease>,
    /// The incarnation of the permits that the connection is for, and not the one at the connect: a
    /// permit of an earlier incarnation must not get a socket of a later one.
    incarnation: u64,
    /// How long the kernel may try to deliver what was written.
    undelivered: Duration,
}

impl LeaseGuard {
    pub(super) fn new(lease: &Arc<Lease>, incarnation: u64, undelivered: Duration) -> Self {
        Self {
            lease: Arc::clone(lease),
            incarnation,
            undelivered,
        }
    }

    /// Prepares a connection before its first byte.
    ///
    /// # Errors
    ///
    /// The kernel does not know an option, without which the guarantee does not hold.
    pub(super) fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_user_timeout(Some(self.undelivered))?;
        // The user timeout counts for probes as well: the kernel gives up at the second probe after
        // an unanswered one, if nothing has come for that long. Several probes fit in, so that one
        // may be lost.
        let every = (self.undelivered / PROBES).max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(every).with_interval(every))?;
        socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)
    }
}

/// Ends a connection now, and drops what has not been sent.
fn reset(socket: &Socket) {
    let reset = match socket {
        // A close needs the last owner of the descriptor. A disconnect does not, and has the same
        // effect: it empties the kernel's buffer and sends a reset.
        Either::Left(tcp) => rustix::net::connect_unspec(tcp).map_err(io::Error::from),
        Either::Right(unix) => SockRef::from(unix).shutdown(Shutdown::Both),
    };
    if let Err(error) = reset {
        // The close that follows resets it, since SO_LINGER is 0.
        tracing::debug!(%error, "a connection to the upstream is reset by its close");
    }
}

/// The switch that resets a fenced connection. Every socket has one.
#[derive(Clone)]
pub(crate) struct ResetSwitch(Arc<Mutex<OpenSocket>>);

/// The socket that its owner and its switch share. The lock is held over each read and write, which
/// do not block, so that none is running when [`ResetSwitch::throw`] returns. Never across an
/// await.
struct OpenSocket {
    /// `None`: closed.
    io: Option<Socket>,
    /// `false`: its requests may arrive at any time, so it is never reset.
    fenced: bool,
    thrown: bool,
    /// The tasks that wait to read and to write.
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl ResetSwitch {
    /// Resets the connection. When this returns, nothing more is sent over it. `false`: it has been
    /// reset before, or is not fenced.
    pub(crate) fn throw(&self) -> bool {
        let waiting = {
            let mut open = self.lock();
            if !open.fenced || open.thrown {
                return false;
            }
            open.thrown = true;
            if let Some(io) = &open.io {
                reset(io);
            }
            [open.reader.take(), open.writer.take()]
        };
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, OpenSocket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection to the upstream.
pub(crate) struct UpstreamSocket {
    switch: ResetSwitch,
    guard: Option<LeaseGuard>,
    /// Bytes that the kernel has taken.
    written: u64,
    /// See [`Self::read_unpolled`].
    unpolled: bool,
    /// `None` in tests of the parts.
    counted: Option<InFlightGuard>,
}

impl UpstreamSocket {
    pub(super) fn new(io: Socket, guard: Option<LeaseGuard>) -> Self {
        let open = OpenSocket {
            io: Some(io),
            fenced: guard.is_some(),
            thrown: false,
            reader: None,
            writer: None,
        };
        Self {
            switch: ResetSwitch(Arc::new(Mutex::new(open))),
            guard,
            written: 0,
            unpolled: false,
            counted: None,
        }
    }

    /// Counts as open for as long as it lives.
    pub(super) fn count(&mut self, guard: InFlightGuard) {
        self.counted = Some(guard);
    }

    pub(super) fn switch(&self) -> &ResetSwitch {
        &self.switch
    }

    /// Has the current runtime wait for the socket from now on, in place of the one that opened it.
    ///
    /// # Errors
    ///
    /// The socket was closed before, or the runtime has stopped.
    pub(super) fn move_here(&self) -> io::Result<()> {
        let mut open = self.switch.lock();
        let io = open.io.take().ok_or_else(given_up)?;
        open.io = Some(socket::attach(socket::detach(io)?)?);
        Ok(())
    }

    /// Whether reads ask the kernel, in place of the runtime. They wake no task then.
    pub(super) fn read_unpolled(&mut self, unpolled: bool) {
        self.unpolled = unpolled;
    }

    /// How many bytes the kernel has taken.
    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Runs a write, unless the lease has lapsed or the connection was given up. The exchange drops
    /// the connection at the error.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut open = self.switch.lock();
        let open = &mut *open;
        if open.thrown {
            return Poll::Ready(Err(given_up()));
        }
        if let Some(guard) = &self.guard
            && !guard.lease.holds(guard.incarnation)
        {
            return Poll::Ready(Err(io::Error::new(
                LAPSED,
                "the lease has lapsed; nothing more is written upstream",
            )));
        }
        let Some(io) = &mut open.io else {
            return Poll::Ready(Err(given_up()));
        };
        let written = write(Pin::new(io), cx);
        match &written {
            Poll::Ready(Ok(count)) => self.written += *count as u64,
            Poll::Pending if open.fenced => remember(&mut open.writer, cx),
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        written
    }

    fn rest(
        &self,
        run: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        match &mut self.switch.lock().io {
            Some(io) => run(Pin::new(io)),
            None => Poll::Ready(Err(given_up())),
        }
    }
}

fn given_up() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "a request was given up; nothing more is written upstream",
    )
}

fn remember(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl Drop for UpstreamSocket {
    fn drop(&mut self) {
        let mut open = self.switch.lock();
        let thrown = open.thrown;
        if let Some(Either::Left(stream)) = open.io.take()
            && self.guard.is_some()
            && !thrown
        {
            // No exchange is in progress, or its owner would have thrown the switch: an ordinary
            // close.
            let _ = SockRef::from(&stream).set_linger(None);
        }
    }
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut open = self.switch.lock();
        let open = &mut *open;
        if open.thrown {
            return Poll::Ready(Err(given_up()));
        }
        let read = match &mut open.io {
            Some(io) if self.unpolled => socket::read_unpolled(io, buf),
            Some(io) => Pin::new(io).poll_read(cx, buf),
            None => Poll::Ready(Err(given_up())),
        };
        if read.is_pending() && open.fenced {
            remember(&mut open.reader, cx);
        }
        read
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |io, cx| io.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.rest(|io| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.rest(|io| io.poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.write(cx, |io, cx| io.poll_write_vectored(cx, bufs))
    }
}
