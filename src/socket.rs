//! Connected sockets, TCP or Unix, and how one moves from runtime to runtime.

use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, sleep};
use tokio_util::either::Either;

use crate::throttle::Throttle;

/// The pause after an accept that found no descriptor. Any descriptor that the process closes
/// helps, and nothing reports that.
const PAUSE: Duration = Duration::from_millis(50);
/// Limits the lines about a lack of descriptors, of all listeners.
static WANTING: LazyLock<Throttle> = LazyLock::new(Throttle::of_repeats);

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The next connection, and the client's address on TCP. Waits after an error of accept(2), which
    /// mostly means that no descriptor is left, and says so to `starved`.
    pub(crate) async fn next(&self, starved: impl Fn()) -> (Socket, Option<SocketAddr>) {
        loop {
            let error = match self.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => error,
            };
            if error.kind() == io::ErrorKind::ConnectionAborted {
                continue;
            }
            starved();
            if let Some(left_out) = WANTING.say(Instant::now()) {
                tracing::warn!(%error, left_out, "no connection can be accepted until descriptors are free: they wait. Raise the limit (ulimit -n, LimitNOFILE) or lower limits.connections");
            }
            sleep(PAUSE).await;
        }
    }

    async fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (tcp, address) = listener.accept().await?;
                // Fails only on a closed socket. Waiting to fill a packet only delays an answer.
                let _ = tcp.set_nodelay(true);
                (Either::Left(tcp), Some(address))
            }
            Self::Unix(listener) => (Either::Right(listener.accept().await?.0), None),
        })
    }
}

/// A socket that the runtime which opened or accepted it waits for.
pub(crate) type Socket = Either<TcpStream, UnixStream>;

/// A socket that no runtime waits for.
pub(crate) type DetachedSocket = Either<std::net::TcpStream, StdUnixStream>;

/// Takes the socket off its runtime.
pub(crate) fn detach(socket: Socket) -> io::Result<DetachedSocket> {
    Ok(match socket {
        Either::Left(tcp) => Either::Left(tcp.into_std()?),
        Either::Right(unix) => Either::Right(unix.into_std()?),
    })
}

/// Has the current runtime wait for the socket.
pub(crate) fn attach(socket: DetachedSocket) -> io::Result<Socket> {
    Ok(match socket {
        Either::Left(tcp) => Either::Left(TcpStream::from_std(tcp)?),
        Either::Right(unix) => Either::Right(UnixStream::from_std(unix)?),
    })
}

/// Reads what the kernel has, whatever the runtime knows of it. Pending: nothing, and no task is
/// woken later.
pub(crate) fn read_unpolled(socket: &Socket, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    let descriptor = match socket {
        Either::Left(tcp) => tcp.as_fd(),
        Either::Right(unix) => unix.as_fd(),
    };
    match recv(descriptor, buf.initialize_unfilled(), RecvFlags::DONTWAIT) {
        Ok((_, count)) => {
            buf.advance(count);
            Poll::Ready(Ok(()))
        }
        Err(Errno::WOULDBLOCK) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error.into())),
    }
}

/// A connection to be read from these bytes on.
pub(crate) fn rewound<S>(io: S, read: BytesMut) -> impl AsyncRead + AsyncWrite + Unpin
where
    S: AsyncRead + AsyncWrite,
{
    // Copied, since the buffer is usually much longer.
    let first = Cursor::new(Box::<[u8]>::from(&read[..]));
    drop(read);
    let (reader, writer) = tokio::io::split(io);
    tokio::io::join(first.chain(reader), writer)
}

/// Makes the kernel check whether the other end of a silent connection is still there.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_mins(1))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    // Without it a tunnel to a machine that is gone stays open until a newer token comes, or the
    // process stops.
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&probes) {
        tracing::debug!(%error, "a connection has no keep-alive");
    }
}
