//! A socket of the admin port: its buffers in the kernel are bounded, and its client must read the
//! answers in time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpListener;
use tokio_util::either::Either;

use crate::metrics::{AdminRefusal, Metrics};
use crate::socket::Socket;
use crate::timed_socket::TimedSocket;

/// The time in which a client has to take something of an answer that waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// After this time the kernel drops what the client does not read, even if the connection is
/// closed.
const UNDELIVERED: Duration = Duration::from_secs(20);
/// The bytes of answers and of requests that the kernel holds for one connection. It counts twice
/// as many for its own bookkeeping. By default it takes megabytes of either.
const SEND_BUFFER: usize = 64 << 10;
const RECEIVE_BUFFER: usize = 32 << 10;

/// Bounds the buffers of new connections, which inherit the listener's. Setting them later would be
/// too late for the window that the handshake announces.
pub fn bound_buffers(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)
}

/// The socket of a new connection.
pub fn timed(socket: Socket, metrics: &Arc<Metrics>) -> TimedSocket {
    // These fail only on a socket that is closed already.
    match &socket {
        Either::Left(tcp) => {
            // Answers are small; waiting to fill a packet only delays them.
            let _ = tcp.set_nodelay(true);
            let _ = SockRef::from(tcp).set_tcp_user_timeout(Some(UNDELIVERED));
        }
        // Of a Unix socket only sent bytes count: received ones are the sender's.
        Either::Right(unix) => {
            let _ = SockRef::from(unix).set_send_buffer_size(SEND_BUFFER);
        }
    }
    let metrics = Arc::clone(metrics);
    TimedSocket::new(socket, WRITE_TIMEOUT, move || {
        metrics.admin_refused(AdminRefusal::WriteTimeout);
    })
}
