//! Sockets to the upstream, and how one is reset in the middle of a fenced request.
//!
//! An unknown outcome settles from the moment at which nothing more can arrive. To drop a request's
//! future is not enough for that: the kernel goes on sending what it has taken, long after an
//! ordinary close. An upstream that was out of reach for
//! longer than `barrier.settle` would get the old request beside the new one. So three things hold
//! for the sockets of fenced requests:
//!
//! - Each write looks at the lease first.
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
use tokio::net::{TcpStream, UnixStream};

use crate::fencing::lease::Lease;

/// How many bytes of fenced requests the kernel takes beyond those that it has sent. Without a bound
/// it takes megabytes, and delivers them for as long as an upstream reads slowly, whether or not the
/// proxy runs: each byte that is taken starts the user timeout again.
const UNSENT: u32 = 128 << 10;

/// How many keep-alive probes go out before the user timeout of a connection on which nothing is said.
const PROBES: u32 = 4;

/// The kind of the error of a write under a lease that has lapsed.
pub(super) const LAPSED: io::ErrorKind = io::ErrorKind::PermissionDenied;

/// What a fenced socket looks at before every write.
#[derive(Clone)]
pub(super) struct LeaseGuard {
    lease: Arc<Lease>,
    /// That of the permits whose connections these are, not the one of the moment of the connect:
    /// a permit of an earlier generation must not get a socket of a later one.
    generation: u64,
    /// How long the kernel may try to deliver what was written.
    undelivered: Duration,
}

impl LeaseGuard {
    pub(super) fn new(lease: &Arc<Lease>, generation: u64, undelivered: Duration) -> Self {
        Self {
            lease: Arc::clone(lease),
            generation,
            undelivered,
        }
    }

    /// Prepares a connection before its first byte.
    ///
    /// # Errors
    ///
    /// Where the kernel does not know an option: without it the guarantee does not hold.
    pub(super) fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_user_timeout(Some(self.undelivered))?;
        // The user timeout counts for probes as well: the kernel gives up on the second look after one
        // that was not answered, if nothing has come for so long. Several fit in, so that one may be lost.
        let every = (self.undelivered / PROBES).max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(every).with_interval(every))?;
        socket.set_tcp_notsent_lowat(UNSENT)
    }
}

/// The socket itself.
pub(super) enum UpstreamSocketIo {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl UpstreamSocketIo {
    /// The same socket, registered with the current runtime in place of the one that opened it.
    fn move_here(self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(TcpStream::from_std(stream.into_std()?)?),
            Self::Unix(stream) => Self::Unix(UnixStream::from_std(stream.into_std()?)?),
        })
    }

    /// Ends the connection now, and drops what has not been sent.
    fn reset(&self) {
        let reset = match self {
            // A close would take the last holder of the descriptor. Disconnecting takes none, and
            // does the same: it empties the kernel's buffer and sends a reset.
            Self::Tcp(stream) => rustix::net::connect_unspec(stream).map_err(io::Error::from),
            Self::Unix(stream) => SockRef::from(stream).shutdown(Shutdown::Both),
        };
        if let Err(error) = reset {
            // The close that follows resets it, since SO_LINGER is 0.
            tracing::debug!(%error, "a connection to the upstream is reset by its close");
        }
    }
}

/// Has a fenced connection reset. Every socket has one.
#[derive(Clone)]
pub(crate) struct ResetSwitch(Arc<Mutex<OpenSocket>>);

/// The socket, between its owner and its switch. The lock is held over each read and write, which do
/// not block, so that none is under way when [`ResetSwitch::throw`] returns. Never across an await.
struct OpenSocket {
    /// `None`: closed.
    io: Option<UpstreamSocketIo>,
    /// What nobody fences may arrive at any time, and is not reset.
    fenced: bool,
    thrown: bool,
    /// Who waits for something to read, or for room to write.
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl ResetSwitch {
    /// Resets the connection. When this returns, nothing more is sent over it. `false`: it has been
    /// reset before, or nobody fences it.
    pub(crate) fn throw(&self) -> bool {
        let waiting = {
            let mut open = self.lock();
            if !open.fenced || open.thrown {
                return false;
            }
            open.thrown = true;
            if let Some(io) = &open.io {
                io.reset();
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
}

impl UpstreamSocket {
    pub(super) fn new(io: UpstreamSocketIo, guard: Option<LeaseGuard>) -> Self {
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
        }
    }

    pub(super) fn switch(&self) -> &ResetSwitch {
        &self.switch
    }

    /// Has the current runtime wait for the socket from now on, in place of the one that opened it.
    ///
    /// # Errors
    ///
    /// The socket is closed: it was before, or the runtime takes no more.
    pub(super) fn move_here(&self) -> io::Result<()> {
        let mut open = self.switch.lock();
        let io = open.io.take().ok_or_else(given_up)?;
        open.io = Some(io.move_here()?);
        Ok(())
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
        write: impl FnOnce(&mut UpstreamSocketIo, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut open = self.switch.lock();
        let open = &mut *open;
        if open.thrown {
            return Poll::Ready(Err(given_up()));
        }
        if let Some(guard) = &self.guard
            && !guard.lease.holds(guard.generation)
        {
            return Poll::Ready(Err(io::Error::new(
                LAPSED,
                "the lease has lapsed; nothing more is written upstream",
            )));
        }
        let Some(io) = &mut open.io else {
            return Poll::Ready(Err(given_up()));
        };
        let written = write(io, cx);
        match &written {
            Poll::Ready(Ok(count)) => self.written += *count as u64,
            Poll::Pending if open.fenced => remember(&mut open.writer, cx),
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        written
    }

    fn rest(
        &self,
        run: impl FnOnce(&mut UpstreamSocketIo) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        match &mut self.switch.lock().io {
            Some(io) => run(io),
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
        if let Some(UpstreamSocketIo::Tcp(stream)) = open.io.take()
            && self.guard.is_some()
            && !thrown
        {
            // Its owner has thrown the switch if an exchange was under way: an ordinary close.
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
            Some(UpstreamSocketIo::Tcp(io)) => Pin::new(io).poll_read(cx, buf),
            Some(UpstreamSocketIo::Unix(io)) => Pin::new(io).poll_read(cx, buf),
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
        self.get_mut().write(cx, |io, cx| match io {
            UpstreamSocketIo::Tcp(io) => Pin::new(io).poll_write(cx, buf),
            UpstreamSocketIo::Unix(io) => Pin::new(io).poll_write(cx, buf),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.rest(|io| match io {
            UpstreamSocketIo::Tcp(io) => Pin::new(io).poll_flush(cx),
            UpstreamSocketIo::Unix(io) => Pin::new(io).poll_flush(cx),
        })
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.rest(|io| match io {
            UpstreamSocketIo::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            UpstreamSocketIo::Unix(io) => Pin::new(io).poll_shutdown(cx),
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |io, cx| match io {
            UpstreamSocketIo::Tcp(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            UpstreamSocketIo::Unix(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        })
    }
}
