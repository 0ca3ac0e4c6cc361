//! HTTP/1 to the upstream: a [pool] of idle connections, and exchanges over them.
//!
//! How an exchange goes, in ten lines:
//!
//! 1. It runs in its caller's task. There is no task for a connection, and no channel for a request.
//! 2. It takes an idle connection of its own core, or opens one. Each is looked at before it is used.
//! 3. It writes the head and what is there of the body in one piece, and reads for an early answer
//!    whenever the socket or the client has it wait ([`upload`]).
//! 4. No byte of our own request is parsed again. The answer's head is read once, to the letter
//!    ([`AnswerReader`]), and becomes the response with the places of its fields ([`head`]).
//! 5. Whether a byte left is what the socket says: the kernel has taken none, or it may have arrived.
//!    Only where it has taken none may another connection carry the request, once (G5).
//! 6. The response's [`body`] reads from the socket when it is polled.
//! 7. A connection whose request is written and whose answer is whole goes back before the last frame
//!    is handed on. Bytes behind the answer close it.
//! 8. An upload that outlives the head of its answer goes on in a task of its own ([`tail`]), since
//!    the client may send all before it reads. Only then two tasks share a connection.
//! 9. A connection that is dropped in the middle of an exchange is reset before the drop returns, if
//!    it is fenced. The body of the request is dropped after it, so that its end is told later.
//! 10. After a 101, the connection is the [tunnel](Upgraded)'s, with what was read behind the head.
//!
//! [`AnswerReader`]: crate::wire::answers::AnswerReader

mod body;
mod connection;
mod exchange;
mod head;
mod limits;
mod pool;
mod tail;
#[cfg(test)]
mod tests;
mod upload;

pub(crate) use self::body::Http1Body;
pub(crate) use self::connection::{Occupied, Upgraded};
pub(crate) use self::exchange::Http1Pending;
pub(crate) use self::pool::Http1Pool;
pub(crate) use self::pool::Http1PoolSettings;
