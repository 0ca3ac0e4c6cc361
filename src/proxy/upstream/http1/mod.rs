//! HTTP/1 to the upstream: a [pool] of idle connections, and exchanges over them.
//!
//! The course of an exchange:
//!
//! 1. It runs in its caller's task. There is no task for a connection, and no channel for a
//!    request.
//! 2. It takes an idle connection of its own core, or opens one. Each is checked before it is used.
//! 3. It writes the head and the available body in one piece. Whenever it waits for the socket or
//!    the client, it reads an early answer ([`upload`]).
//! 4. Its own request is not parsed again. The answer's head is read once ([`UpstreamFraming`]),
//!    and the response is made of the fields where the reader has found them ([`head`]).
//! 5. The socket tells whether a byte has left. If the kernel has taken none, another connection
//!    may carry the request, once (G5). Otherwise the request may have arrived.
//! 6. The response's [`body`] reads from the socket when it is polled.
//! 7. A connection whose request is written and whose answer is whole goes back before the last
//!    frame is handed on. Bytes behind the answer close it.
//! 8. An upload that outlives the head of its answer continues in a task of its own
//!    ([`detached_upload`]), since the client may send all before it reads. Only then two tasks
//!    share a connection.
//! 9. Dropping a fenced connection in the middle of an exchange resets it before the drop returns.
//!    The body of the request is dropped after the connection, so that the reset precedes its end.
//! 10. After a 101, the connection is the [tunnel](Upgraded)'s, with what was read behind the head.
//!
//! [`UpstreamFraming`]: crate::wire::upstream_framing::UpstreamFraming

mod body;
mod connection;
mod detached_upload;
mod exchange;
mod head;
mod pool;
#[cfg(test)]
mod tests;
mod upload;

pub(crate) use self::body::Http1Body;
pub(crate) use self::connection::{Occupied, Upgraded};
pub(crate) use self::exchange::Http1Pending;
pub(crate) use self::pool::Http1Pool;
pub(crate) use self::pool::Http1PoolSettings;
