//! Sockets to the upstream, and how one is reset in the middle of a fenced request.
//!
//! An unknown outcome settles from the moment at which nothing more can arrive. Dropping a
//! request's future is not enough for that: the kernel goes on sending what it has taken, long
//! after an ordinary close. An upstream that was out of reach for longer than `barrier.settle`
//! would get the old request beside the new one. So four things hold for the sockets of fenced
//! requests:
//!
//! - Each write checks the lease first.
//! - A socket is *busy* from the first byte of a request until the upstream's host has acknowledged
//!   all of it ([`SocketState::taken`]). A response that is whole before that does not change it.
//! - The drop of a busy socket resets the connection before it returns. The kernel drops what it
//!   held. Only an idle socket is closed in order.
//! - A process that is killed resets too (`SO_LINGER` 0). For one that is stopped or cut off, the
//!   kernel itself gives up what it cannot deliver (`TCP_USER_TIMEOUT`, RFC 5482).
//!
//! A Unix socket has no such buffer: a byte that was written has arrived in the receiver's queue.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::ioctl::{Getter, Opcode, ioctl};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::either::Either;

use crate::fencing::lease::Lease;
use crate::locked::locked;
use crate::metrics::InFlightGuard;
use crate::socket::{self, Socket};
use crate::worker;

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
    pub lease: Arc<Lease>,
    /// The incarnation of the permits that the connection is for, and not the one at the connect: a
    /// permit of an earlier incarnation must not get a socket of a later one.
    pub incarnation: u64,
    /// How long the kernel may try to deliver what was written.
    pub undelivered: Duration,
}

impl LeaseGuard {
    /// Prepares a connection before its first byte.
    ///
    /// # Errors
    ///
    /// The kernel does not know an option, or cannot tell its send queue. Without them the guarantee
    /// does not hold.
    pub(super) fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_user_timeout(Some(self.undelivered))?;
        // The user timeout counts for probes as well: the kernel gives up at the second probe after
        // an unanswered one, if nothing has come for that long. Several probes fit in, so that one
        // may be lost.
        let every = (self.undelivered / PROBES).max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(every).with_interval(every))?;
        socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
        unacknowledged(stream).map(drop)
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

/// How many bytes the other host has not acknowledged (tcp(7)).
#[expect(
    unsafe_code,
    reason = "no crate offers this request of the kernel as a safe function"
)]
fn unacknowledged(stream: &TcpStream) -> io::Result<i32> {
    /// On x86, Arm, RISC-V and most others. Elsewhere a socket does not know it, and this fails.
    const SIOCOUTQ: Opcode = 0x5411;
    // SAFETY: for a TCP socket, the kernel writes one `int` to the argument, and nothing else.
    let count = unsafe { ioctl(stream, Getter::<SIOCOUTQ, i32>::new()) };
    count.map_err(io::Error::from)
}

/// A connection to the upstream. TLS and h2 keep their transport to themselves, so the connection's
/// owner has a second handle, which tells what has been sent. Both are dropped together. Short
/// sections, never across an await.
#[derive(Clone)]
pub(crate) struct UpstreamSocket(Arc<Mutex<SocketState>>);

/// The socket, and what is known of it.
pub(crate) struct SocketState {
    /// `None`: it was lost on its way to another runtime.
    io: Option<Socket>,
    /// `None`: its requests are not fenced, and may arrive at any time. It is never reset.
    guard: Option<LeaseGuard>,
    /// A request has begun on it, and is not known to have been taken. Dropped in the middle of one,
    /// a fenced socket is reset.
    pub busy: bool,
    /// Bytes that the kernel has taken.
    pub written: u64,
    /// The kernel has not taken all of the last write.
    pub blocked: bool,
    /// The connection has failed, in this way.
    failed: Option<io::ErrorKind>,
    /// Reads ask the kernel, in place of the runtime. They wake no task then.
    pub unpolled: bool,
    /// The position in the records that have come. `None`: the connection does not speak TLS.
    pub(super) records: Option<TlsRecords>,
    pub opened: Instant,
    /// The worker whose runtime waits for the socket.
    worker: usize,
    _counted: InFlightGuard,
}

