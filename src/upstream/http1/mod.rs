//! HTTP/1 to the upstream: a [pool] of idle connections, and exchanges over them.
//!
//! The course of an exchange:
//!
//! 1. It runs in its caller's task. There is no task for a connection, and no channel for a
//!    request.
//! 2. It takes an idle connection of its own core, or opens one. Each is checked before it is used.
//! 3. It writes the head and the available body in one piece. Whenever it waits for the socket or
//!    the client, it reads an early answer ([`upload`]).
//! 4. Its own request is not parsed again. The answer's head is read once ([`ResponseReader`]),
//!    and the response is made of the fields where the reader has found them.
//! 5. The socket tells whether a byte has left. If the kernel has taken none, the request was not
//!    sent. Otherwise it may have arrived.
//! 6. The response's [body](Http1Body) reads from the socket when it is polled.
//! 7. Whatever has come with the head is read with it: a fault there is a fault of the head.
//! 8. An upload goes on while its answer is read, in the same task. A whole answer ends it.
//! 9. A connection whose request is written and whose answer is whole goes back before the last
//!    frame is handed on. Bytes behind the answer close it. One of a fenced request goes back only
//!    when the upstream's host has acknowledged the whole request ([`Http1Exchange::taken`]).
//! 10. Dropping a fenced connection in the middle of an exchange resets it before the drop returns.
//!     The body of the request is dropped after the connection, so that the reset precedes its end.
//! 11. After a 101, the connection is the tunnel's, with what was read behind the head.
//!     A 101 before the upstream has taken the whole request breaks the exchange.
//!
//! [`ResponseReader`]: crate::http1::response::ResponseReader

mod connection;
mod exchange;
#[cfg(test)]
mod tests;
mod upload;

pub(crate) use self::connection::Http1UpstreamConnection;
pub(crate) use self::exchange::{Http1Body, Http1Exchange};
use super::pool::Pool;

/// Connections of one kind over HTTP/1.
pub(crate) type Http1Pool = Pool<Http1UpstreamConnection>;