impl UpstreamSocket {
    /// `counted`: it counts as open for as long as it lives.
    pub(super) fn new(io: Socket, guard: Option<LeaseGuard>, counted: InFlightGuard) -> Self {
        Self(Arc::new(Mutex::new(SocketState {
            io: Some(io),
            guard,
            busy: false,
            written: 0,
            blocked: false,
            failed: None,
            unpolled: false,
            records: None,
            opened: Instant::now(),
            worker: worker::index(),
            _counted: counted,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SocketState> {
        locked(&self.0)
    }
}

impl SocketState {
    /// Whether nothing of what was written can arrive any more. Ready with `true`: the upstream's
    /// host has acknowledged all of it, or has refused the rest by a reset, so that a whole response
    /// stands. Ready with `false`: the connection failed in another way. Pending: the kernel still
    /// holds bytes. No event tells when it does not, so nothing is woken then.
    pub(super) fn taken(&mut self) -> Poll<bool> {
        let stream = match &self.io {
            Some(Either::Left(stream)) if self.guard.is_some() => stream,
            io => return Poll::Ready(self.guard.is_none() || io.is_some()),
        };
        match unacknowledged(stream) {
            Ok(0) => return Poll::Ready(true),
            Ok(_) => {}
            Err(_) => return Poll::Ready(false),
        }
        if self.failed.is_none() {
            let error = stream.take_error().unwrap_or_else(Some);
            self.failed = error.map(|error| error.kind());
        }
        match self.failed {
            None => Poll::Pending,
            Some(kind) => Poll::Ready(matches!(
                kind,
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            )),
        }
    }

    /// Has this worker's runtime wait for the socket from now on. `false`: the connection is lost.
    pub(super) fn move_here(&mut self) -> bool {
        let here = worker::index();
        if self.worker != here {
            self.worker = here;
            let detached = self.io.take().map(socket::detach);
            let attached = detached.and_then(|detached| socket::attach(detached.ok()?).ok());
            self.io = attached;
        }
        self.io.is_some()
    }

    /// Runs a write, unless the lease has lapsed. The exchange drops the connection at the error.
    fn write(
        &mut self,
        write: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        // What a refused write leaves behind is in the layers above, which would send it later.
        self.blocked = true;
        if let Some(guard) = &self.guard
            && !guard.lease.holds(guard.incarnation)
        {
            return Poll::Ready(Err(io::Error::new(
                LAPSED,
                "the lease has lapsed; nothing more is written upstream",
            )));
        }
        let io = self.io.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let written = write(Pin::new(io));
        self.blocked = !matches!(written, Poll::Ready(Ok(_)));
        match &written {
            Poll::Ready(Ok(count)) => self.written += *count as u64,
            Poll::Ready(Err(error)) => {
                self.failed.get_or_insert(error.kind());
            }
            Poll::Pending => {}
        }
        written
    }
}

impl Drop for SocketState {
    /// When a busy fenced socket has been dropped, nothing more is sent over it.
    fn drop(&mut self) {
        let (Some(io), Some(_)) = (&self.io, &self.guard) else {
            return;
        };
        if self.busy {
            reset(io);
        } else if let Either::Left(stream) = io
            // An ordinary close.
            && let Err(error) = SockRef::from(stream).set_linger(None)
        {
            tracing::debug!(%error, "an idle connection to the upstream is reset by its close");
        }
    }
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self.lock();
        let before = buf.filled().len();
        let io = this.io.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let read = if this.unpolled {
            socket::read_unpolled(io, buf)
        } else {
            Pin::new(io).poll_read(cx, buf)
        };
        match (&read, &mut this.records) {
            (Poll::Ready(Err(error)), _) => {
                this.failed.get_or_insert(error.kind());
            }
            (_, Some(records)) => records.received(&buf.filled()[before..]),
            _ => {}
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
        self.lock().write(|io| io.poll_write(cx, buf))
    }

    /// A socket keeps nothing back.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        let io = state.io.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Pin::new(io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.lock().write(|io| io.poll_write_vectored(cx, bufs))
    }
}

/// The type, the version and the length of a record.
const RECORD_HEAD: usize = 5;

/// The position in a stream of TLS records (RFC 8446, 5.1). The library takes the beginning of a record
/// and shows nothing of it until the rest has come. An idle connection in the middle of a record is
/// about to deliver bytes that answer no request.
#[derive(Debug, Default)]
pub(super) struct TlsRecords {
    /// Bytes of the record's head that have come.
    in_head: usize,
    /// Bytes of its content that have not, as its head says.
    left: usize,
}

impl TlsRecords {
    /// These bytes have come next.
    fn received(&mut self, mut bytes: &[u8]) {
        while let [next, rest @ ..] = bytes {
            if self.in_head < RECORD_HEAD {
                self.in_head += 1;
                // The last two bytes are the length.
                self.left = (self.left << 8 | usize::from(*next)) & 0xffff;
                bytes = rest;
            } else {
                let now = self.left.min(bytes.len());
                self.left -= now;
                bytes = &bytes[now..];
            }
            if self.in_head == RECORD_HEAD && self.left == 0 {
                self.in_head = 0;
            }
        }
    }

    /// Whether a record has begun and not ended.
    pub(super) const fn is_inside(&self) -> bool {
        self.in_head > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_ends_with_its_last_byte_however_it_comes() {
        let stream = [
            &[23, 3, 3, 0, 3, 1, 2, 3][..],
            &[22, 3, 3, 0, 0],
            &[23, 3, 3, 1, 0],
        ];
        let stream = [stream.concat(), vec![0; 256]].concat();
        let ends = [0, 8, 13, 18 + 256];
        for size in [1, 2, 3, 7, 300] {
            let mut records = TlsRecords::default();
            let mut passed = 0;
            for piece in stream.chunks(size) {
                records.received(piece);
                passed += piece.len();
                assert_eq!(records.is_inside(), !ends.contains(&passed), "{passed}");
            }
        }
    }
}
